// A sortable, searchable table. Only the first rows are drawn, so that it stays fast.

import { el, section } from "./dom.js";

const PAGE = 100;

// Columns have `name`, `cell(row)` and, to be sortable, `value(row)`; `number` aligns right, `wide` takes a full line
// on a phone. `text(row)` is searched, `order` compares two rows until a column is chosen.
export function sortedTable({ id, noun, columns, text, order }) {
  const chosen = { column: null, down: false, words: "", shown: PAGE };
  let place = null;
  let rows = [];

  const draw = () => {
    const found = matching(rows, chosen.words, text).sort(comparison(columns[chosen.column], chosen.down, order));
    const shown = found.slice(0, chosen.shown);
    const cells = shown.map((row) => columns.map((column) => column.cell(row)));
    section(place, "tools", [noun, rows.length > 1], () => (rows.length > 1 ? [tools()] : []));
    section(place, "table", [cells.map(print), chosen], () => [table(cells), rest(found.length)]);
    const count = place.querySelector(".count");
    if (count) count.textContent = chosen.words ? `${found.length} of ${rows.length}` : "";
  };

  const tools = () => {
    const input = el("input", { type: "search", id: "search", placeholder: `Search ${noun}`, "aria-label": `Search ${noun}`, "aria-controls": id, autocomplete: "off", spellcheck: "false", value: chosen.words });
    input.addEventListener("input", () => {
      Object.assign(chosen, { words: input.value, shown: PAGE });
      draw();
    });
    return el("div", { class: "tools", role: "search" }, input, el("output", { class: "count quiet" }));
  };

  const table = (cells) => {
    const body = cells.map((line) => el("tr", {}, line.map((cell, i) => el("td", { "data-label": columns[i].name, class: classes(columns[i]) }, cell))));
    return el("div", { class: "scroll" }, el("table", { class: "list", id }, el("thead", {}, el("tr", {}, columns.map(head))), el("tbody", {}, body)));
  };

  const head = (column, i) => {
    const sort = chosen.column === i ? (chosen.down ? "descending" : "ascending") : null;
    const mark = sort && el("span", { "aria-hidden": "true" }, chosen.down ? " ▾" : " ▴");
    const button = el("button", { type: "button", id: `${id}-by-${i}`, title: `Sort by ${column.name}` }, column.name, mark);
    button.addEventListener("click", () => {
      Object.assign(chosen, { down: chosen.column === i ? !chosen.down : Boolean(column.number), column: i });
      draw();
    });
    return el("th", { scope: "col", "aria-sort": sort, class: classes(column) }, column.value ? button : column.name);
  };

  const rest = (count) => {
    if (count === 0) return el("p", { class: "quiet", id: `${id}-none` }, `No matching ${noun}.`);
    if (count <= chosen.shown) return null;
    const button = el("button", { type: "button", id: `${id}-more` }, `Show ${Math.min(PAGE, count - chosen.shown)} more`);
    button.addEventListener("click", () => {
      chosen.shown += PAGE;
      draw();
    });
    return el("p", { class: "quiet" }, `The first ${chosen.shown} of ${count}. `, button);
  };

  return {
    show(parent, newRows) {
      [place, rows] = [parent, newRows];
      draw();
    },
  };
}

const classes = (column) => [column.number && "number", column.wide && "wide"].filter(Boolean).join(" ") || null;

// What a cell shows: an unchanged table is not drawn again.
const print = (line) => line.map((cell) => [cell].flat().map((part) => (part instanceof Element ? [part.className, part.textContent] : part)));

function matching(rows, words, text) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter((row) => {
    const has = text(row).toLowerCase();
    return wanted.every((word) => has.includes(word));
  });
}

// Unknown values come last in either direction.
function comparison(column, down, order) {
  if (!column) return order;
  return (a, b) => {
    const [left, right] = [column.value(a), column.value(b)];
    if (left == null || right == null) return (left == null) - (right == null) || order(a, b);
    const way = typeof left === "string" ? left.localeCompare(right, "en", { numeric: true }) : left - right;
    return (down ? -way : way) || order(a, b);
  };
}

// Ranks as a grid: a row per node or pipeline stage, a cell per rank, colored by one metric. A click opens the rank.

import { el } from "./dom.js";
import { count, UNKNOWN } from "./format.js";
import { jobAddress } from "./paths.js";
import { METRICS, rankRows } from "./rank_rows.js";

const LEAST_RANKS = 8;
const MOST_CELL_PX = 26;
const LEAST_CELL_PX = 4;
const LABEL_PX = 92;
const MOST_ROWS = 1024;
const AXES = [["node", "Nodes", (row) => row.node], ["stage", "Stages", (row) => (row.stage == null ? null : `stage ${row.stage}`)]];
const chosen = { axis: "node", metric: null };

export function rankGrid(job, width, again) {
  const rows = rankRows(job).filter((row) => row.rank != null);
  const axes = AXES.filter(([, , of]) => new Set(rows.map(of)).size > 1 || of === AXES[0][2]).filter(([, , of]) => rows.some((row) => of(row) != null));
  const metrics = METRICS.filter(([key]) => rows.some((row) => row[key] != null));
  if (rows.length < LEAST_RANKS || !metrics.length || !axes.length) return null;
  const [axis, , of] = axes.find(([name]) => name === chosen.axis) ?? axes[0];
  const [key, title, show] = metrics.find(([name]) => name === chosen.metric) ?? metrics[0];
  const lines = grouped(rows, (row) => of(row) ?? "unknown").slice(0, MOST_ROWS);
  const values = rows.map((row) => row[key]).filter((value) => value != null);
  const [low, high] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
  const readout = el("output", { class: "readout", id: "grid-readout" });
  const says = `${count(rows.length)} ranks by ${axis}: ${title} from ${show(low)} to ${show(high)}. The table below has the same numbers.`;
  const canvas = el("canvas", { id: "rank-grid", role: "img", "aria-label": says });
  const wide = lines.reduce((most, [, ranks]) => Math.max(most, ranks.length), 1);
  const cell = Math.max(LEAST_CELL_PX, Math.min(MOST_CELL_PX, Math.floor((width - LABEL_PX - 20) / wide)));
  // With more ranks in a line than fit, the line goes on in the next one.
  const columns = Math.max(1, Math.min(wide, Math.floor((width - LABEL_PX - 20) / cell)));
  const places = [];
  let y = 0;
  for (const [name, ranks] of lines) {
    for (const [i, row] of ranks.entries()) places.push({ row, x: i % columns, y: y + Math.floor(i / columns), name: i === 0 ? name : null });
    y += Math.ceil(ranks.length / columns);
  }
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    const [column, line] = [Math.floor((event.clientX - box.left - LABEL_PX) / cell), Math.floor((event.clientY - box.top) / cell)];
    return places.find((place) => place.x === column && place.y === line)?.row;
  };
  canvas.addEventListener("pointermove", (event) => {
    const row = at(event);
    canvas.style.setProperty("cursor", row ? "pointer" : "default");
    readout.textContent = row ? `${row.name}${row.where ? ` (${row.where})` : ""}: ${title} ${row[key] == null ? UNKNOWN : show(row[key])}${row.culprit ? ", culprit" : ""}` : "";
  });
  canvas.addEventListener("click", (event) => {
    const row = at(event);
    if (row) location.assign(jobAddress(job.name, `ranks/${row.rank}`));
  });
  requestAnimationFrame(() => paint(canvas, { places, lines: y, cell, width: LABEL_PX + columns * cell + 4, key, low, high }));
  const select = (id, label, values_, now, set) => {
    const box = el("select", { id, "aria-label": label }, values_.map(([value, text]) => el("option", { value, selected: value === now }, text)));
    box.addEventListener("change", () => {
      set(box.value);
      again();
    });
    return box;
  };
  return el("figure", {},
    el("div", { class: "tools" }, select("grid-metric", "Metric", metrics, key, (value) => (chosen.metric = value)), axes.length > 1 && select("grid-axis", "Rows", axes, axis, (value) => (chosen.axis = value)), readout),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Grid of ranks" }, canvas),
    el("figcaption", { class: "quiet scale" }, show(low), el("span", { class: "gradient", "aria-hidden": "true" }), show(high), ` ${title}; framed: culprit; a click opens the rank`));
}

export const gridChoice = () => [chosen.axis, chosen.metric];

function paint(canvas, { places, lines, cell, width, key, low, high }) {
  const ratio = window.devicePixelRatio || 1;
  const height = lines * cell + 2;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.setProperty("width", `${width}px`);
  canvas.style.setProperty("height", `${height}px`);
  const color = (name) => getComputedStyle(canvas).getPropertyValue(name).trim();
  const [full, paper, ink, bad] = ["--forward", "--rule", "--quiet", "--bad"].map(color);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "11px system-ui, DejaVu Sans, sans-serif";
  pen.textBaseline = "middle";
  let named = -20;
  for (const { row, x, y, name } of places) {
    const [left, top] = [LABEL_PX + x * cell, y * cell];
    if (name && top - named >= 12) {
      pen.globalAlpha = 1;
      pen.fillStyle = ink;
      pen.fillText(name.length > 14 ? `…${name.slice(-13)}` : name, 0, top + cell / 2);
      named = top;
    }
    const size = Math.max(1, cell - (cell > 6 ? 2 : 1));
    pen.globalAlpha = 1;
    pen.fillStyle = paper;
    pen.fillRect(left, top, size, size);
    if (row[key] != null) {
      pen.globalAlpha = high > low ? 0.12 + (0.88 * (row[key] - low)) / (high - low) : 0.5;
      pen.fillStyle = full;
      pen.fillRect(left, top, size, size);
    }
    if (row.culprit) {
      pen.globalAlpha = 1;
      pen.strokeStyle = bad;
      pen.lineWidth = 2;
      pen.strokeRect(left + 1, top + 1, size - 2, size - 2);
    }
  }
}

// As Map.groupBy, which browsers from before 2024 lack.
export function grouped(rows, keyOf) {
  const groups = new Map();
  for (const row of rows) {
    const key = keyOf(row);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(row);
  }
  return [...groups];
}

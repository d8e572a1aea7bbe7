// Ranks by metric: a cell's color is the distance from the median of all ranks. Many ranks are drawn as one image,
// with a table of the most unusual ones below.

import { el } from "./dom.js";
import { signedPercent, UNKNOWN } from "./format.js";
import { jobAddress } from "./paths.js";
import { METRICS, middle, rankRows } from "./rank_rows.js";

const TABLE_ROWS = 64;
const UNUSUAL_ROWS = 12;
const QUIET = 0.05;
const FULL = 0.4;
const ROW_PX = 22;

export function heatMap(job, width) {
  const rows = rankRows(job);
  const metrics = METRICS.filter(([key]) => rows.some((row) => row[key] != null));
  if (!metrics.length) return null;
  const medians = new Map(metrics.map(([key]) => [key, middle(rows.map((row) => row[key]))]));
  const far = (row, key) => deviation(row[key], medians.get(key), key);
  const strangeness = (row) => (row.culprit ? 1e9 : 0) + Math.max(...metrics.map(([key]) => Math.abs(far(row, key))));
  const many = rows.length > TABLE_ROWS;
  const shown = many ? [...rows].sort((a, b) => strangeness(b) - strangeness(a)).slice(0, UNUSUAL_ROWS).filter((row, i) => i === 0 || strangeness(row) > QUIET) : rows;
  return el(
    "figure",
    {},
    many && picture(rows, metrics, far, width, shown[0]),
    table(job.name, new Set(rows.map((row) => row.stage)).size > 1, shown, metrics, far),
    el("figcaption", { class: "quiet" }, el("span", { class: "swatch above" }), "above and ", el("span", { class: "swatch below" }), `below the median of ranks.${many ? ` The table has ${shown.length === 1 ? "the most unusual" : `the ${shown.length} most unusual`} of ${rows.length}.` : ""}`),
  );
}

function table(name, stages, shown, metrics, far) {
  const line = (row) =>
    el("tr", { class: row.culprit && "culprit" },
      el("th", { scope: "row" }, row.rank == null ? row.name : el("a", { href: jobAddress(name, `ranks/${row.rank}`) }, row.name), row.culprit && el("span", { class: "limit" }, " culprit"), row.where && el("small", {}, [row.where, stages && row.stage != null && `stage ${row.stage}`].filter(Boolean).join(" · "))),
      metrics.map(([key, , show]) => cell(row[key], far(row, key), show)));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Ranks by metric" },
    el("table", { class: "heat", id: "ranks" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Rank"), metrics.map(([, name]) => el("th", { scope: "col" }, name)))), el("tbody", {}, shown.map(line))));
}

const strength = (far) => Math.min(Math.max((Math.abs(far) - QUIET) / (FULL - QUIET), 0), 1);

function cell(value, far, show) {
  const size = strength(far);
  const side = size === 0 ? null : far > 0 ? "above" : "below";
  const says = side && `${signedPercent(far)} from the median`;
  return el("td", { class: side, title: says, style: { "--far": `${(size * 100).toFixed(0)}%` } }, value == null ? UNKNOWN : show(value));
}

// One row per metric, one column per rank; with more ranks than pixels, a column shows its most unusual rank.
function picture(rows, metrics, far, width, strangest) {
  const canvas = el("canvas", { id: "rank-picture", role: "img", "aria-label": `${rows.length} ranks by ${metrics.length} metrics. Most unusual: ${strangest.name}.` });
  const readout = el("output", { class: "readout", id: "rank-readout" });
  const columns = Math.min(rows.length, Math.max(64, Math.floor(width)));
  const group = (column) => rows.slice(Math.floor((column * rows.length) / columns), Math.floor(((column + 1) * rows.length) / columns));
  const worst = (column, key) => group(column).reduce((most, row) => (Math.abs(far(row, key)) > Math.abs(far(most, key)) ? row : most));
  // Fonts and colors are known once the canvas is in the page.
  requestAnimationFrame(() => paint(canvas, columns, metrics, (column, key) => far(worst(column, key), key), (column) => group(column).some((row) => row.culprit)));
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.min(Math.max(Math.floor(((event.clientX - box.left) / box.width) * columns), 0), columns - 1);
    const [key, name, show] = metrics[Math.min(Math.max(Math.floor((event.clientY - box.top) / ROW_PX), 0), metrics.length - 1)];
    const row = worst(column, key);
    readout.textContent = `${row.name}${row.where ? ` (${row.where})` : ""}: ${name} ${row[key] == null ? UNKNOWN : show(row[key])}`;
  });
  return el("div", { class: "picture" }, el("div", { class: "chart-head" }, el("span", { class: "quiet" }, `${rows[0].name} to ${rows.at(-1).name}`), readout),
    el("div", { class: "lines" }, el("ul", { "aria-hidden": "true" }, metrics.map(([, name]) => el("li", {}, name))), canvas));
}

function paint(canvas, columns, metrics, far, isCulprit) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const [mark, height] = [6, metrics.length * ROW_PX];
  canvas.width = width * ratio;
  canvas.height = (height + mark) * ratio;
  canvas.style.setProperty("height", `${height + mark}px`);
  const pen = canvas.getContext("2d");
  const color = (name) => getComputedStyle(canvas).getPropertyValue(name);
  const sides = [color("--below"), color("--above")];
  pen.scale(ratio, ratio);
  pen.fillStyle = color("--card");
  pen.fillRect(0, 0, width, height);
  for (let column = 0; column < columns; column += 1) {
    const [left, right] = [(column * width) / columns, ((column + 1) * width) / columns];
    metrics.forEach(([key], i) => {
      const found = far(column, key);
      pen.globalAlpha = strength(found);
      pen.fillStyle = sides[found > 0 ? 1 : 0];
      pen.fillRect(left, i * ROW_PX, Math.max(right - left, 2), ROW_PX - 2);
    });
    pen.globalAlpha = 1;
    if (isCulprit(column)) {
      pen.fillStyle = color("--bad");
      pen.fillRect(left - 2, height, Math.max(right - left, 2) + 4, mark);
    }
  }
}

// Relative, with a floor for shares: 2% is not far from 1%.
function deviation(value, middle, key) {
  if (value == null || middle == null) return 0;
  // Degrees Celsius have no zero to be a share of.
  const scale = key === "temperature_celsius" ? middle + 273 : Math.abs(middle);
  return (value - middle) / Math.max(scale, key.endsWith("_ratio") ? 0.1 : 1e-9);
}

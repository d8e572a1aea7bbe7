// Ranks by metric: a cell's color is the distance from the median of all ranks. Many ranks are drawn as one image,
// with a table of the most unusual ones below.

import { color, el } from "./dom.js";
import { signedPercent, UNKNOWN } from "./format.js";
import { jobAddress } from "./paths.js";
import { components, pixelImage } from "./pixels.js";
import { metricsOf, rankAt, rankName, whereOf } from "./rank_metrics.js";
import { keptWidth, whenSeen } from "./view.js";

const QUIET = 0.05;
const FULL = 0.4;
const ROW_PX = 22;
const MARK_PX = 6;

export function heatMap(job, ranks) {
  const metrics = metricsOf(ranks);
  if (!metrics.length) return null;
  const shown = ranks.rows;
  return el(
    "figure",
    {},
    ranks.picture && picture(ranks, metrics),
    table(job.name, ranks.stages > 1, shown, metrics),
    ranks.count > 1 && el("figcaption", { class: "quiet" }, el("span", { class: "swatch above" }), "above and ", el("span", { class: "swatch below" }), `below the median of ranks.${shown.length < ranks.count ? ` The table has ${shown.length === 1 ? "the most unusual" : `the ${shown.length} most unusual`} of ${ranks.count}.` : ""}`),
  );
}

function table(name, stages, shown, metrics) {
  const line = (row) =>
    el("tr", { class: row.culprit && "culprit" },
      el("th", { scope: "row" }, row.rank == null ? rankName(row) : el("a", { href: jobAddress(name, `ranks/${row.rank}`) }, rankName(row)), row.culprit && el("span", { class: "limit" }, " culprit"), whereOf(row) && el("small", {}, [whereOf(row), stages && row.stage != null && `stage ${row.stage}`].filter(Boolean).join(" · "))),
      metrics.map(([key, , show]) => cell(row.values[key], row.deviation[key] ?? 0, show)));
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
function picture({ picture: drawn, grid, count: all, rows }, metrics) {
  const { columns, values, deviation } = drawn;
  const canvas = el("canvas", { id: "rank-picture", role: "img", "aria-label": `${all} ranks by ${metrics.length} metrics. Most unusual: ${rankName(rows[0])}.`, style: { height: `${metrics.length * ROW_PX + MARK_PX}px` } });
  const readout = el("output", { class: "readout", id: "rank-readout" });
  const named = (i) => (i < (grid?.values.length ?? 0) ? `rank ${rankAt(grid, i)}` : "a GPU without a rank");
  const first = (column) => Math.floor((column * all) / columns);
  const of = (column) => (first(column + 1) - first(column) > 1 ? `${named(first(column))} to ${named(first(column + 1) - 1)}, most unusual` : named(first(column)));
  whenSeen(canvas, () => paint(canvas, columns, metrics, deviation, new Set(drawn.culprits)));
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.min(Math.max(Math.floor(((event.clientX - box.left) / box.width) * columns), 0), columns - 1);
    const [key, name, show] = metrics[Math.min(Math.max(Math.floor((event.clientY - box.top) / ROW_PX), 0), metrics.length - 1)];
    const value = values[key][column];
    readout.textContent = `${of(column)}: ${name} ${value == null ? UNKNOWN : show(value)}`;
  });
  return el("div", { class: "picture" }, el("div", { class: "chart-head" }, el("span", { class: "quiet" }, `${named(0)} to ${named(all - 1)}`), readout),
    el("div", { class: "lines" }, el("ul", { "aria-hidden": "true" }, metrics.map(([, name]) => el("li", {}, name))), canvas));
}

function paint(canvas, columns, metrics, deviation, culprits) {
  const ratio = window.devicePixelRatio || 1;
  const width = keptWidth("rank-picture", () => canvas.clientWidth);
  const height = metrics.length * ROW_PX;
  canvas.width = width * ratio;
  canvas.height = (height + MARK_PX) * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.imageSmoothingEnabled = false;
  pen.fillStyle = color("--card");
  pen.fillRect(0, 0, width, height);
  const [below, above] = [components("--below"), components("--above")];
  // Drawn smaller, an image loses columns: of those that share a pixel, the most unusual one is kept.
  const across = Math.min(columns, canvas.width);
  const image = pixelImage(across, metrics.length, (put) => {
    for (const [line, [key]] of metrics.entries()) {
      const shown = new Array(across).fill(0);
      deviation[key].forEach((found, column) => {
        const place = Math.floor((column * across) / columns);
        if (strength(found) > strength(shown[place])) shown[place] = found;
      });
      shown.forEach((found, place) => put(line * across + place, found > 0 ? above : below, strength(found)));
    }
  });
  pen.drawImage(image, 0, 0, width, height);
  for (let line = 1; line <= metrics.length; line += 1) pen.fillRect(0, line * ROW_PX - 2, width, 2);
  // A column of one pixel is hard to see.
  const [left, size] = [(column) => (column * width) / columns, Math.max(width / columns, 2)];
  pen.fillStyle = color("--bad");
  for (const column of culprits) pen.fillRect(left(column) - 2, height, size + 4, MARK_PX);
}

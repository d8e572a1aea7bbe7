// Ranks as a grid: a row per node or pipeline stage, a cell per rank, colored by one metric. A click opens the rank.

import { color, el } from "./dom.js";
import { count, UNKNOWN } from "./format.js";
import { grouped, runAt } from "./groups.js";
import { jobAddress } from "./paths.js";
import { components, pixelImage } from "./pixels.js";
import { metricsOf, rankAt } from "./rank_metrics.js";
import { whenSeen } from "./view.js";

const LEAST_RANKS = 8;
const MOST_CELL_PX = 26;
const LEAST_CELL_PX = 3;
const LABEL_PX = 92;
const MOST_HEIGHT_PX = 640;
const LABEL_HEIGHT_PX = 12;
const SHADES = 64;
const AXES = [["nodes", "Nodes", (node) => node ?? "unknown"], ["stages", "Stages", (stage) => (stage == null ? "unknown" : `stage ${stage}`)]];
const chosen = { axis: "nodes", metric: null };

export const gridChoice = () => ({ ...chosen });

function axesOf({ grid, stages }) {
  if ((grid?.values.length ?? 0) < LEAST_RANKS) return [];
  return AXES.filter(([name]) => grid[name].some(([value]) => value != null) && (name === "nodes" || stages > 1));
}

const axisOf = (axes) => axes.find(([name]) => name === chosen.axis) ?? axes[0];

// What can be chosen of the grid; null for jobs without one.
export function gridOptions(ranks) {
  const axes = axesOf(ranks);
  if (!axes.length) return null;
  // What shows the culprit at first stays, whatever other metrics do.
  if (ranks.grid.culprits.length) chosen.metric ??= ranks.grid.metric;
  const named = (all) => all.map(([key, title]) => [key, title]);
  return { metrics: named(metricsOf(ranks)), metric: ranks.grid.metric, axes: named(axes), axis: axisOf(axes)[0] };
}

// Apart from the grid: browsers search the page for forms whenever an element of one is replaced.
export function gridTools({ metrics, metric, axes, axis }, again) {
  const select = (id, label, values, now, set) => {
    const box = el("select", { id, "aria-label": label }, values.map(([value, text]) => el("option", { value, selected: value === now }, text)));
    box.addEventListener("change", () => {
      set(box.value);
      again();
    });
    return box;
  };
  return el("div", { class: "tools" }, select("grid-metric", "Metric", metrics, metric, (value) => (chosen.metric = value)), axes.length > 1 && select("grid-axis", "Rows", axes, axis, (value) => (chosen.axis = value)));
}

export function rankGrid(job, ranks, width) {
  const axes = axesOf(ranks);
  if (!axes.length) return null;
  const grid = ranks.grid;
  const total = grid.values.length;
  const [axis, , titleOf] = axisOf(axes);
  const [, title, show] = metricsOf(ranks).find(([key]) => key === grid.metric);
  const { lowest, highest } = ranks.metrics[grid.metric];
  const laid = arranged(grid[axis], total, width - LABEL_PX - 20);
  const culprits = new Set(grid.culprits);
  const readout = el("output", { class: "readout", id: "grid-readout" });
  const says = `${count(total)} ranks by ${axis.slice(0, -1)}: ${title} from ${show(lowest)} to ${show(highest)}. The table below has the same numbers.`;
  const [wide, high] = sizeOf(laid);
  const canvas = el("canvas", { id: "rank-grid", role: "img", "aria-label": says, style: { width: `${wide}px`, height: `${high}px` } });
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    const [column, line] = [Math.floor((event.clientX - box.left - LABEL_PX) / laid.cell), Math.floor((event.clientY - box.top) / laid.cell)];
    const found = column < 0 || column >= laid.columns ? -1 : laid.places.indexOf(line * laid.columns + column);
    if (found < 0) return null;
    const [node] = runAt(grid.nodes, found);
    return { rank: rankAt(grid, found), where: node == null ? "" : ` (${node}/${grid.gpus[found]})`, value: grid.values[found], culprit: culprits.has(found) };
  };
  canvas.addEventListener("pointermove", (event) => {
    const row = at(event);
    canvas.style.setProperty("cursor", row ? "pointer" : "default");
    readout.textContent = row ? `rank ${row.rank}${row.where}: ${title} ${row.value == null ? UNKNOWN : show(row.value)}${row.culprit ? ", culprit" : ""}` : "";
  });
  canvas.addEventListener("click", (event) => {
    const row = at(event);
    if (row) location.assign(jobAddress(job.name, `ranks/${row.rank}`));
  });
  whenSeen(canvas, () => paint(canvas, laid, titleOf, grid, lowest, highest));
  return el("figure", {},
    readout,
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Grid of ranks" }, canvas),
    el("figcaption", { class: "quiet scale" }, show(lowest), el("span", { class: "gradient", "aria-hidden": "true" }), show(highest), ` ${title}; framed: culprit; a click opens the rank`));
}

// The same ranks are drawn in the same places, round after round.
const newest = { key: null, laid: null };

function arranged(runs, total, width) {
  const key = JSON.stringify([runs, total, width]);
  if (newest.key !== key) Object.assign(newest, { key, laid: arrange(runs, total, width) });
  return newest.laid;
}

// Where each rank is drawn. Groups are lines; where these would be too many, several stand side by side, and a group
// that is wider than the window goes on in the next line. Cells are as large as the height allows.
function arrange(runs, total, width) {
  let next = 0;
  const members = runs.flatMap(([name, length]) => Array.from({ length }, () => [name, next++]));
  const groups = grouped(members, ([name]) => name);
  const wide = groups.reduce((most, [, rows]) => Math.max(most, rows.length), 1);
  let laid = null;
  for (let cell = MOST_CELL_PX; cell >= LEAST_CELL_PX; cell -= 1) {
    const fit = Math.max(1, Math.floor(width / cell));
    const beside = groups.length * cell > MOST_HEIGHT_PX ? Math.max(1, Math.floor((fit + 1) / (wide + 1))) : 1;
    const columns = beside > 1 ? beside * (wide + 1) - 1 : Math.min(wide, fit);
    const lines = beside > 1 ? Math.ceil(groups.length / beside) : groups.reduce((sum, [, rows]) => sum + Math.ceil(rows.length / columns), 0);
    laid = { cell, beside, columns, lines };
    if (lines * cell <= MOST_HEIGHT_PX && (beside > 1 || wide <= fit || cell <= 8)) break;
  }
  const [places, labels] = [new Int32Array(total), []];
  let y = 0;
  for (const [i, [name, rows]] of groups.entries()) {
    const first = laid.beside > 1 ? (i % laid.beside) * (wide + 1) : 0;
    if (first === 0) labels.push([y, name]);
    for (const [j, [, row]] of rows.entries()) places[row] = laid.beside > 1 ? y * laid.columns + first + j : y * laid.columns + j;
    y += laid.beside > 1 ? Number(first + wide === laid.columns) : Math.ceil(rows.length / laid.columns);
  }
  return { ...laid, places, labels };
}

const sizeOf = ({ cell, columns, lines }) => [LABEL_PX + columns * cell + 4, lines * cell + 2];

function paint(canvas, { cell, columns, lines, places, labels }, titleOf, { values, culprits }, low, high) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = sizeOf({ cell, columns, lines });
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(pixels(columns, lines, places, values, low, high), LABEL_PX, 0, columns * cell, lines * cell);
  // Cells were drawn without the gaps between them: thousands are one image.
  pen.fillStyle = color("--paper");
  const gap = cell > 6 ? 2 : 1;
  for (let x = 1; x <= columns; x += 1) pen.fillRect(LABEL_PX + x * cell - gap, 0, gap, lines * cell);
  for (let y = 1; y <= lines; y += 1) pen.fillRect(LABEL_PX, y * cell - gap, columns * cell, gap);
  pen.strokeStyle = color("--bad");
  pen.lineWidth = 2;
  for (const row of culprits) pen.strokeRect(LABEL_PX + (places[row] % columns) * cell, Math.floor(places[row] / columns) * cell, cell - 1, cell - 1);
  pen.font = "11px system-ui, DejaVu Sans, sans-serif";
  pen.textBaseline = "middle";
  pen.fillStyle = color("--quiet");
  let named = -LABEL_HEIGHT_PX;
  for (const [line, value] of labels) {
    if (line * cell - named < LABEL_HEIGHT_PX) continue;
    const name = titleOf(value);
    pen.fillText(name.length > 14 ? `…${name.slice(-13)}` : name, 0, line * cell + Math.max(cell, LABEL_HEIGHT_PX) / 2);
    named = line * cell;
  }
}

function pixels(columns, lines, places, values, low, high) {
  const [empty, full] = [components("--rule"), components("--forward")];
  const mixed = (part) => empty.map((one, i) => one + part * (full[i] - one));
  const shades = Array.from({ length: SHADES + 1 }, (_, i) => mixed(0.12 + (0.88 * i) / SHADES));
  const shade = (value) => (value == null ? empty : shades[high > low ? Math.round((SHADES * (value - low)) / (high - low)) : SHADES / 2]);
  return pixelImage(columns, lines, (put) => values.forEach((value, row) => put(places[row], shade(value))));
}

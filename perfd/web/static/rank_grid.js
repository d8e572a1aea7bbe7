// Ranks as a grid: a row per node or pipeline stage, a cell per rank, colored by one metric. A click opens the rank.

import { el } from "./dom.js";
import { count, UNKNOWN } from "./format.js";
import { counted, grouped, repeated } from "./groups.js";
import { jobAddress } from "./paths.js";
import { metricsOf } from "./rank_metrics.js";

const LEAST_RANKS = 8;
const MOST_CELL_PX = 26;
const LEAST_CELL_PX = 3;
const LABEL_PX = 92;
const MOST_HEIGHT_PX = 640;
const LABEL_HEIGHT_PX = 12;
const AXES = [["node", "Nodes", (row) => row.node], ["stage", "Stages", (row) => (row.stage == null ? null : `stage ${row.stage}`)]];
const chosen = { axis: "node", metric: null };

export const gridChoice = () => ({ ...chosen });

export function rankGrid(job, ranks, width, again) {
  const grid = ranks.grid;
  if (!grid || grid.values.length < LEAST_RANKS) return null;
  const [numbers, nodes, stages, culprits] = [counted(grid.ranks), repeated(grid.nodes), repeated(grid.stages), new Set(grid.culprits)];
  const rows = grid.values.map((value, i) => ({ value, rank: numbers[i], node: nodes[i], gpu: grid.gpus[i], stage: stages[i], culprit: culprits.has(i) }));
  const axes = AXES.filter(([name, , of]) => rows.some((row) => of(row) != null) && (name === "node" || ranks.stages > 1));
  if (!axes.length) return null;
  const [axis, , of] = axes.find(([name]) => name === chosen.axis) ?? axes[0];
  const metrics = metricsOf(ranks);
  const [, title, show] = metrics.find(([key]) => key === grid.metric);
  const { lowest: low, highest: high } = ranks.metrics[grid.metric];
  const laid = arrange(grouped(rows, (row) => of(row) ?? "unknown"), width - LABEL_PX - 20);
  const readout = el("output", { class: "readout", id: "grid-readout" });
  const says = `${count(rows.length)} ranks by ${axis}: ${title} from ${show(low)} to ${show(high)}. The table below has the same numbers.`;
  const canvas = el("canvas", { id: "rank-grid", role: "img", "aria-label": says });
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    const [column, line] = [Math.floor((event.clientX - box.left - LABEL_PX) / laid.cell), Math.floor((event.clientY - box.top) / laid.cell)];
    return column < 0 ? undefined : laid.at.get(line * laid.columns + column);
  };
  canvas.addEventListener("pointermove", (event) => {
    const row = at(event);
    canvas.style.setProperty("cursor", row ? "pointer" : "default");
    readout.textContent = row ? `rank ${row.rank}${row.node == null ? "" : ` (${row.node}/${row.gpu})`}: ${title} ${row.value == null ? UNKNOWN : show(row.value)}${row.culprit ? ", culprit" : ""}` : "";
  });
  canvas.addEventListener("click", (event) => {
    const row = at(event);
    if (row) location.assign(jobAddress(job.name, `ranks/${row.rank}`));
  });
  requestAnimationFrame(() => paint(canvas, laid, low, high));
  const select = (id, label, values, now, set) => {
    const box = el("select", { id, "aria-label": label }, values.map(([value, text]) => el("option", { value, selected: value === now }, text)));
    box.addEventListener("change", () => {
      set(box.value);
      again();
    });
    return box;
  };
  return el("figure", {},
    el("div", { class: "tools" }, select("grid-metric", "Metric", metrics, grid.metric, (value) => (chosen.metric = value)), axes.length > 1 && select("grid-axis", "Rows", axes, axis, (value) => (chosen.axis = value)), readout),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Grid of ranks" }, canvas),
    el("figcaption", { class: "quiet scale" }, show(low), el("span", { class: "gradient", "aria-hidden": "true" }), show(high), ` ${title}; framed: culprit; a click opens the rank`));
}

// Where each rank is drawn. Groups are lines; where these would be too many, several stand side by side, and a group
// that is wider than the window goes on in the next line. Cells are as large as the height allows.
function arrange(groups, width) {
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
  const [at, labels] = [new Map(), []];
  let y = 0;
  for (const [i, [name, rows]] of groups.entries()) {
    const first = laid.beside > 1 ? (i % laid.beside) * (wide + 1) : 0;
    if (first === 0) labels.push([y, name]);
    for (const [j, row] of rows.entries()) at.set((y + (laid.beside > 1 ? 0 : Math.floor(j / laid.columns))) * laid.columns + first + (laid.beside > 1 ? j : j % laid.columns), row);
    y += laid.beside > 1 ? Number(first + wide === laid.columns) : Math.ceil(rows.length / laid.columns);
  }
  return { ...laid, at, labels };
}

function paint(canvas, { cell, columns, lines, at, labels }, low, high) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [LABEL_PX + columns * cell + 4, lines * cell + 2];
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.setProperty("width", `${width}px`);
  canvas.style.setProperty("height", `${height}px`);
  const style = getComputedStyle(canvas);
  const color = (name) => style.getPropertyValue(name).trim();
  const [ink, bad, paper] = ["--quiet", "--bad", "--paper"].map(color);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(pixels(columns, lines, at, low, high, color), LABEL_PX, 0, columns * cell, lines * cell);
  // Cells were drawn without the gaps between them: thousands are one image.
  pen.fillStyle = paper;
  const gap = cell > 6 ? 2 : 1;
  for (let x = 1; x <= columns; x += 1) pen.fillRect(LABEL_PX + x * cell - gap, 0, gap, lines * cell);
  for (let y = 1; y <= lines; y += 1) pen.fillRect(LABEL_PX, y * cell - gap, columns * cell, gap);
  pen.strokeStyle = bad;
  pen.lineWidth = 2;
  for (const [place, row] of at) {
    if (row.culprit) pen.strokeRect(LABEL_PX + (place % columns) * cell, Math.floor(place / columns) * cell, cell - 1, cell - 1);
  }
  pen.font = "11px system-ui, DejaVu Sans, sans-serif";
  pen.textBaseline = "middle";
  pen.fillStyle = ink;
  let named = -LABEL_HEIGHT_PX;
  for (const [line, name] of labels) {
    if (line * cell - named < LABEL_HEIGHT_PX) continue;
    pen.fillText(name.length > 14 ? `…${name.slice(-13)}` : name, 0, line * cell + cell / 2);
    named = line * cell;
  }
}

// One pixel per rank.
function pixels(columns, lines, at, low, high, color) {
  const image = el("canvas", { width: columns, height: lines });
  const pen = image.getContext("2d");
  const [empty, full] = ["--rule", "--forward"].map((name) => {
    pen.fillStyle = color(name);
    pen.fillRect(0, 0, 1, 1);
    return pen.getImageData(0, 0, 1, 1).data;
  });
  const drawn = pen.createImageData(columns, lines);
  for (const [place, { value }] of at) {
    const part = value == null ? 0 : high > low ? 0.12 + (0.88 * (value - low)) / (high - low) : 0.5;
    for (let i = 0; i < 3; i += 1) drawn.data[4 * place + i] = empty[i] + part * (full[i] - empty[i]);
    drawn.data[4 * place + 3] = 255;
  }
  pen.putImageData(drawn, 0, 0);
  return image;
}

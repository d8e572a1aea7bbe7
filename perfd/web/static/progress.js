// A line over steps, drawn by uPlot, with alerts and captures marked. Pointer and arrow keys read single points,
// dragging zooms in, Escape or a double click zooms out.

/* global uPlot */
import { el } from "./dom.js";

const HEIGHT = 180;
const MANY_POINTS = 150;
const MOST_MARKS = 50;

const color = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(name);

// `show` formats a value; `update` draws newer numbers into the existing chart.
export function progressChart({ id, name, show }) {
  const readout = el("output", { class: "readout" });
  const place = el("div", { class: "plot", id: `${id}-drawing`, role: "img", tabindex: "0" });
  const keys = el("figcaption", { class: "quiet keys" });
  const element = el("figure", { id, class: "chart" }, el("div", { class: "chart-head" }, el("h2", {}, name), readout), place, keys);
  const held = { plot: null, now: null };

  const readAt = (index) => {
    const { series, values } = held.now;
    const at = index ?? values.length - 1;
    readout.textContent = `step ${series.step[at]}: ${show(values[at])}${series.steady[at] ? "" : " (not steady)"}`;
  };

  place.addEventListener("keydown", (event) => {
    const last = held.now.values.length - 1;
    const at = held.plot.cursor.idx ?? last;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") held.plot.setData(held.plot.data, true);
    if (to === undefined) return;
    event.preventDefault();
    point(held.plot, Math.min(Math.max(to, 0), last));
  });

  return {
    element,
    update({ series, values, marks, width }) {
      const known = values.some((value) => value != null);
      if (!known) {
        held.plot?.destroy();
        held.plot = null;
        keys.replaceChildren("Unknown for this job.");
        return;
      }
      const top = topOf(values, series.steady);
      held.now = { series, values, marks: marks.slice(-MOST_MARKS), top };
      const data = columns(held.now);
      if (held.plot?.width !== width) {
        held.plot?.destroy();
        place.replaceChildren();
        held.plot = new uPlot(options(held, { width, show, readAt }), data, place);
      } else {
        held.plot.setData(data, !isZoomed(held.plot));
      }
      place.setAttribute("aria-label", `${name} over steps ${series.step[0]} to ${series.step.at(-1)}. Use arrow keys to read single steps.`);
      keys.replaceChildren(...legend(held.now));
      readAt(held.plot.cursor.idx);
    },
  };
}

// The line, clipped to the axis, and the points that are not steady.
const columns = ({ series, values, top }) => [
  series.step,
  values.map((value) => (value == null ? null : Math.min(value, top))),
  values.map((value, i) => (value != null && value <= top && !series.steady[i] ? value : null)),
];

// The axis fits steady steps: a slow first step must not flatten the others.
function topOf(values, steady) {
  const usual = values.filter((value, i) => value != null && steady[i]);
  return nice(1.1 * Math.max(...(usual.length ? usual : values.filter((value) => value != null))));
}

function nice(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((times) => times * power >= value * 0.999999) * power;
}

function options(held, { width, show, readAt }) {
  const line = color("--forward");
  const axis = { stroke: color("--quiet"), grid: { stroke: color("--rule"), width: 1 }, ticks: { show: false }, font: "12px system-ui, DejaVu Sans, sans-serif" };
  const hollow = { show: true, size: 7, width: 1.5, stroke: line, fill: color("--card") };
  return {
    width,
    height: HEIGHT,
    padding: [18, 16, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 8 }, sync: { key: "steps", scales: ["x", null] }, drag: { x: true, y: false } },
    scales: { x: { time: false, range: (_, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) }, y: { range: () => [0, held.now.top] } },
    axes: [
      { ...axis, size: 26, space: 80, values: (_, ticks) => ticks.map((step, i) => (i ? String(step) : `step ${step}`)), incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6] },
      { ...axis, size: 74, gap: 11, splits: () => [0, 0.5, 1].map((part) => part * held.now.top), values: (_, ticks) => ticks.map((value) => show(value)) },
    ],
    series: [
      {},
      { stroke: line, width: 2, points: { show: held.now.values.length <= MANY_POINTS, size: 5, fill: line } },
      { stroke: line, paths: () => null, points: hollow },
    ],
    hooks: {
      setCursor: [(plot) => readAt(plot.cursor.idx)],
      draw: [(plot) => drawBeyond(plot, held.now), (plot) => placeMarks(plot, held.now.marks)],
    },
  };
}

// Triangles at the top of the axis.
function drawBeyond(plot, { series, values, top }) {
  const [size, y] = [4 * devicePixelRatio, plot.bbox.top];
  plot.ctx.save();
  plot.ctx.fillStyle = color("--quiet")();
  values.forEach((value, i) => {
    const x = plot.valToPos(series.step[i], "x", true);
    if (!(value > top) || x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) return;
    plot.ctx.beginPath();
    plot.ctx.moveTo(x - size, y);
    plot.ctx.lineTo(x + size, y);
    plot.ctx.lineTo(x, y - 2 * size);
    plot.ctx.fill();
  });
  plot.ctx.restore();
}

// As elements, so that they have accessible names.
function placeMarks(plot, marks) {
  const { min, max } = plot.scales.x;
  const inside = marks.filter((mark) => mark.step >= min && mark.step <= max);
  const element = (mark) => {
    const says = `${mark.text}, step ${mark.step}`;
    return el("span", { class: `mark ${mark.kind}`, role: "img", title: says, "aria-label": says, style: { left: `${plot.valToPos(mark.step, "x").toFixed(1)}px` } });
  };
  for (const old of plot.over.querySelectorAll(".mark")) old.remove();
  plot.over.append(...inside.map(element));
}

function legend({ series, values, marks, top }) {
  const of = (kind) => [...new Set(marks.filter((mark) => mark.kind === kind).map((mark) => mark.text))];
  const says = [
    ["alert", "▲ ", of("alert")],
    ["capture", "■ ", of("capture")],
  ].flatMap(([kind, sign, names]) => (names.length ? [el("span", { class: `key ${kind}` }, sign, names.slice(0, 4).join(", "), names.length > 4 && ` and ${names.length - 4} more`)] : []));
  if (series.steady.includes(false)) says.push(el("span", {}, "○ not steady"));
  if (values.some((value) => value > top)) says.push(el("span", {}, "▲ beyond the axis"));
  return says;
}

const isZoomed = (plot) => plot.scales.x.min > plot.data[0][0] || plot.scales.x.max < plot.data[0].at(-1);

// Also moves the cursor of the other charts.
function point(plot, index) {
  plot.setCursor({ left: plot.valToPos(plot.data[0][index], "x"), top: 0 }, true, true);
}

// A line over steps, with alerts and captures marked. Pointer and arrow keys read single points.

import { el, svg } from "./dom.js";

const HEIGHT = 170;
const LEFT = 68;
const RIGHT = 12;
const TOP = 18;
const BOTTOM = 24;
const MANY_POINTS = 150;

export function progressChart({ id, name, values, series, marks, width, show }) {
  const known = values.some((value) => value != null);
  if (!known) return el("figure", { id }, el("h2", {}, name), el("p", { class: "quiet" }, "Not known for this job."));
  const scale = scales(series.step, values, series.steady, width);
  const readout = el("output", { class: "readout" });
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const chart = svg(
    "svg",
    { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", tabindex: "0", id: `${id}-drawing`, "aria-label": `${name} over steps ${series.step[0]} to ${series.step.at(-1)}. Arrow keys read single steps.` },
    grid(scale, width, show),
    marks.map((mark) => markLine(mark, scale)),
    svg("path", { class: "line", d: path(series.step, values, scale) }),
    points(series, values, scale),
    cursor,
  );
  listen(chart, cursor, readout, { series, values, scale, show });
  return el("figure", { id, class: "chart" }, el("div", { class: "chart-head" }, el("h2", {}, name), readout), chart, legend(marks, values, scale, series));
}

// The axis fits what is steady: a first step of a minute must not flatten all others.
function scales(steps, values, steady, width) {
  const usual = values.filter((value, i) => value != null && steady[i]);
  const top = nice(1.1 * Math.max(...(usual.length ? usual : values.filter((value) => value != null))));
  const first = steps[0];
  const span = Math.max(steps.at(-1) - first, 1);
  return {
    first, last: steps.at(-1), top,
    x: (step) => LEFT + ((step - first) / span) * (width - LEFT - RIGHT),
    y: (value) => HEIGHT - BOTTOM - (Math.min(value, top) / top) * (HEIGHT - TOP - BOTTOM),
  };
}

function nice(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((times) => times * power >= value) * power;
}

function grid(scale, width, show) {
  const level = (part) => {
    const y = scale.y(scale.top * part);
    return [svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }), svg("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, show(scale.top * part))];
  };
  const base = HEIGHT - 6;
  return [
    ...[0, 0.5, 1].flatMap(level),
    svg("text", { x: LEFT, y: base }, `step ${scale.first}`),
    svg("text", { x: width - RIGHT, y: base, "text-anchor": "end" }, `step ${scale.last}`),
  ];
}

function path(steps, values, scale) {
  let pen = "M";
  return values
    .map((value, i) => {
      if (value == null) {
        pen = "M";
        return "";
      }
      const point = `${pen}${scale.x(steps[i]).toFixed(1)} ${scale.y(value).toFixed(1)}`;
      pen = "L";
      return point;
    })
    .join("");
}

function points(series, values, scale) {
  return values.map((value, i) => {
    const beyond = value > scale.top;
    if (value == null || (values.length > MANY_POINTS && series.steady[i] && !beyond)) return null;
    const x = scale.x(series.step[i]);
    if (beyond) return svg("path", { class: "beyond", d: `M${x - 4} ${TOP + 1}h8l-4 -7z` });
    return svg("circle", { class: series.steady[i] ? "dot" : "dot unsteady", cx: x, cy: scale.y(value), r: 3 });
  });
}

function markLine(mark, scale) {
  const x = scale.x(Math.min(Math.max(mark.step, scale.first), scale.last));
  return svg("g", { class: `mark ${mark.kind}` }, svg("title", {}, `${mark.text}, step ${mark.step}`), svg("line", { x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }), mark.kind === "alert" ? svg("path", { d: `M${x - 5} ${TOP}h10l-5 -10z` }) : svg("rect", { x: x - 4, y: TOP - 9, width: 8, height: 8 }));
}

function legend(marks, values, scale, series) {
  const of = (kind) => [...new Set(marks.filter((mark) => mark.kind === kind).map((mark) => mark.text))];
  const says = [
    ["alert", of("alert")],
    ["capture", of("capture")],
  ].flatMap(([kind, names]) => (names.length ? [el("span", { class: `key ${kind}` }, kind === "alert" ? "▲ " : "■ ", names.slice(0, 4).join(", "), names.length > 4 ? ` and ${names.length - 4} more` : "")] : []));
  if (series.steady.includes(false)) says.push(el("span", {}, "○ not steady"));
  if (values.some((value) => value > scale.top)) says.push(el("span", {}, "△ beyond the axis"));
  return says.length ? el("figcaption", { class: "quiet keys" }, says) : null;
}

function listen(chart, cursor, readout, { series, values, scale, show }) {
  let at = values.length - 1;
  const tell = (index, pointed) => {
    at = Math.min(Math.max(index, 0), values.length - 1);
    readout.textContent = `step ${series.step[at]}: ${show(values[at])}${series.steady[at] ? "" : " (not steady)"}`;
    const x = scale.x(series.step[at]);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.setAttribute("visibility", pointed ? "visible" : "hidden");
  };
  const nearest = (event) => {
    const x = event.clientX - chart.getBoundingClientRect().left;
    let best = 0;
    series.step.forEach((step, i) => {
      if (Math.abs(scale.x(step) - x) < Math.abs(scale.x(series.step[best]) - x)) best = i;
    });
    return best;
  };
  chart.addEventListener("pointermove", (event) => tell(nearest(event), true));
  chart.addEventListener("pointerdown", (event) => tell(nearest(event), true));
  chart.addEventListener("pointerleave", () => tell(values.length - 1, false));
  chart.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: values.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    tell(to, true);
  });
  tell(at, false);
}

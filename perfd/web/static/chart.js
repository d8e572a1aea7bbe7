// Lines over steps or time, drawn by uPlot. Charts of one group share cursor and zoom: pointer and arrow keys read
// single points in all of them, dragging and + zoom in, - zooms out, Escape, a double click or the button shows all.

/* global uPlot */
import { color, el } from "./dom.js";
import { drawNow, whenSeen } from "./view.js";
import { ZOOM_KEYS } from "./zoom.js";

const HEIGHT = 180;
const MANY_POINTS = 150;
const MOST_MARKS = 50;

// `show` formats a value. `update` draws newer numbers into the existing chart: `x` with `showX`, and `lines` of
// `name`, `values`, `color`, and where known `low` and `high`, between which a band is drawn. With `stacked` they are
// areas on top of each other. `steady` says of each point whether it counts.
export function lineChart({ id, name, show, group, most = Infinity, stacked = false }) {
  const readout = el("output", { class: "readout" });
  const place = el("div", { class: "plot", id: `${id}-drawing`, role: "img", tabindex: "0" });
  const keys = el("figcaption", { class: "quiet keys" });
  const [reset, csv, png] = [button("Reset zoom", () => group.zoom(null)), button("CSV", () => save(`${name}.csv`, csvOf(held.now))), button("PNG", () => { drawNow(place); savePicture(name, held); })];
  const tools = el("span", { class: "chart-tools" }, reset, csv, png);
  const element = el("figure", { id, class: "chart" }, el("div", { class: "chart-head" }, el("h2", {}, name), readout, tools), place, keys);
  const held = { plot: null, now: null, name };
  csv.setAttribute("aria-label", `Save ${name} as CSV`);
  png.setAttribute("aria-label", `Save ${name} as PNG`);
  reset.classList.add("reset");

  const readAt = (index) => {
    const { x, showX, lines, steady } = held.now;
    const at = Math.min(index ?? x.length - 1, x.length - 1);
    const values = lines.map((line) => `${lines.length > 1 ? `${line.name} ` : ""}${show(line.values[at])}`).join(", ");
    readout.textContent = `${showX(x[at])}: ${values}${steady && !steady[at] ? " (not steady)" : ""}`;
  };

  place.addEventListener("keydown", (event) => {
    drawNow(place);
    if (!held.plot) return;
    const last = held.now.x.length - 1;
    // The cursor is still that of the points before, if fewer were drawn just now.
    const at = Math.min(held.plot.cursor.idx ?? last, last);
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (next === undefined) {
      const { x } = held.now;
      if (group.press(event.key, [x[0], x[last]], x[at])) event.preventDefault();
      return;
    }
    event.preventDefault();
    // A plot that was drawn just now has no scale before its own microtask.
    queueMicrotask(() => held.plot && point(held.plot, Math.min(Math.max(next, 0), last)));
  });

  const follow = () => {
    reset.hidden = !group.range;
    if (held.plot) setRange(held.plot, group);
  };
  group.members.add({ follow });

  return {
    element,
    update({ x, showX, axisX = showX, time = false, lines, steady = null, marks = [], width }) {
      const known = lines.some((line) => line.values.some((value) => value != null));
      tools.hidden = !known;
      reset.hidden = !group.range;
      if (!known) {
        drawNow(place);
        held.plot?.destroy();
        held.plot = null;
        readout.textContent = "";
        keys.replaceChildren("Unknown for this job.");
        return;
      }
      const drawn = stacked ? stack(lines) : lines;
      held.now = { x, showX, axisX, time, lines, drawn, steady, marks: marks.slice(-MOST_MARKS), top: Math.min(most, topOf(drawn, steady)), name };
      whenSeen(place, () => {
        const shape = JSON.stringify([width, time, drawn.map((line) => [line.name, line.color, Boolean(line.low)])]);
        if (held.plot && held.shape === shape) {
          held.plot.setData(columns(held.now), false);
          setRange(held.plot, group);
          return;
        }
        held.plot?.destroy();
        place.replaceChildren();
        held.shape = shape;
        held.plot = new uPlot(options(held, { width, show, readAt, group, stacked }), columns(held.now), place);
        if (group.range) setRange(held.plot, group);
        // A plot that was made just now has no scale before its own microtask.
        queueMicrotask(() => held.plot && followCursor(held.plot, group));
      });
      place.setAttribute("aria-label", label(held.now, show));
      keys.replaceChildren(...legend(held.now));
      readAt(held.plot?.cursor.idx);
    },
  };
}

function button(text, act) {
  const made = el("button", { type: "button" }, text);
  made.addEventListener("click", act);
  return made;
}

// What a screen reader says: the range, and of each line where it ends and how far it goes.
function label({ name, x, showX, lines }, show) {
  const says = lines.map((line) => {
    const known = line.values.filter((value) => value != null);
    return known.length ? `${line.name}: newest ${show(known.at(-1))}, lowest ${show(Math.min(...known))}, highest ${show(Math.max(...known))}` : `${line.name}: unknown`;
  });
  return `${name} over ${showX(x[0])} to ${showX(x.at(-1))}. ${says.join("; ")}. Use arrow keys to read single points; ${ZOOM_KEYS}`;
}

// The highest area first: the lower ones are painted over it.
function stack(lines) {
  let sum = lines[0].values.map(() => 0);
  const areas = lines.map((line) => {
    sum = sum.map((value, i) => value + (line.values[i] ?? 0));
    return { ...line, values: [...sum] };
  });
  return areas.reverse();
}

// x; of each line its values, clipped to the axis, and its band; at last the points that are not steady.
function columns({ x, drawn, steady, top }) {
  const clipped = (values) => values.map((value) => (value == null ? null : Math.min(value, top)));
  const lines = drawn.flatMap((line) => [clipped(line.values), ...(line.low ? [clipped(line.low), clipped(line.high)] : [])]);
  const [first] = drawn;
  const hollow = x.map((_, i) => (steady && !steady[i] && first.values[i] != null && first.values[i] <= top ? first.values[i] : null));
  return [x, ...lines, hollow];
}

// The axis fits steady steps: a slow first step must not flatten the others.
function topOf(lines, steady) {
  const all = lines.flatMap((line) => line.high ?? line.values.filter((value, i) => value != null && (!steady || steady[i])));
  const known = all.filter((value) => value != null);
  return nice(1.1 * (known.length ? highest(known) : highest(lines.flatMap((line) => line.values).filter((value) => value != null))));
}

const highest = (values) => values.reduce((most, value) => Math.max(most, value), -Infinity);

function nice(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((times) => times * power >= value * 0.999999) * power;
}

function setRange(plot, group) {
  const x = plot.data[0];
  const [min, max] = group.range ?? [x[0], x.at(-1)];
  // A range that is set here must not be taken for one that was dragged.
  plot.following = true;
  plot.setScale("x", { min, max });
  plot.following = false;
}

function options(held, { width, show, readAt, group, stacked }) {
  const { drawn, time } = held.now;
  const axis = { stroke: () => color("--quiet"), grid: { stroke: () => color("--rule"), width: 1 }, ticks: { show: false }, font: "12px system-ui, DejaVu Sans, sans-serif" };
  const few = held.now.x.length <= MANY_POINTS && !stacked;
  const series = drawn.flatMap((line) => {
    const stroke = () => color(line.color);
    const main = { stroke, width: 2, ...(stacked && { fill: stroke }), points: { show: few && !line.low, size: 5, fill: stroke } };
    const edge = { stroke: "transparent", width: 0, points: { show: false } };
    return line.low ? [main, edge, edge] : [main];
  });
  let at = 0;
  const bands = drawn.flatMap((line) => {
    at += line.low ? 3 : 1;
    return line.low ? [{ series: [at, at - 1], fill: () => faded(color(line.color)) }] : [];
  });
  const ticksX = time ? { space: 90 } : { space: 80, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6] };
  return {
    width,
    height: HEIGHT,
    padding: [18, 16, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 8 }, sync: { key: group.key, scales: ["x", null] }, drag: { x: true, y: false, setScale: false } },
    scales: { x: { time: false, range: (_, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) }, y: { range: () => [0, held.now.top] } },
    axes: [
      { ...axis, size: 26, ...ticksX, values: (_, ticks) => ticks.map((value, i) => held.now.axisX(value, i)) },
      { ...axis, size: 74, gap: 11, splits: () => [0, 0.5, 1].map((part) => part * held.now.top), values: (_, ticks) => ticks.map((value) => show(value)) },
    ],
    series: [{}, ...series, { stroke: () => color(drawn[0].color), paths: () => null, points: { show: true, size: 7, width: 1.5, stroke: () => color(drawn[0].color), fill: () => color("--card") } }],
    bands,
    hooks: {
      setCursor: [(plot) => readAt(plot.cursor.idx)],
      setSelect: [
        (plot) => {
          const { left, width: wide } = plot.select;
          if (wide < 4) return;
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          group.zoom([plot.posToVal(left, "x"), plot.posToVal(left + wide, "x")]);
        },
      ],
      draw: [(plot) => drawBeyond(plot, held.now), (plot) => placeMarks(plot, held.now)],
      ready: [(plot) => plot.over.addEventListener("dblclick", () => group.zoom(null))],
    },
  };
}

const faded = (solid) => `color-mix(in srgb, ${solid} 22%, transparent)`;

// Triangles at the top of the axis.
function drawBeyond(plot, { x, drawn, top }) {
  const [size, y] = [4 * devicePixelRatio, plot.bbox.top];
  plot.ctx.save();
  plot.ctx.fillStyle = color("--quiet");
  for (const [i, value] of drawn[0].values.entries()) {
    if (!(value > top)) continue;
    const at = plot.valToPos(x[i], "x", true);
    if (at < plot.bbox.left || at > plot.bbox.left + plot.bbox.width) continue;
    plot.ctx.beginPath();
    plot.ctx.moveTo(at - size, y);
    plot.ctx.lineTo(at + size, y);
    plot.ctx.lineTo(at, y - 2 * size);
    plot.ctx.fill();
  }
  plot.ctx.restore();
}

// As elements, so that they have accessible names.
function placeMarks(plot, { marks, showX }) {
  const { min, max } = plot.scales.x;
  const inside = marks.filter((mark) => mark.x >= min && mark.x <= max);
  const element = (mark) => {
    const says = `${mark.text}, ${showX(mark.x)}`;
    return el("span", { class: `mark ${mark.kind}`, role: "img", title: says, "aria-label": says, style: { left: `${plot.valToPos(mark.x, "x").toFixed(1)}px` } });
  };
  for (const old of plot.over.querySelectorAll(".mark")) old.remove();
  plot.over.append(...inside.map(element));
}

function legend({ lines, steady, marks, drawn, top }) {
  const of = (kind) => [...new Set(marks.filter((mark) => mark.kind === kind).map((mark) => mark.text))];
  const says = lines.length > 1 || lines[0].low ? lines.map((line) => el("span", { class: "key" }, el("span", { class: "swatch", style: { background: `var(${line.color})` } }), line.name)) : [];
  if (lines.some((line) => line.low)) says.push(el("span", {}, "Line: median of GPUs; band: lowest to highest"));
  for (const [kind, sign] of [["alert", "▲ "], ["capture", "■ "]]) {
    const names = of(kind);
    if (names.length) says.push(el("span", { class: `key ${kind}` }, sign, names.slice(0, 4).join(", "), names.length > 4 && ` and ${names.length - 4} more`));
  }
  if (steady?.includes(false)) says.push(el("span", {}, "○ not steady"));
  if (drawn[0].values.some((value) => value > top)) says.push(el("span", {}, "▲ beyond the axis"));
  return says;
}

// Also moves the cursor of the other charts.
function point(plot, index) {
  plot.setCursor({ left: plot.valToPos(plot.data[0][index], "x"), top: 0 }, true, true);
}

// A chart that comes into view stands where the others of its group do.
function followCursor(plot, group) {
  const other = uPlot.sync(group.key).plots.find((one) => one !== plot && one.cursor.idx != null);
  if (other) plot.setCursor({ left: plot.valToPos(other.data[0][other.cursor.idx], "x"), top: 0 }, true, false);
}

const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

// What is drawn, unscaled; an empty cell is unknown.
function csvOf({ x, time, lines }) {
  const head = [time ? "time_unix_s" : "step", ...lines.flatMap((line) => [line.name, ...(line.low ? [`${line.name} lowest`, `${line.name} highest`] : [])])];
  const rows = x.map((at, i) => [at, ...lines.flatMap((line) => [line.values[i], ...(line.low ? [line.low[i], line.high[i]] : [])])].map((value) => value ?? ""));
  return new Blob([[head.map(quoted), ...rows].map((row) => `${row.join(",")}\n`).join("")], { type: "text/csv" });
}

function savePicture(name, { plot, now }) {
  const { canvas } = plot.ctx;
  const [ratio, head] = [devicePixelRatio || 1, 30 * (devicePixelRatio || 1)];
  const picture = el("canvas", { width: canvas.width, height: canvas.height + head });
  const pen = picture.getContext("2d");
  pen.fillStyle = color("--card");
  pen.fillRect(0, 0, picture.width, picture.height);
  pen.fillStyle = color("--ink");
  pen.font = `600 ${14 * ratio}px system-ui, sans-serif`;
  pen.fillText([name, now.lines.length > 1 && now.lines.map((line) => line.name).join(", ")].filter(Boolean).join(": "), 10 * ratio, 20 * ratio);
  pen.drawImage(canvas, 0, head);
  picture.toBlob((blob) => save(`${name}.png`, blob));
}

function save(name, blob) {
  const href = URL.createObjectURL(blob);
  el("a", { href, download: name.replaceAll(/[^\w.-]+/g, "-") }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

// The charts of a job: MFU, step time, loss and phases over its steps, and its GPUs over the last minutes. All of them
// share the cursor and the zoom, over steps or over time.

import { get, jobPath, missing } from "./api.js";
import { lineChart } from "./chart.js";
import { el, prose, section } from "./dom.js";
import { clock, count, duration, percent, power } from "./format.js";
import { contentWidth, keptWidth } from "./view.js";
import { chartGroup } from "./zoom.js";

const celsius = (value) => (value == null ? "-" : `${Math.round(value)} °C`);
const megahertz = (value) => (value == null ? "-" : `${Math.round(value / 1e6)} MHz`);
const number = (value) => (value == null ? "-" : value.toPrecision(4));

const group = chartGroup("job", () => refresh());
let refresh = () => {};
let overTime = new URLSearchParams(location.search).get("x") === "time";
let series = null;
// Seconds before the newest step, or all that history has; null: the steps in memory.
const RANGES = [["", "In memory"], ["900", "Last 15 min"], ["3600", "Last hour"], ["21600", "Last 6 h"], ["86400", "Last day"], ["604800", "Last 7 days"], ["all", "All"]];
let picked = RANGES.find(([value]) => value === new URLSearchParams(location.search).get("range"))?.[0] ?? "";
// Of GPUs, without another server.
const MEMORY_S = 300;
// The newest answer about GPUs, and when it came.
const gpus = { answer: null, at: -Infinity, asked: false };

const STEPS = [
  { chart: lineChart({ id: "mfu-chart", name: "MFU", show: percent, group }), values: (of) => of.mfu_ratio },
  { chart: lineChart({ id: "time-chart", name: "Step time", show: duration, group }), values: (of) => of.step_time_s },
  { chart: lineChart({ id: "loss-chart", name: "Loss", show: number, group }), values: (of) => of.loss },
];
const phases = lineChart({ id: "phases-chart", name: "Phases of a step", show: duration, group, stacked: true });
const PHASES = [["forward", "--forward"], ["backward", "--backward"], ["optimizer", "--optimizer"], ["rest", "--rest"]];
const GPUS = [
  ["sm_active_ratio", "SM active", percent], ["tensor_active_ratio", "Tensor cores active", percent], ["dram_active_ratio", "DRAM active", percent],
  ["memory_used_ratio", "GPU memory used", percent], ["power_w", "Power", power], ["temperature_celsius", "Temperature", celsius], ["sm_clock_hz", "SM clock", megahertz],
].map(([key, name, show]) => ({ key, chart: lineChart({ id: `gpu-${key}`, name, show, group, most: key.endsWith("_ratio") ? 1 : Infinity }) }));

// What the page asks for: the steps of the chosen range, so that a zoom shows single ones.
export function loadSeries(name) {
  const range = steps(group.range);
  const chosen = picked === "all" ? "?from=0" : picked && `?seconds=${picked}`;
  return get(`${jobPath(name)}/series${range ? `?from=${Math.floor(range[0])}&to=${Math.ceil(range[1])}` : chosen}`).catch(missing);
}

// GPUs come after all else: of thousands they take longest. There is nothing newer until an interval is over.
async function loadGpus(name, rank, draw) {
  const times = gpus.answer?.time_unix_s ?? [];
  const interval = times.length > 1 ? 1000 * (times[1] - times[0]) : 0;
  if (gpus.asked || performance.now() - gpus.at < interval) return;
  gpus.asked = true;
  try {
    const seconds = picked === "all" ? "inf" : picked;
    const asked = new URLSearchParams({ ...(rank != null && { rank }), ...(seconds && { seconds }) });
    gpus.problem = null;
    gpus.answer = await get(`${jobPath(name)}/gpu_series${asked.size ? `?${asked}` : ""}`).catch(unanswered);
    gpus.at = performance.now();
    draw();
  } catch {
    // The next round asks again, and the page says that nothing answers.
  } finally {
    gpus.asked = false;
  }
}

// The server of longer ranges may be away.
function unanswered(error) {
  if (error.status !== 503) return missing(error);
  gpus.problem = error.message;
  return null;
}

// What the axis covers, and what is missing of the range that was requested.
function gpuNote(found) {
  const times = found.time_unix_s;
  const span = times.at(-1) - times[0];
  const number = found.gpus === 1 ? "1 GPU" : `${count(found.gpus)} GPUs: median, lowest and highest`;
  const wanted = picked === "all" ? Infinity : Number(picked || 0);
  return [`GPUs, last ${span < MEMORY_S * 1.1 ? "5 minutes" : duration(span)}`, wanted > MEMORY_S && span < MEMORY_S * 1.1 ? `${number}. Longer ranges need a server in history.query_url.` : number];
}

// A range of the axis as steps.
function steps(range) {
  if (!range || !series?.step.length || !overTime) return range;
  const near = (time) => series.step[nearest(series.time_unix_s, time)];
  return range.map(near);
}

const nearest = (times, time) => times.reduce((best, one, i) => (Math.abs(one - time) < Math.abs(times[best] - time) ? i : best), 0);

// Where on the axis of steps a moment is, between the steps beside it.
function stepAt(time) {
  const { step, time_unix_s: times } = series;
  const after = times.findIndex((one) => one >= time);
  if (after < 0) return step.at(-1);
  if (after === 0) return times[0] === time ? step[0] : null;
  return step[after - 1] + ((step[after] - step[after - 1]) * (time - times[after - 1])) / Math.max(times[after] - times[after - 1], 1e-9);
}

const DAY_S = 86_400;
const moment = (unixS) => {
  const times = series?.time_unix_s ?? [];
  const date = new Date(unixS * 1000);
  // Hours alone are ambiguous over days.
  return times.at(-1) - times[0] > DAY_S ? `${date.toLocaleDateString("en-CA")} ${clock(date).slice(0, 5)}` : clock(date);
};

export function drawCharts(main, found, { name, rank = null, alerts = [], captures = [], again }) {
  refresh = again;
  series = found;
  const known = Boolean(found) && (found.step.length > 0 || Boolean(group.range));
  const absent = found ? "No steps yet." : "The steps of this job are no longer in memory or in history.";
  const shown = [...STEPS.filter((one, i) => i < 2 || (known && has(one.values(found)))).map(({ chart }) => chart), ...(known && has(found?.phases_s?.forward) ? [phases] : [])];
  section(main, "progress", [known, absent, overTime, picked, shown.length, found?.queried_problem], () =>
    known ? [toggle(again), ...(found.queried_problem ? [el("p", { class: "quiet", id: "queried-problem" }, prose(`Earlier steps are missing. ${found.queried_problem}`))] : []), ...shown.map((chart) => chart.element)] : [el("h2", {}, "Steps"), el("p", { class: "quiet" }, absent)]);
  if (known && found?.step.length) drawSteps(found, shown, marksOf(found, alerts, captures), contentWidth(main));
  const drawGpuSection = () => drawGpuCharts(main, known && found?.step.length > 1);
  drawGpuSection();
  loadGpus(name, rank, drawGpuSection);
}

function drawGpuCharts(main, bySteps) {
  const found = gpus.answer;
  const charted = found?.time_unix_s.length ? GPUS.filter(({ key }) => found.metrics[key]) : [];
  const [title, note] = charted.length ? gpuNote(found) : [];
  section(main, "gpu-charts", [charted.map(({ key }) => key), title, note, gpus.problem], () =>
    charted.length ? [el("h2", {}, title, el("small", {}, note)), el("div", { class: "small-charts" }, charted.map(({ chart }) => chart.element))] : gpus.problem ? [el("h2", {}, "GPUs"), el("p", { class: "quiet", id: "gpu-problem" }, prose(gpus.problem))] : []);
  // Between two answers only the axis can change.
  const print = JSON.stringify([bySteps, overTime, group.range, contentWidth(main), document.documentElement.dataset.theme]);
  if (!charted.length || (gpus.drawn === found && gpus.print === print)) return;
  Object.assign(gpus, { drawn: found, print });
  // All of them are as wide as the first.
  drawGpus(found, charted, bySteps, keptWidth("gpu-charts", () => charted[0].chart.element.clientWidth));
}

const has = (values) => Boolean(values?.some((value) => value != null));

// What was chosen is in the address, to send it.
function choose(name, value, again) {
  const asked = new URLSearchParams(location.search);
  if (value) asked.set(name, value);
  else asked.delete(name);
  history.replaceState(null, "", `${location.pathname}${asked.size ? `?${asked}` : ""}${location.hash}`);
  group.range = null;
  again();
}

function toggle(again) {
  const button = (text, time) => {
    const made = el("button", { type: "button", "aria-pressed": String(overTime === time) }, text);
    made.addEventListener("click", () => {
      overTime = time;
      choose("x", time && "time", again);
    });
    return made;
  };
  const ranges = el("select", { id: "range", "aria-label": "Range of the charts" }, RANGES.map(([value, text]) => el("option", { value, selected: value === picked }, text)));
  ranges.addEventListener("change", () => {
    picked = ranges.value;
    gpus.at = -Infinity;
    choose("range", picked, again);
  });
  return el("div", { class: "tools choice", role: "group", "aria-label": "Charts over" }, el("span", { class: "quiet" }, "Over"), button("Steps", false), button("Time", true), ranges);
}

const axis = () => (overTime ? { time: true, showX: moment, axisX: moment } : { showX: (step) => `step ${Math.round(step)}`, axisX: (step, i) => (i ? String(step) : `step ${step}`) });

function marksOf(found, alerts, captures) {
  const at = (unixS, step) => (overTime ? unixS : step);
  const stepOf = (unixS) => {
    const index = found.time_unix_s.findIndex((time) => time >= unixS);
    return found.step[index < 0 ? found.step.length - 1 : index];
  };
  return [
    ...alerts.filter((alert) => alert.first_step != null).map((alert) => ({ kind: "alert", x: at(alert.fired_at_unix_s, alert.first_step), text: alert.name })),
    ...captures.map((one) => ({ kind: "capture", x: at(one.requested_unix_s, stepOf(one.requested_unix_s)), text: `capture ${one.id}` })),
  ];
}

function drawSteps(found, shown, marks, width) {
  const common = { ...axis(), x: overTime ? found.time_unix_s : found.step, steady: found.steady, marks, width };
  for (const { chart, values } of STEPS) if (shown.includes(chart)) chart.update({ ...common, lines: [{ name: chart.element.querySelector("h2").textContent, values: values(found), color: "--forward" }] });
  if (!shown.includes(phases)) return;
  const of = found.phases_s;
  // Medians of the slowest ranks may be longer than the step.
  const rest = found.step_time_s.map((all, i) => (all == null ? null : Math.max(0, all - PHASES.reduce((sum, [name]) => sum + (of[name]?.[i] ?? 0), 0))));
  const lines = PHASES.filter(([name]) => name === "rest" || of[name]).map(([name, color]) => ({ name, color, values: name === "rest" ? rest : of[name] }));
  phases.update({ ...common, lines });
}

// Over steps where these are known: a sample lies between two of them.
function drawGpus(found, charted, bySteps, width) {
  const times = found.time_unix_s;
  const x = overTime || !bySteps ? times : times.map(stepAt);
  const kept = x.map((value, i) => [value, i]).filter(([value], i, all) => value != null && (i === 0 || all[i - 1][0] == null || value > all[i - 1][0])).map(([, i]) => i);
  const pick = (values) => kept.map((i) => values[i]);
  const place = overTime || !bySteps ? { time: true, showX: moment, axisX: moment } : axis();
  for (const { key, chart } of charted) {
    const of = found.metrics[key];
    const band = { name: "median", values: pick(of.median), low: pick(of.lowest), high: pick(of.highest), color: "--forward" };
    const lines = of.rank ? [{ name: "this rank", values: pick(of.rank), color: "--communication" }, band] : [band];
    chart.update({ ...place, x: pick(x), lines: found.gpus > 1 ? lines : [{ name: "GPU", values: pick(of.median), color: "--forward" }], width });
  }
}

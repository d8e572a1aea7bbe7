// Two runs side by side: what changed, by the comparison that `perfd compare` makes.

import { ApiError, get, jobPath, missing, overviewOf } from "./api.js";
import { breakdownBar } from "./bars.js";
import { lineChart } from "./chart.js";
import { el, prose, section } from "./dom.js";
import { count, duration, layout, percent, plural, signedPercent, UNKNOWN, words } from "./format.js";
import { captureAddress, compareAddress, jobAddress, to } from "./paths.js";
import { contentWidth } from "./view.js";
import { chartGroup } from "./zoom.js";

const MOST_SETTINGS = 60;
const MOST_NAMES = 200;
const MOST_KERNELS = 40;
const NAMES = {
  step_time_s: "Step time", tokens_per_s: "Tokens/s", mfu_ratio: "MFU", step_time_p95_s: "Step time p95", step_time_jitter_ratio: "Jitter of step time",
  pipeline_stall_ratio: "Pipeline stall", tensor_active_ratio: "Tensor cores active", memory_used_ratio: "GPU memory", communication_s: "Communication per step",
  data_loading_s: "Data loading per step", optimizer_s: "Optimizer per step", forward_s: "Forward per step", backward_s: "Backward per step", outside_timers_s: "Outside timers per step",
};
const SHOW = { s: duration, ratio: percent, "1/s": count, count };
const group = chartGroup("compare");
const charts = [
  { chart: lineChart({ id: "mfu-chart", name: "MFU", show: percent, group }), column: "mfu_ratio" },
  { chart: lineChart({ id: "time-chart", name: "Step time", show: duration, group }), column: "step_time_s" },
];

// Loads first and returns a draw function, so a failed request leaves the page as it was.
export async function showComparison(main, asked) {
  const [a, b, any] = [asked.get("a") ?? "", asked.get("b") ?? "", asked.get("unrelated") === "1"];
  if (!a || !b) {
    const { jobs } = await get(`fleet?limit=${MOST_NAMES}`);
    return () => section(main, "choose", [a, b, jobs.length], () => [el("h1", {}, "Compare two runs"), choose(a, b, jobs.map((job) => job.name))]);
  }
  const path = `compare?a=${encodeURIComponent(a)}&b=${encodeURIComponent(b)}${any ? "&unrelated=1" : ""}`;
  let found;
  try {
    found = await get(path);
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 409) throw error;
    return () => section(main, "refused", [a, b, error.message], () => [refusal(a, b, error.message)]);
  }
  const names = [a, b];
  const [jobs, series] = await Promise.all([Promise.all(names.map(overviewOf)), Promise.all(names.map((name) => get(`${jobPath(name)}/series`).catch(missing)))]);
  return () => draw(main, found, jobs, series, path);
}

function choose(a, b, names) {
  const input = (name, label, value) => el("label", {}, `${label} `, el("input", { name, value, list: "job-names", required: true, autocomplete: "off", spellcheck: "false" }));
  const form = el("form", { id: "choose" }, input("a", "Run A (before)", a), " ", input("b", "Run B (after)", b), " ", el("button", {}, "Compare"),
    el("datalist", { id: "job-names" }, names.map((name) => el("option", { value: name }))));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = new FormData(form);
    location.assign(compareAddress(given.get("a"), given.get("b")));
  });
  return form;
}

function refusal(a, b, message) {
  // The hint of the interface is for programs.
  const [sentence] = message.split(" To compare them anyway");
  return el("div", { class: "empty", id: "refused" }, el("h1", {}, "These runs were not compared"), el("p", {}, prose(sentence)),
    sentence !== message && el("p", {}, el("a", { href: compareAddress(a, b, "&unrelated=1"), id: "all-the-same" }, "Compare them anyway")),
    el("p", {}, el("a", { href: compareAddress(a) }, "Choose other runs")));
}

function draw(main, found, jobs, series, path) {
  section(main, "title", [found.a, found.b, found.sentence], () => [heading(found, jobs, path)]);
  section(main, "changes", found.changes, () => [el("h2", {}, "Numbers"), changes(found)]);
  section(main, "breakdowns", jobs.map((job) => [job.breakdown, job.communication, job.step_time_s]), () => breakdowns(jobs));
  drawCharts(main, found, series);
  section(main, "kernels", [found.kernels, found.a_capture, found.b_capture], () => [el("h2", {}, "Kernels"), ...kernels(found)]);
  section(main, "differences", found.differences, () => [el("h2", {}, "Settings that differ"), ...settings(found.differences)]);
}

function heading(found, jobs, path) {
  const step = found.changes.find((change) => change.name === "step_time_s");
  const how = step?.change_ratio == null ? found.sentence : Math.abs(step.change_ratio) < 0.01 ? "Steps of B take as long as those of A" : `Steps of B take ${percent(Math.abs(step.change_ratio))} ${step.change_ratio > 0 ? "longer" : "less"} than those of A`;
  const run = (letter, job) => el("li", {}, el("strong", { class: `run-${letter}` }, letter.toUpperCase()), " ", el("a", { href: jobAddress(job.name) }, job.name), el("span", { class: "quiet" }, ` ${layout(job)}`));
  return el("div", { class: `verdict ${found.regressed ? "severe" : "fine"}` }, el("h1", { id: "headline" }, how, el("small", {}, found.sentence)), el("ul", { class: "runs" }, run("a", jobs[0]), run("b", jobs[1])),
    el("p", {}, el("a", { href: to(`reports/${path}`), id: "report" }, "Report"), " · ", el("a", { href: compareAddress(found.b, found.a) }, "Swap"), " · ", el("a", { href: compareAddress(found.a) }, "Other runs")));
}

function changes(found) {
  const line = (one) => {
    const show = SHOW[one.unit] ?? count;
    return el("tr", { "data-name": one.name }, el("th", { scope: "row" }, NAMES[one.name] ?? words(one.name)), el("td", { class: "number" }, show(one.a)), el("td", { class: "number" }, show(one.b)),
      el("td", { class: "number" }, one.verdict === "new" ? "new" : signedPercent(one.change_ratio)), el("td", {}, el("span", { class: `state ${one.verdict}` }, one.verdict)));
  };
  const known = found.changes.filter((one) => one.a != null || one.b != null);
  return el("div", { class: "scroll" }, el("table", { class: "plain", id: "changes" }, el("thead", {}, el("tr", {}, ["Number", "A", "B", "Change", "Verdict"].map((name, i) => el("th", { scope: "col", class: i > 0 && i < 4 && "number" }, name)))), el("tbody", {}, known.map(line))));
}

function breakdowns(jobs) {
  const longest = Math.max(...jobs.map((job) => job.step_time_s?.median ?? 0));
  return [el("h2", {}, "Step breakdown"), ...jobs.map((job, i) => el("div", { class: "one-run" }, el("strong", { class: `run-${"ab"[i]}` }, "AB"[i]), breakdownBar(job, { id: `breakdown-${"ab"[i]}`, longest_s: longest })))];
}

// Both runs on one axis of steps.
function drawCharts(main, found, series) {
  const known = series.filter((one) => one?.step.length);
  section(main, "progress", [known.length > 0], () => (known.length ? charts.map(({ chart }) => chart.element) : [el("p", { class: "quiet" }, "The steps of these jobs are no longer in memory or in history.")]));
  if (!known.length) return;
  const x = [...new Set(known.flatMap((one) => one.step))].sort((left, right) => left - right);
  const at = new Map(x.map((step, i) => [step, i]));
  const line = (one, i, column) => {
    const values = x.map(() => null);
    for (const [row, step] of (one?.step ?? []).entries()) values[at.get(step)] = one[column][row];
    return { name: `${"AB"[i]}`, color: i ? "--communication" : "--forward", values };
  };
  const steady = x.map(() => false);
  for (const one of known) for (const [row, step] of one.step.entries()) steady[at.get(step)] ||= one.steady[row];
  for (const { chart, column } of charts) {
    chart.update({ x, showX: (step) => `step ${step}`, axisX: (step, i) => (i ? String(step) : `step ${step}`), lines: series.map((one, i) => line(one, i, column)), steady, width: contentWidth(main) });
  }
}

const kernelWords = (one) => (one.kind === "more" || one.kind === "fewer" ? `${one.kind} (${Number(one.a_count.toPrecision(4))} to ${Number(one.b_count.toPrecision(4))})` : one.kind);

function kernels(found) {
  const lacking = [!found.a_capture && "A", !found.b_capture && "B"].filter(Boolean);
  if (lacking.length) return [el("p", { class: "quiet", id: "kernels" }, `They are compared when both jobs have a capture that was analyzed; ${lacking.join(" and ")} ${lacking.length > 1 ? "have" : "has"} none.`)];
  const source = el("p", { class: "quiet" }, "Time per step, mean over ranks, in ", ...[["a", found.a], ["b", found.b]].flatMap(([run, job], i) => [i ? " and " : "", "capture ", el("a", { href: captureAddress(job, found[`${run}_capture`]) }, found[`${run}_capture`]), ` of ${run.toUpperCase()}`]), ".");
  if (!found.kernels.length) return [source, el("p", { id: "kernels" }, "No kernel changed.")];
  const shown = found.kernels.slice(0, MOST_KERNELS);
  const line = (one) => el("tr", {}, el("th", { scope: "row", class: "kernel" }, one.name), el("td", {}, kernelWords(one)), ...[one.a_s, one.b_s, one.b_s - one.a_s].map((seconds) => el("td", { class: "number" }, duration(seconds))));
  return [
    source,
    el("div", { class: "scroll" }, el("table", { class: "plain", id: "kernels" }, el("thead", {}, el("tr", {}, ["Kernel", "", "A", "B", "Change"].map((name, i) => el(name ? "th" : "td", { scope: name && "col", class: i > 1 && "number" }, name)))), el("tbody", {}, shown.map(line)))),
    found.kernels.length > shown.length && el("p", { class: "quiet" }, `and ${plural(found.kernels.length - shown.length, "other")}; the interface has all.`),
  ].filter(Boolean);
}

function settings(differences) {
  if (!differences.length) return [el("p", { class: "quiet", id: "differences" }, "None that both runs report.")];
  const shown = differences.slice(0, MOST_SETTINGS);
  const line = (one) => el("tr", {}, el("td", {}, one.area), el("th", { scope: "row" }, one.name), el("td", {}, one.a ?? UNKNOWN), el("td", {}, one.b ?? UNKNOWN));
  return [
    el("div", { class: "scroll" }, el("table", { class: "plain", id: "differences" }, el("thead", {}, el("tr", {}, ["Area", "Setting", "A", "B"].map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, shown.map(line)))),
    differences.length > shown.length && el("p", { class: "quiet" }, `and ${plural(differences.length - shown.length, "other")}; the report has all.`),
  ].filter(Boolean);
}

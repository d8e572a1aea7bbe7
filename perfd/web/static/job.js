// One job: what limits it, then the numbers.

import { get, jobPath, missing, overviewOf, textOf } from "./api.js";
import { breakdownBar, dimensionBars, stageBars, wholeOfStall } from "./bars.js";
import { runbook } from "./alerts.js";
import { cause, figure } from "./captures.js";
import { el, prose, section } from "./dom.js";
import { headline, otherFindings } from "./findings.js";
import { isStale, state, stateText } from "./fleet.js";
import { count, duration, flopsPerS, layout, moment, percent, progress, rankNames, UNKNOWN } from "./format.js";
import { grouped } from "./groups.js";
import { drawCharts, loadSeries } from "./job_charts.js";
import { linksOf, separated, valuesAround, valuesOf, wandbLink } from "./links.js";
import { drawPeers } from "./peers.js";
import { captureAddress, compareAddress, jobAddress, to } from "./paths.js";
import { gridChoice, gridOptions, gridTools, rankGrid } from "./rank_grid.js";
import { loadRanks, metricsOf } from "./rank_metrics.js";
import { heatMap } from "./ranks.js";
import { contentWidth } from "./view.js";

const MOST_ALERTS = 50;
const MOST_CAPTURES = 5;
// A dimension with a smaller share of the step is not drawn.
const LEAST_SHARE = 0.001;
// From here on, a 95th percentile of all steps would be that of an outlier.
const MANY_OUTLIERS = 0.05;
// Of the picture of ranks: no more than pixels, and few enough to send.
const LEAST_COLUMNS = 64;
const MOST_COLUMNS = 1600;

// Loads first and returns a draw function, so a failed request leaves the page as it was.
export async function showJob(main, name, again) {
  const asked = encodeURIComponent(name);
  const columns = Math.max(LEAST_COLUMNS, Math.min(contentWidth(main), MOST_COLUMNS));
  const { metric } = gridChoice();
  const [job, ranks, peers, series, alerts, captures] = await Promise.all([
    overviewOf(name),
    loadRanks(name, { columns, ...(metric && { metric }) }).catch(missing),
    get(`${jobPath(name)}/peers`).catch(missing),
    loadSeries(name),
    get(`alerts?job=${asked}&limit=${MOST_ALERTS}`),
    get(`captures?short=1&job=${asked}`),
  ]);
  return () => draw(main, job, ranks, peers, series, alerts.alerts, captures.captures, again);
}

function draw(main, job, ranks, peers, series, alerts, captures, again) {
  const stale = isStale(job);
  // The sign of a live page is not for a job that is over.
  document.documentElement.dataset.over = String(Boolean(job.ended));
  const jumps = [["progress", "Charts"], ranks && metricsOf(ranks).length && ["rank-choice", "Ranks"], alerts.length && ["alerts", "Alerts"], captures.length && ["captures", "Captures"], job.troubles?.length && ["troubles", "Errors"]].filter(Boolean);
  section(main, "title", [job.name, scheduled(job), layout(job), steps(job), job.ended, job.outcome, job.owner, stale, jumps], () => [el("div", { class: "title-line" }, title(job), contents(jumps))]);
  section(main, "stale", [stale, stale && Math.floor(job.silent_s)], () => (stale ? [silence(job)] : []));
  section(main, "verdict", [job.bottleneck, job.ended], () => [headline(job, ranks)]);
  section(main, "findings", [job.other_findings, job.ended], () => otherFindings(job, ranks));
  section(main, "past", job.past, () => past(job));
  section(main, "numbers", numbers(job), () => [cards(numbers(job))]);
  section(main, "breakdown", [job.bottleneck, job.breakdown, job.communication, job.optimizer, job.parallel, job.step_time_s], () => [
    el("h2", {}, "Step breakdown"), breakdownBar(job),
  ]);
  section(main, "dimensions", job.communication?.dimensions, () => dimensions(job));
  drawCharts(main, series, { name: job.name, alerts, captures, again });
  section(main, "stages", job.pipeline, () => stages(job));
  const options = ranks && gridOptions(ranks);
  section(main, "rank-choice", options, () => (ranks && metricsOf(ranks).length ? [el("h2", {}, "Ranks"), options && gridTools(options, again)].filter(Boolean) : []));
  section(main, "ranks", [ranks && textOf(ranks), gridChoice()], () => (ranks ? [rankGrid(job, ranks, contentWidth(main)), heatMap(job, ranks)].filter(Boolean) : []));
  drawPeers(main, job, peers, again);
  section(main, "alerts", alerts, () => alertList(alerts));
  section(main, "captures", captures, () => captureList(job, captures));
  section(main, "troubles", job.troubles, () => troubleList(job));
}

// What the newest findings may no longer show: earlier faults, and how often the job started again.
function past({ past: of }) {
  const over = (of?.faults ?? []).filter((fault) => !fault.lasts);
  if (!over.length && !of?.restarts_sentence) return [];
  return [
    el("h2", {}, "Earlier"),
    of.restarts_sentence && el("p", { id: "restarts" }, prose(of.restarts_sentence)),
    over.length > 0 && el("ul", { id: "past-faults" }, over.reverse().map((fault) => el("li", {}, prose(fault.sentence)))),
  ].filter(Boolean);
}

const steps = (job) => progress(job.steps?.last, job.train_steps);

// As one_step: what NCCL's operations show may be something else.
const oneStep = ({ steps: of }) => (of?.doubt ? `step or ${of.doubt}` : "step");

function title(job) {
  return el(
    "p",
    { class: "title" },
    el("strong", { id: "job" }, job.name), " ", el("span", { class: `state ${state(job)}` }, stateText(job)),
    el("span", { class: "quiet" }, ` ${[...scheduled(job), layout(job), `${oneStep(job)} ${steps(job)}`].join(" · ")} · `),
    el("a", { href: to(`reports/jobs/${encodeURIComponent(job.name)}`), id: "report" }, "Report"), " · ", el("a", { href: compareAddress(job.name), id: "compare" }, "Compare"), separated([...linksOf("job", valuesOf(job)), ...wandbLink(job)]),
  );
}

// The page is long, and what a user looks for may be at its end.
const contents = (jumps) =>
  el("nav", { "aria-label": "On this page", class: "quiet" }, jumps.map(([name, text]) => el("a", { href: `#section-${name}` }, text)));

// The scheduler's name, array and groups.
function scheduled(job) {
  const groups = grouped(Object.entries(job.het_groups ?? {}), ([, group]) => group);
  const parts = groups.sort().map(([group, nodes]) => `group ${group}: ${nodes.map(([node]) => node).join(", ")}`);
  return [job.title, job.owner, job.array && `array ${job.array.join("_")}`, ...parts].filter(Boolean);
}

const silence = (job) =>
  el("p", { class: "notice warn", id: "stale" }, `No agent has reported this job for ${duration(job.silent_s)}: numbers are old.`);

// A job on CPUs, or with unmonitored GPUs, has ranks only.
const device = (job) => (job.gpu_count ? "GPU" : "rank");

// Each with its denominator, and what is missing if it has no value; null: does not apply to this job.
const numbers = (job) => [
  ["mfu", "MFU", percent(job.efficiency?.mfu_ratio), mfuNote(job), job.efficiency?.mfu_missing ?? "the model's sizes or the GPU's peak are unknown"],
  ["step-time", "Step time", duration(job.step_time_s?.median), stepTimeNote(job), "no steady steps yet"],
  ["tokens", "Tokens/s", count(job.efficiency?.tokens_per_s), job.efficiency?.tokens_per_s_per_gpu == null ? "" : `${count(job.efficiency?.tokens_per_s_per_gpu)} per ${device(job)}`, "the tokens per step are unknown"],
  ["flops", `FLOP/s per ${device(job)}`, flopsPerS(job.efficiency?.model_flops_per_s_per_gpu), job.efficiency?.peak_flops_per_s ? `peak ${flopsPerS(job.efficiency?.peak_flops_per_s)} ${job.efficiency?.peak_precision ?? ""}${job.efficiency?.peak_unverified ? ", unverified" : ""}` : "", "the model's sizes are unknown"],
  ["communication", "Communication", percent(job.communication?.share_ratio), communicationNote(job), "no timer for it, and no times of NCCL on the GPU"],
  ["stall", "Pipeline stall", percent(job.pipeline?.stall_ratio), stallNote(job), stallMissing(job)],
  ["data", "Data loading", percent(job.data?.share_ratio), dataNote(job), "no timer for it"],
  ["optimizer", "Optimizer", percent(job.optimizer?.share_ratio), "of a step, on the slowest rank", "no timer for it"],
  ["memory", "GPU memory", percent(job.memory?.max_used_ratio), "used on the fullest GPU", "no data from GPUs"],
];

// Outliers are in neither number: where there are many, the 95th percentile hides them.
function stepTimeNote(job) {
  const of = job.step_time_s;
  const outliers = of?.outlier_ratio > MANY_OUTLIERS ? `; ${percent(of.outlier_ratio)} of steps are outliers, not counted` : "";
  return `median${job.steps?.doubt ? ` per ${oneStep(job)}` : ""}; p95 ${duration(of?.p95)}${outliers}`;
}

// Batches are fetched within the forward pass; the timer ends when the batch is on the GPU.
function dataNote({ data }) {
  const within = data?.source === "timers: batch-generator" ? ", within forward" : "";
  return `of a step, on the slowest rank${within}${data?.waits_for_gpu ? "; includes waiting for the GPU" : ""}`;
}

function communicationNote(job) {
  const { share_ratio: share, transfer_ratio: moves, wait_ratio: waits } = job.communication ?? {};
  const split = moves == null ? "" : `; ${percent(moves)} transfer, ${percent(waits)} waiting for other ranks`;
  const without = share == null ? [] : leftOut(job.communication);
  return `of a step${moves == null ? "" : ", mean over ranks"}${split}${without.length ? `, not counting ${without.join(", ")}` : ""}`;
}

// As Communication.left_out: timers count the collectives of gradients and parameters only.
function leftOut({ source, dimensions }) {
  if (!source?.startsWith("timers")) return [];
  return (dimensions ?? []).filter((one) => one.group !== "dp").map((one) => one.group ?? "others");
}

// As MfuTier.word: the headline may name another cause, or none.
const tierWord = (tier) => ({ trouble: "low", communication_bound: "fair" })[tier] ?? tier;

function mfuNote(job) {
  const upper = job.efficiency?.mfu_upper_ratio == null ? "" : `at most ${percent(job.efficiency?.mfu_upper_ratio, 0)} by tensor core activity`;
  const tier = job.efficiency?.mfu_tier ? `tier ${tierWord(job.efficiency.mfu_tier)}` : "";
  if (job.efficiency?.mfu_ratio != null) return [`of the dense peak${job.efficiency.peak_precision_source === "hlo" ? `, ${job.efficiency.peak_precision} according to the dumped HLO` : ""}${job.steps?.doubt ? `, if each ${oneStep(job)} is a step` : ""}`, tier, upper].filter(Boolean).join("; ");
  return upper || (job.efficiency?.model_flops_per_s_per_gpu != null && job.efficiency?.peak_flops_per_s == null ? "peak of this GPU unknown" : "");
}

function stallNote(job) {
  const { bubble_theory_ratio: theory, stall_ratio: stall } = job.pipeline ?? {};
  return theory && stall != null ? `${wholeOfStall(job.pipeline)}; theory ${percent(theory)}` : "";
}

function stallMissing({ pipeline, parallel }) {
  if ((parallel?.pp ?? 1) < 2) return null;
  const theory = pipeline?.bubble_theory_ratio;
  return `${theory == null ? "" : `theory ${percent(theory)} of the schedule; `}no timers of stages, and no times of NCCL on the GPU`;
}

// Tiles without a value become one quiet line below, with the reason; a note is a bound or part of it.
function cards(all) {
  const known = all.filter(([, , value]) => value !== UNKNOWN);
  const unknown = all.filter(([, , value, , missing]) => value === UNKNOWN && missing);
  return el("div", {},
    el("dl", { class: "numbers" }, known.map(([id, name, value, note]) => el("div", { class: "card" }, el("dt", {}, name), el("dd", { id }, value), el("dd", { class: "quiet" }, note)))),
    known.filter(([, , , note]) => note?.startsWith("of a step")).length > 1 && el("p", { class: "quiet" }, "Shares of a step can overlap; those of the breakdown below add up."),
    unknown.length > 0 && el("p", { class: "quiet", id: "not-measured" }, "Not measured: ", unknown.map(([id, name, , note, missing], i) => [i > 0 && "; ", el("span", { id }, name), ...prose(` (${[missing.replace(/\.$/, ""), id === "mfu" && note].filter(Boolean).join("; ")})`)])));
}

function dimensions(job) {
  const shown = (job.communication?.dimensions ?? []).filter((one) => one.share_ratio >= LEAST_SHARE);
  return shown.length ? [el("h2", {}, "Communication by parallel dimension"), dimensionBars(shown)] : [];
}

function stages(job) {
  if (!job.pipeline?.bubble_theory_ratio || !job.pipeline.stages.length) return [];
  return [el("h2", {}, "Pipeline stages"), stageBars(job.pipeline)];
}

function alertList(alerts) {
  if (!alerts.length) return [];
  const line = (alert) =>
    el("li", {}, el("span", { class: `state ${alert.state}` }, alert.state), " ", el("strong", {}, runbook(alert)), alert.value == null ? "" : ` at ${figure(alert.value)}:`, prose(` ${alert.annotations?.summary ?? ""}`), el("span", { class: "quiet" }, ` ${moment(alert.fired_at_unix_s)}`));
  return [el("h2", {}, el("a", { href: to("alerts") }, "Alerts")), el("ul", { id: "alerts" }, alerts.map(line))];
}

function troubleList(job) {
  const troubles = job.troubles ?? [];
  if (!troubles.length) return [];
  const elsewhere = (one) => separated(linksOf("log", { ...valuesAround(job, one.first_unix_s, one.last_unix_s), rank: one.ranks?.[0] }));
  const notes = (one) => [one.ranks?.length && rankNames(one.ranks), one.step != null && `after step ${one.step}`, one.count > 1 && `${one.count} times`, moment(one.first_unix_s)];
  const line = (one) => el("li", {}, one.message, el("span", { class: "quiet" }, ` ${notes(one).filter(Boolean).join(" · ")}`), elsewhere(one));
  return [el("h2", {}, "Errors and warnings"), el("ul", { id: "troubles" }, troubles.map(line))];
}

function captureList(job, captures) {
  if (!captures.length) return [];
  const all = jobAddress(job.name, "captures");
  const line = (one) => el("li", {}, el("span", { class: `state ${one.state}` }, one.state), " ", el("a", { href: captureAddress(one.job, one.id) }, one.id), " ", cause(one), one.report && prose(`: ${one.report.words}`), el("span", { class: "quiet" }, ` ${moment(one.requested_unix_s)}`));
  return [el("h2", {}, el("a", { href: all }, "Captures")), el("ul", { id: "captures" }, captures.slice(-MOST_CAPTURES).reverse().map(line))];
}

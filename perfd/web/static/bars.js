// Drawings made of boxes: the parts of a step, the stall of stages, ranks by metric.

import { el } from "./dom.js";
import { duration, percent, UNKNOWN, watts } from "./format.js";

const width = (ratio) => ({ width: `${(Math.min(Math.max(ratio, 0), 1) * 100).toFixed(2)}%` });

export function breakdownBar(job) {
  const told = [
    ["forward", "Forward", job.breakdown?.forward_ratio],
    ["backward", "Backward", job.breakdown?.backward_ratio],
    ["communication", "Communication", job.communication?.exposed_ratio ?? job.communication?.share_ratio],
    ["optimizer", "Optimizer", job.optimizer?.share_ratio],
    ["untimed", "In no timer", job.breakdown?.unattributed_ratio],
  ].filter(([, , ratio]) => ratio != null);
  if (!told.length) return el("p", { class: "quiet", id: "breakdown" }, "The log has no timers, so a step cannot be split.");
  const sum = told.reduce((total, [, , ratio]) => total + ratio, 0);
  const rest = (job.parallel?.pp ?? 1) > 1 ? ["waiting", "Waiting for other stages", 1 - sum] : ["rest", "Not told", 1 - sum];
  const parts = rest[2] > 0.02 ? [...told, rest] : told;
  // Medians of parts need not add up to the median of the whole.
  const scale = Math.max(1, sum);
  const say = parts.map(([, name, ratio]) => `${name} ${percent(ratio)}`).join(", ");
  const spread = job.breakdown?.spread_ratio;
  return el(
    "figure",
    { id: "breakdown" },
    el("div", { class: "bar", role: "img", "aria-label": `A step of ${duration(job.step_time_s?.median)}: ${say}` },
      parts.map(([key, name, ratio]) => el("span", { class: `part ${key}`, style: width(ratio / scale), title: `${name} ${percent(ratio)}` }, ratio > 0.08 && percent(ratio, 0)))),
    el("ul", { class: "legend" }, parts.map(([key, name, ratio]) => el("li", { "data-part": key }, el("span", { class: `swatch ${key}` }), `${name} `, el("strong", {}, percent(ratio))))),
    el("figcaption", { class: "quiet" }, `Of a step of ${duration(job.step_time_s?.median)}. Forward and backward are the slowest rank’s`, spread == null ? "." : `: over the fastest’s by ${percent(spread)} of a step.`),
  );
}

export function stageBars(pipeline) {
  const shown = pipeline.stages.slice(0, 64);
  const rows = shown.map((stage) =>
    el("li", {}, el("span", { class: "name" }, stageName(stage)),
      el("span", { class: "track" }, el("span", { class: "part stall", style: width(stage.stall_ratio ?? 0) }), el("span", { class: "theory", style: { left: width(pipeline.bubble_theory_ratio).width } })),
      el("strong", {}, `${boundWords(stage)}${percent(stage.stall_ratio)}`)));
  return el("figure", {}, el("ol", { class: "stages", id: "stages" }, rows),
    el("figcaption", { class: "quiet" }, `Time of the schedule in which a stage computes nothing. The line is the bubble of equal stages in theory, ${percent(pipeline.bubble_theory_ratio)}. Source: ${pipeline.source ?? "unknown"}.`));
}

const boundWords = (stage) => ({ at_least: "at least ", at_most: "at most " })[stage.bound] ?? "";

function stageName(stage) {
  if (stage.stage != null) return `Stage ${stage.stage}`;
  return { at_least: "Busiest stage", at_most: "Idlest stage" }[stage.bound] ?? "A stage";
}

const METRICS = [
  ["sm_active_ratio", "SM active", percent],
  ["tensor_active_ratio", "Tensor active", percent],
  ["dram_active_ratio", "DRAM active", percent],
  ["power_w", "Power", watts],
  ["busy_ratio", "In NCCL", percent],
  ["wait_ratio", "Waits", percent],
  ["caused_ratio", "Others wait for it", percent],
];
const MAX_ROWS = 64;
const QUIET = 0.05;
const FULL = 0.4;

// Ranks by metric: a cell's colour says how far it is from the median of all ranks, so that one who
// differs stands out among many. Of many ranks the most unusual are shown.
export function heatMap(job) {
  const rows = rankRows(job);
  const metrics = METRICS.filter(([key]) => rows.some((row) => row[key] != null));
  if (!metrics.length) return null;
  const medians = new Map(metrics.map(([key]) => [key, median(rows.map((row) => row[key]))]));
  const far = (row, key) => deviation(row[key], medians.get(key), key);
  const strangeness = (row) => (row.culprit ? 1e9 : 0) + Math.max(...metrics.map(([key]) => Math.abs(far(row, key))));
  const shown = rows.length <= MAX_ROWS ? rows : [...rows].sort((a, b) => strangeness(b) - strangeness(a)).slice(0, MAX_ROWS);
  const body = shown.map((row) =>
    el("tr", { class: row.culprit && "culprit" },
      el("th", { scope: "row" }, row.name, row.culprit && el("span", { class: "limit" }, " culprit"), row.where && el("small", {}, row.where)),
      metrics.map(([key, , show]) => cell(row[key], far(row, key), show))));
  return el("figure", {},
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Ranks by metric" },
      el("table", { class: "heat", id: "ranks" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Rank"), metrics.map(([, name]) => el("th", { scope: "col" }, name)))), el("tbody", {}, body))),
    el("figcaption", { class: "quiet" }, el("span", { class: "swatch above" }), "above and ", el("span", { class: "swatch below" }), `below the median of ranks.${rows.length > shown.length ? ` The ${shown.length} most unusual of ${rows.length}.` : ""}`));
}

function cell(value, far, show) {
  const size = Math.min(Math.max((Math.abs(far) - QUIET) / (FULL - QUIET), 0), 1);
  const side = size === 0 ? "" : far > 0 ? "above" : "below";
  return el("td", { class: side, style: { "--far": `${(size * 100).toFixed(0)}%` } }, value == null ? UNKNOWN : show(value));
}

// Relative, but shares near zero are not far apart because one is twice the other.
function deviation(value, middle, key) {
  if (value == null || middle == null) return 0;
  return (value - middle) / Math.max(Math.abs(middle), key.endsWith("_ratio") ? 0.1 : 1e-9);
}

function rankRows(job) {
  const culprits = new Set((job.bottleneck?.culprits ?? []).map((who) => `${who.kind} ${who.id}`));
  const rows = new Map();
  for (const gpu of job.gpus ?? []) {
    const where = `${gpu.node}/${gpu.gpu}`;
    const name = gpu.rank == null ? where : `rank ${gpu.rank}`;
    rows.set(name, { ...gpu, name, where: gpu.rank == null ? "" : where, culprit: culprits.has(name) || culprits.has(`gpu ${where}`) || culprits.has(`node ${gpu.node}`) });
  }
  for (const one of job.nccl?.ranks ?? []) {
    const name = `rank ${one.rank}`;
    rows.set(name, { where: "", culprit: culprits.has(name), ...rows.get(name), ...one, name });
  }
  return [...rows.values()];
}

function median(values) {
  const known = values.filter((value) => value != null).sort((a, b) => a - b);
  if (!known.length) return null;
  return (known[(known.length - 1) >> 1] + known[known.length >> 1]) / 2;
}

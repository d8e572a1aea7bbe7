// Bars: the breakdown of a step, communication by dimension, stall by stage.

import { el, prose } from "./dom.js";
import { duration, percent } from "./format.js";
import { isHeldUp, shortSentence } from "./verdict.js";

const MOST_COSTS = 4;

const DIMENSIONS = {
  dp: "Data (dp)", tp: "Tensor (tp)", pp: "Pipeline (pp)", cp: "Context (cp)", ep: "Experts (ep)", world: "All ranks",
};

const width = (ratio) => ({ width: `${(Math.min(Math.max(ratio, 0), 1) * 100).toFixed(2)}%` });

// `longest_s`: the step that fills the width, to draw two runs to one scale.
export function breakdownBar(job, { id = "breakdown", longest_s = null } = {}) {
  const parts = [
    ["forward", "Forward", job.breakdown?.forward_ratio],
    ["backward", "Backward", job.breakdown?.backward_ratio],
    ["communication", "Communication", exposed(job.communication)],
    ["optimizer", "Optimizer", job.optimizer?.share_ratio],
    ["untimed", "Outside timers", job.breakdown?.unattributed_ratio],
  ].filter(([, , ratio]) => ratio != null);
  if (!parts.length) return el("p", { class: "quiet", id }, "The log has no timers: no breakdown.");
  const sum = parts.reduce((total, [, , ratio]) => total + ratio, 0);
  // The rest is waiting only if the compute time of stages is known.
  const timed = job.breakdown?.forward_ratio != null && job.breakdown?.backward_ratio != null;
  const rest = timed && (job.parallel?.pp ?? 1) > 1 ? ["waiting", "Waiting for other stages", 1 - sum] : ["rest", "Unaccounted", 1 - sum];
  if (rest[2] > 0.02) parts.push(rest);
  // Medians of parts need not add up to the median of the step.
  const scale = Math.max(1, sum);
  const text = parts.map(([, name, ratio]) => `${name} ${percent(ratio)}`).join(", ");
  const spread = job.breakdown?.spread_ratio;
  const less = spread == null ? "." : `; the fastest rank takes ${percent(spread)} of the step less.`;
  const named = costs(job);
  return el(
    "figure",
    { id },
    el("div", { class: "bar", style: width(longest_s && job.step_time_s?.median ? job.step_time_s.median / longest_s : 1), role: "img", "aria-label": `Step of ${duration(job.step_time_s?.median)}: ${text}` },
      parts.map(([key, name, ratio]) => el("span", { class: `part ${key}`, style: width(ratio / scale), title: `${name} ${percent(ratio)}` }, ratio > 0.08 && percent(ratio, 0)))),
    el("ul", { class: "legend" }, parts.map(([key, name, ratio]) => el("li", { "data-part": key }, el("span", { class: `swatch ${key}` }), `${name} `, el("strong", {}, percent(ratio))))),
    named.length > 0 && el("div", { class: "costs", style: width(longest_s && job.step_time_s?.median ? job.step_time_s.median / longest_s : 1) }, named.map(cost)),
    el("figcaption", { class: "quiet" }, `Shares of a step of ${duration(job.step_time_s?.median)}. `, timed ? `Forward and backward are those of the slowest rank${less}` : "The log has no timers of forward and backward.", adds(parts, job), named.length > 0 && " What findings cost is time within these parts; it cannot be added to them."),
  );
}

// Of the headline and what else is found: the number that stands there, drawn to the scale of the bar above.
const costs = (job) => [job.bottleneck, ...(job.other_findings ?? [])].filter((finding) => isHeldUp(finding) && finding.gain_ratio > 0).slice(0, MOST_COSTS);

const cost = (finding) =>
  el("div", { class: "cost-line" }, el("span", { class: "part cost", style: width(finding.gain_ratio), "data-kind": finding.kind }), el("span", { class: "cost-name" }, `${shortSentence(finding)} `, el("strong", {}, percent(finding.gain_ratio))));

// Why the numbers add up to something else than the whole, or what they add up to.
function adds(parts, { pipeline }) {
  const sum = parts.reduce((total, [, , ratio]) => total + ratio, 0);
  const whole = Math.abs(sum - 1) < 0.005 ? "" : ` They add up to ${percent(sum)}: each is a median, and the slowest rank of one part need not be that of another.`;
  const { stall_ratio: idle, bubble_theory_ratio: theory, excess_ratio: excess } = pipeline ?? {};
  if (!(theory > 0) || idle == null || excess == null) return whole;
  const sign = excess < 0 ? "-" : "+";
  return `${whole} Of the schedule, ${percent(idle)} idle = ${percent(theory)} theory ${sign} ${percent(Math.abs(excess))}${excess < 0 ? "" : " excess"}.`;
}


// Without waiting between stages, which is a separate part.
function exposed(communication) {
  if (communication?.exposed_ratio == null) return communication?.share_ratio;
  const stages = communication.dimensions?.find((one) => one.group === "pp" && one.exposed_ratio != null && one.transfer_ratio != null);
  return communication.exposed_ratio - (stages ? Math.max(0, stages.exposed_ratio - stages.transfer_ratio) : 0);
}

// Communication of each parallel dimension as a share of a step, and how much of it is exposed.
export function dimensionBars(dimensions) {
  const bar = (kind, ratio) => el("span", { class: kind, style: width(ratio) });
  const exposedOf = (one) => `${percent(one.share_ratio)}, exposed ${one.exposed_ratio == null ? "unknown" : percent(one.exposed_ratio)}`;
  const why = (one) => (one.exposed_ratio == null ? one.missing : one.exposed_source);
  // A reason that all of them share is shown once.
  const several = dimensions.length > 1;
  const alike = several && dimensions.every((one) => one.exposed_ratio == null && one.missing === dimensions[0].missing);
  const rows = dimensions.map((one) =>
    el("li", { title: `Share: ${one.source}` },
      el("span", { class: "name" }, DIMENSIONS[one.group] ?? one.group ?? "Others"),
      el("span", { class: "track" }, bar("part whole", one.share_ratio), bar("part communication", one.exposed_ratio ?? 0)),
      el("strong", {}, exposedOf(one)), !alike && el("span", { class: "quiet why" }, prose(why(one)))));
  const unknown = alike && prose(`How much is exposed is unknown: ${dimensions[0].missing}. `);
  return el("figure", {}, el("ol", { class: "stages dimensions", id: "dimensions" }, rows),
    el("figcaption", { class: "quiet" }, unknown, "Shares of a step; the full color is exposed: not overlapped with compute.", several && " Dimensions may overlap, so they can add up to more than all communication."));
}

export function stageBars(pipeline) {
  const shown = pipeline.stages.slice(0, 64);
  const rows = shown.map((stage) =>
    el("li", {}, el("span", { class: "name" }, stageName(stage)),
      el("span", { class: "track" }, el("span", { class: "part stall", style: width(stage.stall_ratio ?? 0) }), el("span", { class: "theory", style: { left: width(pipeline.bubble_theory_ratio).width } })),
      el("strong", {}, `${boundWords(stage)}${percent(stage.stall_ratio)}`)));
  return el("figure", {}, el("ol", { class: "stages", id: "stages" }, rows),
    el("figcaption", { class: "quiet" }, `${stallOf(pipeline)} The line is the theoretical bubble of equal stages, ${percent(pipeline.bubble_theory_ratio)}. Source: ${pipeline.source ?? "unknown"}.`));
}

// Waiting in NCCL kernels is measured over the whole step.
const byWaiting = (pipeline) => Boolean(pipeline.source?.startsWith("nccl plugin"));

export const wholeOfStall = (pipeline) => (byWaiting(pipeline) ? "of the time" : "of the schedule");

const stallOf = (pipeline) => (byWaiting(pipeline) ? "Time in which a stage waits for other stages." : "Share of the schedule in which a stage is idle.");

const boundWords = (stage) => ({ at_least: "at least ", at_most: "at most " })[stage.bound] ?? "";

function stageName(stage) {
  if (stage.stage != null) return `Stage ${stage.stage}`;
  return { at_least: "Busiest stage", at_most: "Idlest stage" }[stage.bound] ?? "Stage";
}

// What limits a job, as a sentence.

import { el } from "./dom.js";
import { percent, unbroken, words } from "./format.js";

const SENTENCES = {
  none: "Nothing that perfd can see limits this job",
  compute: "Limited by its own compute",
  pipeline_bubble: "Limited by the pipeline’s bubble",
  pipeline_imbalance: "Limited by unequal pipeline stages",
  communication: "Limited by communication",
  data_loading: "Limited by its input",
  optimizer: "Limited by the optimizer",
  straggler: "Limited by a straggler",
  throttling: "Limited by GPUs that throttle",
  memory: "Limited by GPU memory",
  host_bound: "Limited by the host",
  launch_bound: "Limited by kernel launches",
  sync_bound: "Limited by the host’s waits for the GPU",
  memory_bound: "Limited by memory bandwidth",
  host_transfer: "Limited by copies from and to the host",
  link_degradation: "Limited by a slow link",
  sequence_imbalance: "Limited by unequal sequences",
  hang: "The job stands still",
  missing_telemetry: "Some ranks say nothing, so what limits the job is not judged",
  analysis_failed: "The analysis of this job failed",
  unknown: "What limits this job is not known yet",
};
const FINE = new Set(["none", "unknown"]);
const SHOWN = 6;

export const isTrouble = (finding) => Boolean(finding) && !FINE.has(finding.kind);

// Something other than the job's own work holds it up.
export const isHeldUp = (finding) => isTrouble(finding) && !["compute", "missing_telemetry", "analysis_failed"].includes(finding.kind);

export const kind = (finding) => words(finding?.kind);

export function culprits(finding) {
  const all = (finding?.culprits ?? []).map((who) => `${who.kind} ${who.id}`).slice(0, SHOWN);
  const left = (finding?.culprit_count ?? finding?.culprits?.length ?? 0) - all.length;
  return all.join(", ") + (left > 0 ? ` and ${left} more` : "");
}

export function sentence(finding) {
  const text = SENTENCES[finding?.kind ?? "unknown"] ?? `Limited by ${words(finding.kind)}`;
  const who = culprits(finding);
  return who ? `${text}: ${who}` : text;
}

export const shortSentence = (finding) => sentence(finding).replace(/^Limited by (the |a |its )?/, "");

export function headline(finding) {
  const cost = finding?.lost_ratio == null ? null : `costs about ${percent(finding.lost_ratio)} of a step`;
  const sure = finding?.confidence ? `confidence ${percent(finding.confidence, 0)}` : null;
  const notes = [cost, sure].filter(Boolean).join(" · ");
  return el(
    "div",
    { class: `verdict ${finding?.kind === "none" ? "fine" : (finding?.kind ?? "unknown")}` },
    el("h1", { id: "headline" }, sentence(finding), notes && el("small", {}, notes)),
    (finding?.evidence ?? []).length > 0 && el("ul", { id: "evidence" }, finding.evidence.map((line) => el("li", {}, unbroken(line)))),
    finding?.recommendation && el("p", { id: "recommendation" }, el("strong", {}, "What to do: "), unbroken(finding.recommendation)),
  );
}

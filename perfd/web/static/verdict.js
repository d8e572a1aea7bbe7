// What limits a job, as a sentence.

import { el } from "./dom.js";
import { percent, unbroken } from "./format.js";

const UNKNOWN = "perfd can’t yet tell what limits this job";
const FINE = new Set(["none", "unknown"]);
const SHOWN = 6;

export const isTrouble = (finding) => Boolean(finding) && !FINE.has(finding.kind);

// Whether something other than the job's own work limits it.
export const isHeldUp = (finding) => isTrouble(finding) && !["compute_bound", "missing_telemetry", "analysis_failed"].includes(finding.kind);

export const kind = (finding) => finding?.name ?? "unknown";

export function culprits(finding) {
  const all = (finding?.culprits ?? []).map((who) => `${who.kind} ${who.id}`).slice(0, SHOWN);
  const left = (finding?.culprit_count ?? finding?.culprits?.length ?? 0) - all.length;
  return all.join(", ") + (left > 0 ? ` and ${left} more` : "");
}

const withCulprits = (text, finding) => [text, culprits(finding)].filter(Boolean).join(": ");

export const sentence = (finding) => withCulprits(finding?.sentence ?? UNKNOWN, finding);

export const shortSentence = (finding) => withCulprits(kind(finding), finding);

const items = (lines) => lines.map((line) => el("li", {}, unbroken(line)));

const explained = (effect) => el("li", {}, `Explains ${effect.summary}.`, el("ul", {}, items(effect.evidence ?? [])));

export function headline(finding) {
  const cost = finding?.gain_ratio == null ? null : `costs about ${percent(finding.gain_ratio)} of each step`;
  const sure = finding?.confidence ? `confidence ${percent(finding.confidence, 0)}` : null;
  const notes = [cost, sure].filter(Boolean).join(" · ");
  return el(
    "div",
    { class: `verdict ${finding?.kind === "none" ? "fine" : (finding?.kind ?? "unknown")}` },
    el("h1", { id: "headline" }, sentence(finding), notes && el("small", {}, notes)),
    (finding?.evidence ?? []).length > 0 &&
      el("ul", { id: "evidence" }, items(finding.evidence), (finding.effects ?? []).map((effect) => explained(effect))),
    finding?.advice && el("p", { id: "advice" }, el("strong", {}, "What to do: "), unbroken(finding.advice)),
  );
}

// What limits a job, as a sentence.

const UNKNOWN = "perfd can’t yet tell what limits this job";
const FINE = new Set(["none", "unknown"]);
const SHOWN = 6;
// A tenth of a step and more is red.
const SEVERE = 0.1;

export const isTrouble = (finding) => Boolean(finding) && !FINE.has(finding.kind);

// Whether something other than the job's own work limits it.
export const isHeldUp = (finding) => Boolean(finding?.limits_job);

// How a finding is colored: by what it costs, and neutral where it is the job's own work.
export function tone(finding) {
  if (!finding || finding.kind === "unknown") return "unknown";
  if (!isHeldUp(finding)) return finding.kind === "none" ? "fine" : "neutral";
  return (finding.gain_ratio ?? 1) >= SEVERE && !finding.may_be_over ? "severe" : "slight";
}

// What a finding rests on: the number `confidence` only ranks kinds of evidence, and is not a probability.
const CERTAINTIES = {
  measured: "measured directly, or by two independent sources",
  likely: "measured in part, by bounds or from a model",
  possible: "expected, or measured indirectly",
};

export const certainty = (finding) => (finding?.certainty in CERTAINTIES ? finding.certainty : null);

export const certaintyMeaning = (word) => CERTAINTIES[word];

export const kind = (finding) => finding?.name ?? "unknown";

export function culprits(finding) {
  const all = (finding?.culprits ?? []).map((who) => `${who.kind} ${who.id}`).slice(0, SHOWN);
  const left = (finding?.culprit_count ?? finding?.culprits?.length ?? 0) - all.length;
  return all.join(", ") + (left > 0 ? ` and ${left} more` : "");
}

const withCulprits = (text, finding) => [text, culprits(finding)].filter(Boolean).join(": ");

export const sentence = (finding) => withCulprits(finding?.sentence ?? UNKNOWN, finding);

export const shortSentence = (finding) => withCulprits(kind(finding), finding);

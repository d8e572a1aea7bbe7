// What limits a job: the headline, and below it every other finding, ranked, each with its numbers and what to do.

import { el, prose } from "./dom.js";
import { bandwidth, duration, percent, plural, UNKNOWN } from "./format.js";
import { jobAddress } from "./paths.js";
import { metricsOf, rankName } from "./rank_metrics.js";
import { captureButton, copyButton } from "./actions.js";
import { certainty, certaintyMeaning, isHeldUp, isTrouble, sentence, shortSentence, tone } from "./verdict.js";

const MOST_EFFECTS = 12;
const MOST_CULPRITS = 4;

const items = (lines) => lines.map((line) => el("li", {}, prose(line)));

const explained = (effect) => el("li", { class: "effect" }, prose(`Explains ${effect.summary}.`), el("ul", {}, items(effect.evidence ?? [])));

const verb = (finding) => (certainty(finding) === "possible" ? "may cost up to" : finding.may_be_over ? "cost about" : "costs about");

const notes = (finding) => (finding?.gain_ratio == null ? "" : `${verb(finding)} ${percent(finding.gain_ratio)} of the time`);

// The word shows the certainty and the border repeats it, so that neither depends on color.
const says = (finding) => {
  const sure = isTrouble(finding) && certainty(finding);
  const text = notes(finding);
  const over = finding?.may_be_over && [el("span", { class: "certainty" }, "may be over"), " "];
  return (sure || text) && el("small", {}, sure && [el("span", { class: `certainty ${sure}`, title: certaintyMeaning(sure) }, sure), " "], over, text);
};

const look = (finding) => [tone(finding), isHeldUp(finding) && certainty(finding)].filter(Boolean).join(" ");

// A slow rank's evidence says which rank and how much; a slow clock or stalls also say why.
const SAYS_WHY = /SM clock is|^Every \d+ steps/;

const isOpen = (finding) => finding.kind === "straggler" && !(finding.evidence ?? []).some((line) => SAYS_WHY.test(line));

// A job that has ended can no longer be looked into.
const doNow = (finding, over) =>
  isOpen(finding) ? (over ? "The cause is not known. To find it in the next run: " : "The cause is not known yet. To find it: ") : over ? "For the next run: " : "What to do: ";

const advice = (finding, over, id = null) => finding?.advice && el("p", { id }, el("strong", {}, doNow(finding, over)), prose(finding.advice));

const evidence = (finding, id) =>
  (finding?.evidence ?? []).length > 0 &&
  el("ul", { id, class: "evidence" }, items(finding.evidence), (finding.effects ?? []).slice(0, MOST_EFFECTS).map(explained));

export function headline(job, ranks) {
  const finding = job.bottleneck;
  return el(
    "div",
    { class: `verdict ${look(finding)}` },
    el("h1", { id: "headline" }, sentence(finding), says(finding)),
    evidence(finding, "evidence"),
    advice(finding, job.ended, "advice"),
    actions(job, finding),
    numbersOf(job, finding, ranks),
  );
}

// The findings after the first, in the order of the analysis.
export function otherFindings(job, ranks) {
  const others = (job.other_findings ?? []).filter(isTrouble);
  if (!others.length) return [];
  const one = (finding) =>
    el("li", { class: `finding ${look(finding)}` },
      el("h3", {}, shortSentence(finding), says(finding)),
      evidence(finding),
      advice(finding, job.ended),
      actions(job, finding), numbersOf(job, finding, ranks));
  return [el("h2", {}, plural(others.length, "other finding")), el("ol", { id: "findings", class: "findings" }, others.map(one))];
}

function actions(job, finding) {
  if (!isTrouble(finding)) return null;
  const ranks = ranksOf(finding);
  const parts = [finding.advice && copyButton("Copy advice", finding.advice)];
  if (!job.ended) {
    // A healthy peer beside the culprits shows what differs.
    const chosen = ranks.length ? `${ranks.join(",")}+peer` : null;
    parts.push(...captureButton(job.name, chosen, ranks.length === 1 ? "this rank" : ranks.length ? "these ranks" : "this job"));
  }
  return el("p", { class: "actions" }, parts);
}

const ranksOf = (finding) => {
  const named = (finding.culprits ?? []).filter((who) => who.kind === "rank").map((who) => who.id);
  return (named.length ? named : (finding.ranks ?? [])).slice(0, 8);
};

// The numbers that the sentences are about, each with its source.
function numbersOf(job, finding, ranks) {
  if (!isTrouble(finding)) return null;
  const rows = [...ofStep(job, finding), ...(NUMBERS.find(([kinds]) => kinds.test(finding.kind))?.[1](job) ?? []), ...ofCulprits(job, finding, ranks)].filter(([, value]) => value !== UNKNOWN);
  if (!rows.length) return null;
  return el("details", { class: "details" }, el("summary", {}, "Numbers"),
    el("div", { class: "scroll" }, el("table", { class: "plain" }, el("thead", {}, el("tr", {}, ["Number", "Value", "Source"].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, rows.map(([name, value, source]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value), el("td", { class: "quiet" }, source ?? "")))))));
}

function ofStep(job, finding) {
  const step = job.step_time_s?.median;
  const rows = [["Step time", duration(step), "median of steady steps"]];
  if (finding.gain_ratio != null) rows.push(["Possible gain", `${percent(finding.gain_ratio)}${step == null ? "" : `, ${duration(step * finding.gain_ratio)} of each step`}`, "at most, without this"]);
  if (finding.waiting_ratio != null) rows.push(["Of that, waiting for other ranks", percent(finding.waiting_ratio), "beyond what the layout requires"]);
  return rows;
}

// Each culprit beside the median of all ranks.
function ofCulprits(job, finding, ranks) {
  const blamed = new Set((finding.culprits ?? []).map((who) => `${who.kind} ${who.id}`));
  const found = (ranks?.culprits ?? []).filter((row) => blamed.has(rankName(row)) || blamed.has(`gpu ${row.node}/${row.gpu}`) || blamed.has(`node ${row.node}`)).slice(0, MOST_CULPRITS);
  return found.flatMap((row) => metricsOf(ranks).filter(([key]) => row.values[key] != null).map(([key, name, show]) => [`${rankName(row)}: ${name}`, `${show(row.values[key])}; median of ranks ${show(ranks.metrics[key].median)}`, el("a", { href: jobAddress(job.name, "#ranks") }, "ranks")]));
}

const NUMBERS = [
  [/pipeline|bubble|stall|stage/, ({ pipeline: of = {} }) => [["Idle in the schedule", percent(of.stall_ratio), of.source], ["By theory", percent(of.bubble_theory_ratio), "the schedule"], ["Excess over theory", percent(of.excess_ratio), "idle less theory"], ["Unequal stages", percent(of.imbalance_ratio), of.source]]],
  [/data|loader/, ({ data: of = {} }) => [["Data loading, slowest rank", percent(of.share_ratio), of.source], ["Data loading, fastest rank", percent(of.least_ratio), of.source]]],
  [/commun|link|nccl|network|collective/, ({ communication: of = {} }) => [["Communication", percent(of.share_ratio), of.source], ["Exposed", percent(of.exposed_ratio), of.exposed_source], ["Transfer", percent(of.transfer_ratio), of.source], ["Waiting for other ranks", percent(of.wait_ratio), of.source], ["Bus bandwidth of gradients", bandwidth(of.bus_bytes_per_s), of.source], ["Link", bandwidth(of.link_bytes_per_s), "the GPUs' links"]]],
  [/optimizer/, ({ optimizer: of = {} }) => [["Optimizer", percent(of.share_ratio), of.source]]],
  [/memory/, ({ memory: of = {} }) => [["Memory of the fullest GPU", percent(of.max_used_ratio), of.source]]],
  [/compute|kernel|host|launch/, ({ efficiency: of = {} }) => [["MFU", percent(of.mfu_ratio), of.mfu_source], ["Tensor cores active", percent(of.tensor_active_ratio), "GPU counters"]]],
];

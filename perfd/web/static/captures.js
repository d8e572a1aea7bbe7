// Captures of a job, newest first, with the outcome of each rank and the report.

import { el, section } from "./dom.js";
import { dataSize, duration, moment, plural, rankNames, words } from "./format.js";
import { to } from "./paths.js";

const MAX_RANKS = 64;
const MAX_CAPTURES = 100;
const TRACE = /\.(sqlite|trace\.json(\.gz)?)$/;

export function showCaptures(main, job, captures) {
  section(main, "captures", captures, () => {
    if (!captures.length) {
      return [el("div", { class: "empty", id: "empty" }, el("h1", {}, "No captures of this job"), el("p", {}, "Alerts start captures; to start one now:"), el("pre", {}, `perfd capture start ${job} --steps 3 --wait`))];
    }
    const newest = captures.slice(-MAX_CAPTURES).reverse();
    const older = captures.length - newest.length;
    return [el("h1", {}, plural(captures.length, "capture")), ...newest.map(capture), older > 0 && el("p", { class: "quiet" }, `and ${older} older ones: perfd capture list`)];
  });
}

function capture(one) {
  const facts = [one.tool, `profile ${one.profile}`, one.alert ? `alert ${one.alert}` : "by hand", moment(one.requested_unix_s)];
  const took = one.ended_unix_s == null ? null : `took ${duration(one.ended_unix_s - one.requested_unix_s)}`;
  const alike = grouped(one.ranks);
  return el(
    "article",
    { class: "card capture", id: `capture-${one.id}` },
    el("h2", {}, one.id, " ", el("span", { class: `state ${one.state}` }, one.state)),
    el("p", { class: "quiet" }, [...facts, took].filter(Boolean).join(" · ")),
    one.reason && el("p", {}, one.reason),
    one.report && el("p", { class: "headline" }, one.report.words),
    link(one),
    el("ul", { class: "ranks" }, alike.slice(0, MAX_RANKS).map((ranks) => outcome(ranks, one.reason))),
    alike.length > MAX_RANKS && el("p", { class: "quiet" }, `and ${alike.slice(MAX_RANKS).flat().length} more ranks`),
  );
}

// The report; for traces on other machines, how to make one. Empty traces have neither.
function link(one) {
  const files = one.ranks.filter((who) => who.state !== "empty").flatMap((who) => who.files ?? []);
  const unread = !one.report && files.some((file) => TRACE.test(file.path) && !file.removed);
  const text = one.report?.path ? "Open the report" : unread && "How to read the traces";
  return text && el("p", {}, el("a", { href: to(`reports/captures/${encodeURIComponent(one.id)}`) }, text));
}

// Ranks with equal outcomes and no files are one line: a job may have thousands.
function grouped(ranks) {
  const groups = new Map();
  for (const [index, one] of ranks.entries()) {
    const key = JSON.stringify(one.files?.length ? index : [one.node, one.state, one.reason, span(one)]);
    groups.set(key, [...(groups.get(key) ?? []), one]);
  }
  return [...groups.values()];
}

function outcome(ranks, shown) {
  const [one] = ranks;
  return el(
    "li",
    {},
    el("strong", {}, who(ranks), one.node ? ` on ${one.node}` : ""),
    ` ${words(one.state)}${span(one)}`,
    one.reason && one.reason !== shown && `: ${one.reason}`,
    (one.files ?? []).map((file) =>
      el("div", {}, el("code", {}, file.path), file.removed ? ` removed: ${file.removed.reason}` : ` ${dataSize(file.size_bytes)}`),
    ),
  );
}

function who(ranks) {
  if (ranks.some((one) => one.rank == null)) return "all ranks";
  return rankNames(ranks.map((one) => one.rank));
}

const span = (one) => (one.stopped_unix_s == null || one.started_unix_s == null ? "" : ` for ${duration(one.stopped_unix_s - one.started_unix_s)}`);

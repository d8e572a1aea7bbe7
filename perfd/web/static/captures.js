// Captures of a job, newest first, with how each rank ended and where its report lies.

import { el, section } from "./dom.js";
import { bytes, duration, moment, plural, words } from "./format.js";

const MAX_RANKS = 64;
const MAX_CAPTURES = 100;

export function showCaptures(main, job, captures) {
  section(main, "captures", captures, () => {
    if (!captures.length) {
      return [el("div", { class: "empty", id: "empty" }, el("h1", {}, "No capture of this job yet"), el("p", {}, "A rule starts one when it fires, or a person does:"), el("pre", {}, `perfd capture start ${job} --steps 3 --wait`))];
    }
    const newest = captures.slice(-MAX_CAPTURES).reverse();
    const older = captures.length - newest.length;
    return [el("h1", {}, plural(captures.length, "capture")), ...newest.map(capture), older > 0 && el("p", { class: "quiet" }, `and ${older} older ones: perfd capture list`)];
  });
}

function capture(one) {
  const facts = [one.tool, `profile ${one.profile}`, one.alert ? `alert ${one.alert}` : "by hand", moment(one.requested_unix_s)];
  const took = one.ended_unix_s == null ? null : `took ${duration(one.ended_unix_s - one.requested_unix_s)}`;
  return el(
    "article",
    { class: "card capture", id: `capture-${one.id}` },
    el("h2", {}, one.id, " ", el("span", { class: `state ${one.state}` }, one.state)),
    el("p", { class: "quiet" }, [...facts, took].filter(Boolean).join(" · ")),
    one.reason && el("p", {}, one.reason),
    one.ranks.some((who) => who.files?.length) && el("p", {}, el("a", { href: `/reports/captures/${encodeURIComponent(one.id)}` }, "Open the report")),
    el("ul", { class: "ranks" }, one.ranks.slice(0, MAX_RANKS).map(rank)),
    one.ranks.length > MAX_RANKS && el("p", { class: "quiet" }, `and ${one.ranks.length - MAX_RANKS} more ranks`),
  );
}

function rank(one) {
  const who = one.rank == null ? "every rank" : `rank ${one.rank}`;
  const span = one.stopped_unix_s == null || one.started_unix_s == null ? "" : ` for ${duration(one.stopped_unix_s - one.started_unix_s)}`;
  return el(
    "li",
    {},
    el("strong", {}, who, one.node ? ` on ${one.node}` : ""),
    ` ${words(one.state)}${span}`,
    one.reason && `: ${one.reason}`,
    (one.files ?? []).map((file) => el("div", {}, el("code", {}, file.path), ` ${bytes(file.size_bytes)}`)),
  );
}

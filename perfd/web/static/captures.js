// Captures of a job, newest first, and the page of one: what started it, each rank's states over time, its report.

import { copyButton, perfettoButton, quoted } from "./actions.js";
import { el, prose, section } from "./dom.js";
import { count, dataSize, elapsed, moment, plural, rankNames, words } from "./format.js";
import { grouped } from "./groups.js";
import { captureAddress, to } from "./paths.js";

const MAX_RANKS = 64;
const MAX_CAPTURES = 100;
const TRACE = /\.(sqlite|trace\.json(\.gz)?|xplane\.pb)$/;
const PHASES = [["requested", "requested"], ["armed", "armed"], ["running", "profiler collects"], ["writing", "files are written"]];

// What started it: an alert with its value, or a person.
export function cause(one, linked = true) {
  if (!one.alert) return [`by ${one.asked_by ?? "hand"}`];
  const ours = linked && one.value != null && document.documentElement.dataset.saved === undefined;
  const name = ours ? el("a", { href: to(`runbooks/${encodeURIComponent(one.alert)}`) }, one.alert) : one.alert;
  return ["alert ", name, one.value == null ? "" : ` at ${figure(one.value)}`];
}

export const figure = (value) => count(value, Math.abs(value) >= 100 ? 0 : 3);

const state = (one) => el("span", { class: `state ${one.state}` }, one.state);

const facts = (one) =>
  el("p", { class: "quiet" }, `${[one.tool ?? "no tool", `profile ${one.profile}`, one.steps && plural(one.steps, "step")].filter(Boolean).join(" · ")} · `, cause(one), ` · ${moment(one.requested_unix_s)}`,
    one.ended_unix_s != null && ` · took ${elapsed(one.ended_unix_s - one.requested_unix_s)}`);

const said = (one) => [one.summary && el("p", {}, prose(one.summary)), one.report && el("p", { class: "headline" }, prose(one.report.words)), one.reason && el("p", {}, prose(one.reason)), correction(one)];

const correction = ({ correction: found }) => found && el("p", { class: "actions correction" }, prose(found.words), el("code", { class: "command" }, found.command), copyButton("Copy", found.command));

export function showCaptures(main, job, captures) {
  section(main, "captures", captures, () => {
    if (!captures.length) {
      return [el("div", { class: "empty", id: "empty" }, el("h1", {}, "No captures of this job"), el("p", {}, "Alerts start captures; to start one now:"), el("pre", {}, `perfd capture start ${job} --steps 3 --wait`))];
    }
    const newest = captures.slice(-MAX_CAPTURES).reverse();
    const older = captures.length - newest.length;
    return [el("h1", {}, plural(captures.length, "capture")), ...newest.map(card), older > 0 && el("p", { class: "quiet" }, `and ${older} older ones; perfd capture list shows all`)];
  });
}

const card = (one) =>
  el("article", { class: "card capture", id: `capture-${one.id}` },
    el("h2", {}, el("a", { href: captureAddress(one.job, one.id) }, one.id), " ", state(one)), facts(one), said(one),
    el("p", { class: "quiet" }, Object.entries(one.rank_states).map(([name, number]) => `${plural(number, "rank")} ${words(name)}`).join(", ")));

export function showCapture(main, one) {
  section(main, "capture", one, () => [el("h1", { id: "capture" }, `Capture ${one.id} `, state(one)), facts(one), ...said(one), files(one)].flat().filter(Boolean));
  section(main, "ranks", [one.ranks, one.ended_unix_s], () => timeline(one));
  section(main, "report", one.report?.path, () =>
    one.report?.path ? [el("h2", {}, "Report"), el("iframe", { id: "report", title: `Report of capture ${one.id}`, src: reportOf(one), loading: "lazy", sandbox: "allow-scripts" })] : []);
}

const reportOf = (one) => to(`reports/captures/${encodeURIComponent(one.id)}`);

// Links to the files; for traces on other machines, the commands that make them. Empty traces have neither.
function files(one) {
  const trace = to(`api/v1/traces/${encodeURIComponent(one.id)}`);
  if (one.report?.path) {
    const found = one.report.perfetto_path && `${trace}/perfetto`;
    return el("p", { class: "actions", id: "files" }, el("a", { href: reportOf(one) }, "Open the report"), el("a", { href: trace, download: `${one.id}.trace.json` }, "Download the analysis (JSON)"),
      found && [el("a", { href: found, download: "" }, "Download for Perfetto"), perfettoButton(found, `Capture ${one.id} of ${one.job}`)]);
  }
  const readable = (file) => TRACE.test(file.path) && !file.removed;
  const holder = one.report ? null : one.ranks.find((who) => who.state !== "empty" && who.files?.some(readable));
  if (!holder) return null;
  // Paths come from nodes: what is in one must not become a command.
  const command = `perfd trace export ${quoted(folderOf(holder.files.find(readable).path))} --perfetto ${one.id}.perfetto-trace.gz`;
  return el("p", { class: "actions", id: "files" }, el("a", { href: reportOf(one) }, "How to read the traces"), `For ui.perfetto.dev, on ${holder.node}:`, el("code", { class: "command" }, command), copyButton("Copy", command));
}

const folderOf = (path) => path.slice(0, path.lastIndexOf("/")) || "/";

// The states of each rank over time; ranks with the same outcome share a row.
function timeline(one) {
  if (!one.ranks.length) return [];
  // Ranks with equal outcomes and no files are one line: a job may have thousands.
  const alike = grouped(one.ranks, (who, index) => JSON.stringify(who.files?.length ? index : [who.node, who.state, who.reason, span(who)])).map(([, ranks]) => ranks);
  const start = one.requested_unix_s;
  const end = Math.max(one.ended_unix_s ?? start, ...one.ranks.slice(0, 1024).flatMap((who) => times(who).filter((time) => time != null)), start + 1e-3);
  const at = (time) => Math.min(Math.max((time - start) / (end - start), 0), 1) * 100;
  return [
    el("h2", {}, plural(one.ranks.length, "rank")),
    el("ul", { class: "legend" }, PHASES.map(([key, name]) => el("li", {}, el("span", { class: `swatch phase ${key}` }), name))),
    el("ul", { class: "ranks", id: "ranks" }, alike.slice(0, MAX_RANKS).map((ranks) => outcome(ranks, one, at))),
    el("p", { class: "quiet" }, `${elapsed(end - start)} from the request, ${moment(start)}.`, alike.length > MAX_RANKS && ` ${count(alike.slice(MAX_RANKS).flat().length)} more ranks are in /api/v1/captures/${one.id}.`),
  ];
}

const times = (who) => [who.armed_unix_s, who.started_unix_s, who.stopped_unix_s, who.ended_unix_s];

function outcome(ranks, capture, at) {
  const [one] = ranks;
  // Each phase lasts until the next known time.
  const begins = [capture.requested_unix_s, one.armed_unix_s, one.started_unix_s, one.stopped_unix_s];
  const last = one.ended_unix_s ?? capture.ended_unix_s;
  const parts = begins.map((begin, i) => begin != null && [PHASES[i][0], PHASES[i][1], at(begin), at(begins.slice(i + 1).find((time) => time != null) ?? last ?? Infinity)]).filter((part) => part && part[3] > part[2]);
  const says = parts.map(([, name, left, right]) => `${name} ${Math.round(right - left)}%`).join(", ");
  return el("li", {},
    el("div", { class: "rank-line" },
      el("span", {}, el("strong", {}, who(ranks), one.node ? ` on ${one.node}` : ""), " ", el("span", { class: `state ${one.state}` }, words(one.state)), `${span(one)}${one.whole_steps == null ? "" : `, ${plural(one.whole_steps, "whole step")}`}`),
      el("span", { class: "track", role: "img", "aria-label": `${who(ranks)}, of the time shown: ${says || "unknown"}` }, parts.map(([key, name, left, right]) => el("span", { class: `phase ${key}`, title: name, style: { left: `${left.toFixed(2)}%`, width: `${(right - left).toFixed(2)}%` } })))),
    one.reason && one.reason !== capture.reason && el("p", {}, prose(one.reason)),
    (one.files ?? []).map((file) => el("div", {}, el("code", {}, file.path), file.removed ? ` removed: ${file.removed.reason}` : ` ${dataSize(file.size_bytes)}`, uploaded(file.upload))));
}

// Whether a file is in object storage, with a link that works for those who may read this page.
function uploaded(upload) {
  if (!upload) return null;
  if (upload.state === "waiting") return " · upload has not ended";
  if (upload.state === "failed") return [" · ", el("span", { class: "state failed" }, "not uploaded"), prose(` ${upload.reason}`)];
  const saved = document.documentElement.dataset.saved !== undefined;
  return [" · ", saved || !upload.link ? upload.url : el("a", { href: to(upload.link.slice(1)), class: "stored", download: "" }, `Download the copy (${dataSize(upload.size_bytes)})`)];
}

function who(ranks) {
  if (ranks.some((one) => one.rank == null)) return "all ranks";
  return rankNames(ranks.map((one) => one.rank));
}

const span = (one) => (one.stopped_unix_s == null || one.started_unix_s == null ? "" : ` for ${elapsed(one.stopped_unix_s - one.started_unix_s)}`);

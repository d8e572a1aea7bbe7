// All jobs: running jobs with a bottleneck first.

import { el, section } from "./dom.js";
import { count, duration, layout, percent, plural, progress } from "./format.js";
import { jobAddress, to } from "./paths.js";
import { sortedTable } from "./table.js";
import { isHeldUp, kind, shortSentence } from "./verdict.js";

const STALE_S = 30;

export const isStale = (job) => !job.ended && job.silent_s > STALE_S;

export function state(job) {
  if (job.ended) return "ended";
  return isStale(job) ? "silent" : "running";
}

// As people read it: how a job ended, where that is known.
export function stateText(job) {
  const known = job.ended && job.outcome && job.outcome !== "unknown";
  return known ? `ended: ${job.outcome.replaceAll("_", " ")}` : state(job);
}

const PROGRESS = { running: 0, silent: 1, ended: 2 };
const rank = (job) => [PROGRESS[state(job)], isHeldUp(job.bottleneck) ? 0 : 1, -(job.bottleneck?.gain_ratio ?? 0)];

function order(a, b) {
  const [left, right] = [rank(a), rank(b)];
  const at = left.findIndex((value, i) => value !== right[i]);
  return at < 0 ? a.name.localeCompare(b.name, "en", { numeric: true }) : left[at] - right[at];
}

const table = sortedTable({
  id: "jobs",
  noun: "jobs",
  order,
  text: (job) => [job.name, job.framework, stateText(job), kind(job.bottleneck)].join(" "),
  columns: [
    { name: "Job", wide: true, value: (job) => job.name, cell: (job) => [el("a", { href: jobAddress(job.name), id: `job-${job.name}`, class: "row" }, job.name), el("small", {}, layout(job))] },
    { name: "State", value: state, cell: (job) => el("span", { class: `state ${state(job)}` }, stateText(job)) },
    { name: "Step", number: true, value: (job) => job.step, cell: (job) => progress(job.step, job.train_steps) },
    { name: "Step time", number: true, value: (job) => job.step_time_s, cell: (job) => duration(job.step_time_s) },
    { name: "Tokens/s", number: true, value: (job) => job.tokens_per_s, cell: (job) => count(job.tokens_per_s) },
    { name: "MFU", number: true, value: (job) => job.mfu_ratio, cell: (job) => percent(job.mfu_ratio) },
    { name: "Comm", number: true, value: (job) => job.communication_ratio, cell: (job) => percent(job.communication_ratio) },
    { name: "Limited by", wide: true, value: (job) => kind(job.bottleneck), cell: (job) => limit(job) },
    { name: "Alerts", number: true, value: (job) => job.firing_alerts, cell: (job) => (job.firing_alerts ? el("strong", { class: "limit" }, String(job.firing_alerts)) : "0") },
  ],
});

function limit(job) {
  const cost = job.bottleneck?.gain_ratio;
  const trouble = isHeldUp(job.bottleneck);
  return [el("span", { class: trouble ? "limit" : "quiet" }, shortSentence(job.bottleneck)), trouble && cost != null && el("small", {}, `costs ${percent(cost)} of each step`)];
}

export function showFleet(main, fleet) {
  const { jobs, agents, servers } = fleet;
  section(main, "summary", [counts(jobs), agents, servers], () => (jobs.length ? [summary(fleet)] : [empty(agents, servers)]));
  section(main, "elsewhere", fleet.alerts, () => elsewhere(fleet.alerts));
  if (jobs.length) table.show(main, jobs);
}

// Alerts about nodes and servers belong to no job.
const elsewhere = (alerts) => alerts.map((alert) => el("p", { class: "notice bad" }, el("strong", {}, alert.name), ` ${alert.summary}`));

const counts = (jobs) => [
  jobs.filter((job) => state(job) === "running").length,
  jobs.filter((job) => state(job) === "silent").length,
  jobs.filter((job) => !job.ended && isHeldUp(job.bottleneck)).length,
  jobs.reduce((sum, job) => sum + job.firing_alerts, 0),
  jobs.length,
];

function summary({ jobs, agents, servers }) {
  const [running, silent, limited, alerts, all] = counts(jobs);
  const facts = [
    `${running} running`,
    silent && `${silent} silent`,
    all > running + silent && `${all - running - silent} ended`,
    alerts && plural(alerts, "alert fires", "alerts fire"),
  ];
  return el(
    "div",
    {},
    el("h1", { id: "summary" }, limited ? `${limited} of ${plural(running + silent, "active job")} ${limited === 1 ? "has" : "have"} a bottleneck` : plural(all, "job")),
    el("p", { class: "quiet" }, facts.filter(Boolean).join(" · "), " · ", el("a", { href: to("agents") }, `${agents.connected} of ${plural(agents.count, "agent")} connected`), servers.count > 0 && [" · ", el("a", { href: to("servers") }, plural(servers.count, "serving engine"))]),
  );
}

function empty(agents, servers) {
  return el(
    "div",
    { class: "empty", id: "empty" },
    el("h1", {}, "No jobs yet"),
    el("p", {}, agents.connected ? `${plural(agents.connected, "agent is", "agents are")} connected; none sees a job. ` : "No agent is connected. ", "Start an agent on the job’s node with its log:"),
    el("pre", {}, "perfd agent --aggregator HOST:9461 --log train.log"),
    servers.count > 0 && el("p", {}, el("a", { href: to("servers") }, `See ${plural(servers.count, "serving engine")}`)),
  );
}

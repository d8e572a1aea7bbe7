// All jobs, a line each. The aggregator filters, orders and counts them; what is chosen is in the address.

import { el, prose, section } from "./dom.js";
import { count, duration, layout, percent, plural, progress } from "./format.js";
import { wake } from "./live.js";
import { jobAddress, to } from "./paths.js";
import { sparkline } from "./sparkline.js";
import { isHeldUp, shortSentence, tone } from "./verdict.js";

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

const PAGE = 100;
const FILTERS = [["state", "State"], ["cause", "Limited by"], ["framework", "Framework"], ["owner", "Owner"], ["cluster", "Cluster"]];
const chosen = new URLSearchParams(location.search);

// `sort` is the name that the interface has for a column; `wide` takes a full line on a phone.
const COLUMNS = [
  { name: "Job", sort: "name", wide: true, cell: (job) => [el("a", { href: jobAddress(job.name), id: `job-${job.name}`, class: "row" }, job.name), " ", el("span", { class: "quiet" }, layout(job))] },
  { name: "State", sort: "state", cell: (job) => el("span", { class: `state ${job.state}` }, stateText(job)) },
  { name: "Step", sort: "step", number: true, cell: (job) => progress(job.step, job.train_steps) },
  { name: "Step time", sort: "step_time", number: true, cell: (job) => duration(job.step_time_s) },
  { name: "Last hour", cell: (job) => sparkline(job.trend_step_time_s ?? [], "Step time of the last hour", duration) },
  { name: "MFU", sort: "mfu", number: true, cell: (job) => percent(job.mfu_ratio) },
  { name: "Limited by", sort: "gain", number: true, wide: true, left: true, cell: (job) => limit(job) },
  { name: "Wasted GPU-h", sort: "wasted", number: true, cell: (job) => hours(job) },
  { name: "Alerts", sort: "alerts", number: true, cell: (job) => (job.firing_alerts ? el("strong", { class: "limit" }, String(job.firing_alerts)) : "0") },
  { name: "Owner", sort: "owner", cell: (job) => [job.owner, job.cluster].filter(Boolean).join(" · ") || "-" },
];

// By what it costs: red is for a tenth of the job's time and more.
const severity = (finding) => ({ severe: "limit", slight: "" })[tone(finding)] ?? "quiet";

function limit(job) {
  const cost = job.bottleneck?.gain_ratio;
  return [el("span", { class: severity(job.bottleneck) }, shortSentence(job.bottleneck)), isHeldUp(job.bottleneck) && cost != null && el("span", { class: "quiet" }, ` costs ${percent(cost)}`)];
}

const hours = (job) => (job.wasted_gpu_h == null ? "-" : count(job.wasted_gpu_h, 1));

// The request for the chosen jobs.
export function fleetPath() {
  const asked = new URLSearchParams(chosen);
  asked.set("limit", PAGE);
  asked.set("trend", "1");
  return `fleet?${asked}`;
}

function choose(changes) {
  for (const [name, value] of Object.entries({ offset: "", ...changes })) {
    if (value) chosen.set(name, value);
    else chosen.delete(name);
  }
  history.replaceState(null, "", `${location.pathname}${chosen.size ? `?${chosen}` : ""}`);
  wake();
}

export function showFleet(main, fleet) {
  const { jobs, page, agents, servers, filters } = fleet;
  section(main, "summary", [fleet.counts, page.total, agents, servers], () => (page.total ? [summary(fleet)] : [empty(agents, servers)]));
  section(main, "elsewhere", fleet.alerts, () => elsewhere(fleet.alerts));
  const options = FILTERS.map(([name]) => filters[name].map((one) => one.value));
  // History may have ended jobs that are no longer in memory.
  if (fleet.stored && !options[0].includes("ended")) options[0].push("ended");
  const some = page.total > 1 || fleet.stored;
  section(main, "tools", [some, options], () => (some ? [tools(options)] : []));
  const cells = jobs.map((job) => COLUMNS.map((column) => column.cell(job)));
  section(main, "table", [cells.map(print), page, String(chosen)], () => (page.total ? [table(cells), rest(page)] : []));
  const found = main.querySelector(".count");
  if (found) found.textContent = page.matched === page.total ? "" : `${page.matched} of ${page.total}`;
}

// What a cell shows: an unchanged table is not drawn again.
const print = (line) => line.map((cell) => [cell].flat().map((part) => (part instanceof Element ? [part.getAttribute("class"), part.textContent] : part)));

function tools(options) {
  const input = el("input", { type: "search", id: "search", placeholder: "Search jobs", "aria-label": "Search jobs", "aria-controls": "jobs", autocomplete: "off", spellcheck: "false", value: chosen.get("q") ?? "" });
  input.addEventListener("input", () => choose({ q: input.value }));
  const selects = FILTERS.map(([name, title], i) => options[i].length > (chosen.has(name) ? 0 : 1) && filter(name, title, options[i]));
  return el("div", { class: "tools", role: "search" }, input, selects, el("output", { class: "count quiet" }));
}

function filter(name, title, values) {
  const now = chosen.get(name) ?? "";
  const all = now && !values.includes(now) ? [now, ...values] : values;
  const select = el("select", { id: `filter-${name}`, "aria-label": title }, el("option", { value: "" }, `${title}: all`), all.map((value) => el("option", { value, selected: value === now }, value)));
  select.addEventListener("change", () => choose({ [name]: select.value }));
  return select;
}

function table(cells) {
  const body = cells.map((line) => el("tr", {}, line.map((cell, i) => el("td", { "data-label": COLUMNS[i].name, class: classes(COLUMNS[i]) }, cell))));
  return el("div", { class: "scroll" }, el("table", { class: "list one-line", id: "jobs" }, el("thead", {}, el("tr", {}, COLUMNS.map(head))), el("tbody", {}, body)));
}

const classes = (column) => [column.number && !column.left && "number", column.wide && "wide"].filter(Boolean).join(" ") || null;

function head(column, i) {
  if (!column.sort) return el("th", { scope: "col", class: classes(column) }, column.name);
  const sorted = chosen.get("sort") === column.sort;
  const down = chosen.get("down") === "1";
  const button = el("button", { type: "button", id: `jobs-by-${i}`, title: `Sort by ${column.name}` }, column.name, sorted && el("span", { "aria-hidden": "true" }, down ? " ▾" : " ▴"));
  button.addEventListener("click", () => choose({ sort: column.sort, down: (sorted ? !down : Boolean(column.number)) ? "1" : "" }));
  return el("th", { scope: "col", "aria-sort": sorted ? (down ? "descending" : "ascending") : null, class: classes(column) }, button);
}

function rest({ offset, matched }) {
  if (matched === 0) return el("p", { class: "quiet", id: "jobs-none" }, "No matching jobs.");
  if (matched <= PAGE && !offset) return null;
  const step = (id, text, to) => {
    const button = el("button", { type: "button", id, disabled: to < 0 || to >= matched }, text);
    button.addEventListener("click", () => choose({ offset: String(to || "") }));
    return button;
  };
  return el("p", { class: "quiet pages" }, `${offset + 1} to ${Math.min(offset + PAGE, matched)} of ${matched} `, step("jobs-before", "Previous", offset - PAGE), " ", step("jobs-next", "Next", offset + PAGE));
}

// Alerts about nodes and servers belong to no job.
const elsewhere = (alerts) => alerts.map((alert) => el("p", { class: "notice bad" }, el("strong", {}, alert.name), prose(` ${alert.summary}`)));

function summary({ counts, page, agents, servers }) {
  const { running, silent, ended, held_up: limited, firing_alerts: alerts } = counts;
  const facts = [`${running} running`, silent && `${silent} silent`, ended && `${ended} ended`, alerts && el("a", { href: to("alerts") }, plural(alerts, "firing alert"))];
  return el(
    "div",
    {},
    el("h1", { id: "summary" }, limited ? `${limited} of ${plural(running + silent, "active job")} ${limited === 1 ? "has" : "have"} a bottleneck` : plural(page.total, "job")),
    el("p", { class: "quiet" }, facts.filter(Boolean).flatMap((fact) => [fact, " · "]), el("a", { href: to("agents") }, `${agents.connected} of ${plural(agents.count, "agent")} connected`), servers.count > 0 && [" · ", el("a", { href: to("servers") }, plural(servers.count, "serving engine"))]),
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

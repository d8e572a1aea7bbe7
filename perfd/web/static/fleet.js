// All jobs, those that are limited by something first.

import { el, section } from "./dom.js";
import { count, duration, layout, percent, step } from "./format.js";
import { isTrouble, sentence } from "./verdict.js";

const STALE_S = 30;

export function showFleet(main, jobs, alerts) {
  section(main, "fleet", [jobs.map(row), firing(alerts)], () =>
    jobs.length ? [el("h1", {}, jobs.length === 1 ? "1 job" : `${jobs.length} jobs`), table(jobs, alerts)] : [empty()],
  );
}

export const isStale = (job) => !job.ended && job.silent_s > STALE_S;

const firing = (alerts) => alerts.filter((alert) => alert.state === "firing");

// What of a job is shown, so that a table of which nothing changes is not drawn again.
const row = (job) => [job.name, state(job), step(job), job.step_time_s, job.tokens_per_s, job.mfu_ratio, job.bottleneck];

function state(job) {
  if (job.ended) return "ended";
  return isStale(job) ? "silent" : "running";
}

function table(jobs, alerts) {
  const heads = ["Job", "State", "Step", "Step time", "Tokens/s", "MFU", "Comm", "Limited by", "Alerts"];
  const numbers = new Set(["Step", "Step time", "Tokens/s", "MFU", "Comm", "Alerts"]);
  const order = [...jobs].sort((a, b) => a.ended - b.ended || isTrouble(b.bottleneck) - isTrouble(a.bottleneck) || a.name.localeCompare(b.name));
  const body = order.map((job) => {
    const count_of = firing(alerts).filter((alert) => alert.job === job.name).length;
    const cells = [
      [el("a", { href: `/jobs/${encodeURIComponent(job.name)}`, id: `job-${job.name}` }, job.name), el("small", {}, layout(job))],
      el("span", { class: `state ${state(job)}` }, state(job)),
      step(job),
      duration(job.step_time_s?.median),
      count(job.tokens_per_s),
      percent(job.mfu_ratio),
      percent(job.communication?.share_ratio),
      el("span", { class: isTrouble(job.bottleneck) ? "limit" : "quiet" }, sentence(job.bottleneck).replace(/^Limited by (the |a |its )?/, "")),
      count_of ? el("strong", { class: "limit" }, String(count_of)) : "0",
    ];
    return el("tr", {}, cells.map((cell, i) => el("td", { "data-label": heads[i], class: numbers.has(heads[i]) && "number" }, cell)));
  });
  const head = el("tr", {}, heads.map((name) => el("th", { scope: "col", class: numbers.has(name) && "number" }, name)));
  return el("table", { class: "jobs", id: "jobs" }, el("thead", {}, head), el("tbody", {}, body));
}

function empty() {
  return el(
    "div",
    { class: "empty", id: "empty" },
    el("h1", {}, "No job yet"),
    el("p", {}, "Agents send what they see about once a second. Start one where a job runs:"),
    el("pre", {}, "perfd agent\nperfd run -- torchrun train.py"),
  );
}

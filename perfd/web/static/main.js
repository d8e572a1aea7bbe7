// Which view the address asks for, and the loop that keeps it up to date.

import { get } from "./api.js";
import { showCaptures } from "./captures.js";
import { el } from "./dom.js";
import { showFleet } from "./fleet.js";
import { clock } from "./format.js";
import { showJob } from "./job.js";

const EVERY_MS = 2000;
const main = document.getElementById("main");
const place = placeOf(location.pathname);
let shownAt = null;

function placeOf(path) {
  const [, top, name, view] = path.split("/");
  if (top !== "jobs" || !name) return { view: "fleet" };
  try {
    return { view: view === "captures" ? "captures" : "job", job: decodeURIComponent(name) };
  } catch {
    return { view: "job", job: name };
  }
}

function drawPlace() {
  const where = document.getElementById("where");
  if (!place.job) return;
  document.title = `${place.job} – perfd`;
  const base = `/jobs/${encodeURIComponent(place.job)}`;
  const link = (view, href, text) => el("a", { href, "aria-current": place.view === view ? "page" : null }, text);
  where.append(el("a", { href: "/" }, "Jobs"), link("job", base, place.job), link("captures", `${base}/captures`, "Captures"));
}

async function load() {
  if (place.view === "fleet") {
    const [jobs, alerts] = await Promise.all([get("jobs"), get("alerts")]);
    return () => showFleet(main, jobs.jobs, alerts.alerts);
  }
  if (place.view === "captures") {
    const found = await get(`captures?job=${encodeURIComponent(place.job)}`);
    return () => showCaptures(main, place.job, found.captures);
  }
  return showJob(main, place.job);
}

async function refresh() {
  try {
    const draw = await load();
    if (!shownAt || main.dataset.state === "missing") main.replaceChildren();
    main.dataset.state = "live";
    draw();
    shownAt = new Date();
    notice(null);
    document.getElementById("updated").textContent = `Updated ${clock(shownAt)}`;
  } catch (error) {
    fail(error);
  }
}

function fail(error) {
  const since = shownAt ? ` What is shown is from ${clock(shownAt)}.` : "";
  if (error.status === 404) {
    main.dataset.state = "missing";
    main.replaceChildren(el("div", { class: "empty" }, el("h1", {}, "No such job"), el("p", {}, error.message), el("p", {}, el("a", { href: "/" }, "See all jobs"))));
    notice(null);
    shownAt = null;
    return;
  }
  main.dataset.state = error.status === 0 ? "disconnected" : "error";
  if (!shownAt) main.replaceChildren();
  if (error.status === undefined) console.error(error);
  const text = error.status === undefined ? "This page failed to show what it got; the browser's console says why." : error.message;
  notice(`${text} Trying again every ${EVERY_MS / 1000} s.${since}`);
}

function notice(text) {
  const notices = document.getElementById("notices");
  if (notices.textContent === (text ?? "")) return;
  notices.replaceChildren(...(text ? [el("p", { class: "notice bad", role: "alert" }, text)] : []));
}

// Who comes back to the page, or turns the phone, does not wait.
function pause() {
  const waking = new AbortController();
  return new Promise((done) => {
    setTimeout(done, EVERY_MS);
    for (const [target, event] of [[document, "visibilitychange"], [window, "resize"]]) {
      target.addEventListener(event, done, { signal: waking.signal });
    }
  }).finally(() => waking.abort());
}

async function run() {
  drawPlace();
  for (;;) {
    if (document.visibilityState === "visible") await refresh();
    await pause();
  }
}

run();

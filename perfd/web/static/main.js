// Routes the address to a view and keeps it up to date.

import { showAgents } from "./agents.js";
import { loadAlerts, showAlerts } from "./alerts.js";
import { get, jobPath, missing } from "./api.js";
import { showCapture, showCaptures } from "./captures.js";
import { showComparison } from "./compare.js";
import { el, prose } from "./dom.js";
import { fleetPath, showFleet } from "./fleet.js";
import { clock } from "./format.js";
import { showJob } from "./job.js";
import { listenToKeys } from "./keys.js";
import { loadLinks } from "./links.js";
import { follow, wake } from "./live.js";
import { showNodes } from "./nodes.js";
import { jobAddress, to, within } from "./paths.js";
import { showRank } from "./rank_page.js";
import { showServers } from "./servers.js";
import { watchWidth } from "./view.js";

const main = document.getElementById("main");
const place = placeOf(within(location.pathname));
let shownAt = null;
let how = "polling";

function placeOf(path) {
  const [, top, name, view, rank] = path.split("/");
  if (["servers", "agents", "nodes", "alerts", "compare"].includes(top)) return { view: top };
  if (top !== "jobs" || !name) return { view: "fleet" };
  try {
    const job = decodeURIComponent(name);
    if (view === "ranks" && /^\d{1,9}$/.test(rank ?? "")) return { view: "rank", job, rank: Number(rank) };
    if (view === "captures" && rank) return { view: "capture", job, id: decodeURIComponent(rank) };
    return { view: view === "captures" ? "captures" : "job", job };
  } catch {
    return { view: "job", job: name };
  }
}

function drawPlace() {
  const link = (view, href, text) => el("a", { href, "aria-current": place.view === view ? "page" : null }, text);
  const where = document.getElementById("where");
  where.append(link("fleet", to(""), "Jobs"), link("servers", to("servers"), "Serving"), link("nodes", to("nodes"), "Nodes"), link("agents", to("agents"), "Agents"), link("alerts", to("alerts"), "Alerts"), link("compare", to("compare"), "Compare"));
  if (!place.job) {
    document.title = `${where.querySelector("[aria-current]").textContent} – perfd`;
    return;
  }
  document.title = `${place.job} – perfd`;
  document.getElementById("job-place").append(link("job", jobAddress(place.job), place.job), link("captures", jobAddress(place.job, "captures"), "Captures"));
}

// Loads first and returns a draw function, so a failed request leaves the page as it was.
async function load() {
  if (place.view === "fleet") {
    const fleet = await get(fleetPath());
    return () => showFleet(main, fleet);
  }
  if (place.view === "servers") {
    const [{ servers }, { captures }] = await Promise.all([get("servers"), get("captures?short=1&kind=server")]);
    return () => showServers(main, servers, captures);
  }
  if (place.view === "agents") {
    const { agents } = await get("agents");
    return () => showAgents(main, agents);
  }
  if (place.view === "alerts") {
    const found = await loadAlerts();
    return () => showAlerts(main, found);
  }
  if (place.view === "nodes") {
    const { nodes } = await get("nodes");
    return () => showNodes(main, nodes);
  }
  if (place.view === "compare") return showComparison(main, new URLSearchParams(location.search));
  if (place.view === "captures") {
    const { captures } = await get(`captures?short=1&job=${encodeURIComponent(place.job)}`);
    // 404 if there is no such job.
    if (!captures.length) await get(jobPath(place.job));
    return () => showCaptures(main, place.job, captures);
  }
  if (place.view === "capture") {
    const { capture } = await get(`captures/${encodeURIComponent(place.id)}`);
    return () => showCapture(main, capture);
  }
  if (place.view === "rank") return showRank(main, place.job, place.rank, wake);
  return showJob(main, place.job, wake);
}

async function refresh() {
  try {
    const [draw, status] = await Promise.all([load(), get("status").catch(missing), loadLinks()]);
    const first = !shownAt;
    if (first || main.dataset.state === "missing") main.replaceChildren();
    main.dataset.state = "live";
    draw();
    shownAt = new Date();
    notice([status?.history_problem, status?.jobs_problem, status?.stream_problem].filter(Boolean).join(" ") || null);
    drawUpdated();
    // For measurements: docs/benchmarks-cost.md.
    if (first) performance.mark("shown");
    if (first && location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
  } catch (error) {
    fail(error);
  }
}

function drawUpdated() {
  const updated = document.getElementById("updated");
  updated.dataset.how = how;
  if (how === "saved") {
    updated.textContent = `Saved ${new Date(document.documentElement.dataset.saved * 1000).toLocaleString()}`;
    return;
  }
  updated.textContent = [shownAt ? `Updated ${clock(shownAt)}` : "Loading", how === "live" ? "" : "every 5 s"].filter(Boolean).join(" · ");
}

function fail(error) {
  const since = shownAt ? ` Showing data from ${clock(shownAt)}.` : "";
  if (error.status === 404) {
    main.dataset.state = "missing";
    main.replaceChildren(el("div", { class: "empty" }, el("h1", {}, place.view === "capture" ? "Capture not found" : "Job not found"), el("p", {}, prose(error.message)), el("p", {}, el("a", { href: to("") }, "All jobs"))));
    notice(null);
    shownAt = null;
    return;
  }
  main.dataset.state = error.status === 0 ? "disconnected" : "error";
  if (!shownAt) main.replaceChildren();
  if (error.status === undefined) console.error(error);
  const text = error.status === undefined ? "The page failed to render; see the browser’s console." : error.message;
  notice(`${text} Retrying every 5 s.${since}`);
}

function notice(text) {
  const notices = document.getElementById("notices");
  if (notices.said === text) return;
  notices.said = text;
  notices.replaceChildren(...(text ? [el("p", { class: "notice bad", role: "alert" }, prose(text))] : []));
}

// theme.js applies the choice.
function listenToTheme() {
  const select = document.getElementById("theme");
  try {
    select.value = localStorage.getItem("perfd-theme") ?? "";
  } catch {
    select.hidden = true;
  }
  select.addEventListener("change", () => {
    if (select.value) localStorage.setItem("perfd-theme", select.value);
    else localStorage.removeItem("perfd-theme");
    window.dispatchEvent(new Event("storage"));
    wake();
  });
}

drawPlace();
listenToKeys(place);
listenToTheme();
watchWidth(main, wake);
follow(refresh, (now) => {
  how = now;
  drawUpdated();
});

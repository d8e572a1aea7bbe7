// Keyboard shortcuts; `?` lists them.

import { el } from "./dom.js";
import { jobAddress, to } from "./paths.js";

const typing = (target) => target.closest("input, textarea, select") !== null;

export function listenToKeys(place) {
  const job = place.job === undefined ? null : jobAddress(place.job);
  const keys = [
    ["?", "this list", () => help.showModal()],
    ["/", "search", () => document.getElementById("search")?.focus()],
    ["j", "next row or section", () => step(1)],
    ["k", "previous row or section", () => step(-1)],
    ["h", "all jobs", () => location.assign(to(""))],
    ["s", "serving engines", () => location.assign(to("servers"))],
    ["n", "nodes", () => location.assign(to("nodes"))],
    ["a", "agents", () => location.assign(to("agents"))],
    ["l", "alerts", () => location.assign(to("alerts"))],
    ...(job ? [["o", "this job", () => location.assign(job)], ["c", "its captures", () => location.assign(`${job}/captures`)], ["r", "its report", () => location.assign(to(`reports/jobs/${encodeURIComponent(place.job)}`))]] : []),
  ];
  const help = dialog(keys);
  document.body.append(help);
  document.getElementById("help").addEventListener("click", () => help.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (typing(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const found = keys.find(([key]) => key === event.key);
    if (!found) return;
    event.preventDefault();
    found[2]();
  });
}

// Table rows have links, sections have headings.
function step(by) {
  const main = document.getElementById("main");
  const stops = [...(main.querySelector(".row") ? main.querySelectorAll(".row") : main.querySelectorAll("h1, h2"))].filter((stop) => stop.offsetParent);
  const at = stops.indexOf(document.activeElement);
  const next = stops[Math.min(Math.max(at + by, 0), stops.length - 1)];
  if (next && !next.matches("a")) next.tabIndex = -1;
  next?.focus();
}

function dialog(keys) {
  const close = el("button", { type: "button" }, "Close");
  const lines = [...keys, ["← →", "move along a chart"], ["Esc", "reset a chart’s zoom, leave the search"]];
  const list = el("dialog", { id: "keys", "aria-label": "Keys" }, el("h2", {}, "Keys"), el("dl", {}, lines.map(([key, says]) => el("div", {}, el("dt", {}, el("kbd", {}, key)), el("dd", {}, says)))), el("p", {}, close));
  close.addEventListener("click", () => list.close());
  return list;
}

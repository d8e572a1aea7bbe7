// Nodes: what jobs blamed them for, and which are worse than their peers.

import { el, section } from "./dom.js";
import { percent, plural } from "./format.js";
import { linksOf } from "./links.js";
import { sortedTable } from "./table.js";

const SHOWN = 3;
const fixed = (value, digits) => (value == null ? "-" : value.toFixed(digits));
const day = (unixS) => new Date(unixS * 1000).toISOString().slice(0, 16).replace("T", " ");
const what = (one) => [one.kind.replaceAll("_", " "), one.gpu && `GPU ${one.gpu}`, one.count > 1 && `×${one.count}`].filter(Boolean).join(" ");
const line = (one) => el("small", { title: one.evidence }, `${what(one)}${one.job ? ` in ${one.job}` : ""}, ${day(one.last_unix_s)}: ${one.evidence}`);

function blamed(node) {
  const left = node.incident_count - SHOWN;
  return [...node.incident_list.slice(0, SHOWN).map(line), left > 0 && el("small", {}, `and ${left} more: perfd nodes --node ${node.node}`)].filter(Boolean);
}

const table = sortedTable({
  id: "nodes",
  noun: "nodes",
  order: (a, b) => (b.suspect_ratio ?? 0) - (a.suspect_ratio ?? 0) || b.lost_gpu_h - a.lost_gpu_h || a.node.localeCompare(b.node, "en", { numeric: true }),
  text: (node) => [node.node, node.kind, node.suspect && "suspect", ...node.incident_list.map((one) => `${what(one)} ${one.job}`)].join(" "),
  columns: [
    { name: "Node", wide: true, value: (node) => node.node, cell: (node) => [el("strong", {}, node.node), el("small", {}, node.kind ?? ""), ...linksOf("node", { node: node.node }).map((link) => el("small", {}, link))] },
    { name: "Suspect", number: true, value: (node) => node.suspect_ratio, cell: (node) => el("span", { class: node.suspect ? "limit" : "quiet" }, percent(node.suspect_ratio, 0)) },
    { name: "Incidents", number: true, value: (node) => node.incidents, cell: (node) => fixed(node.incidents, 1) },
    { name: "Peers would have", number: true, value: (node) => node.expected_incidents, cell: (node) => fixed(node.expected_incidents, 1) },
    { name: "GPU-hours", number: true, value: (node) => node.observed_gpu_h, cell: (node) => fixed(node.observed_gpu_h, 1) },
    { name: "Lost GPU-hours", number: true, value: (node) => node.lost_gpu_h, cell: (node) => fixed(node.lost_gpu_h, 2) },
    { name: "Jobs", number: true, value: (node) => node.jobs, cell: (node) => String(node.jobs) },
    { name: "Blamed for", wide: true, cell: blamed },
  ],
});

function advice(node) {
  const drained = node.drain && el("p", { class: "quiet" }, `perfd drained it at ${day(node.drain.unix_s)}: ${node.drain.outcome}`);
  return el("div", { class: "notice bad" }, el("strong", {}, node.node), ` is worse than its peers: ${(node.reason ?? "").replace("perfd: ", "")}.`, node.advice.map((one) => el("pre", {}, one.command)), drained);
}

export function showNodes(main, nodes) {
  const suspects = nodes.filter((node) => node.suspect);
  section(main, "summary", [suspects.length, nodes.length], () =>
    nodes.length
      ? [el("h1", { id: "summary" }, suspects.length ? plural(suspects.length, "suspect node") : "No suspect node"), el("p", { class: "quiet" }, `${plural(nodes.length, "node")} blamed by jobs, compared with peers of the same GPUs per GPU-hour`)]
      : [el("div", { class: "empty", id: "empty" }, el("h1", {}, "No node was blamed yet"), el("p", {}, "Stragglers, throttling, hangs, slow links and errors of hardware are remembered by node, over all jobs. All nodes:"), el("pre", {}, "perfd nodes --all"))],
  );
  section(main, "advice", suspects, () => suspects.map(advice));
  if (nodes.length) table.show(main, nodes);
}

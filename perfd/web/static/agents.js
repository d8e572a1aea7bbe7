// Connected and disconnected agents.

import { copyButton } from "./actions.js";
import { el, prose, section } from "./dom.js";
import { count, duration, elapsed, plural } from "./format.js";
import { linksOf } from "./links.js";
import { sortedTable } from "./table.js";

const state = (agent) => (agent.connected ? "connected" : agent.left ? "left" : "disconnected");

const gap = (one) => el("small", { class: "gap" }, el("strong", {}, one.what), prose(` ${one.words} `), one.command && [el("code", {}, one.command), " ", copyButton("Copy", one.command)]);

const table = sortedTable({
  id: "agents",
  noun: "agents",
  order: (a, b) => a.left - b.left || a.connected - b.connected || (b.missing ?? []).length - (a.missing ?? []).length || a.node.localeCompare(b.node, "en", { numeric: true }),
  text: (agent) => [agent.node, state(agent), agent.version, ...(agent.missing ?? []).flatMap((one) => [one.what, one.words])].join(" "),
  columns: [
    { name: "Node", wide: true, value: (agent) => agent.node, cell: (agent) => [el("strong", {}, agent.node), ...linksOf("node", { node: agent.node }).map((link) => el("small", {}, link))] },
    { name: "State", value: state, cell: (agent) => el("span", { class: `state ${state(agent)}` }, state(agent)) },
    { name: "Last seen", number: true, value: (agent) => agent.silent_s, cell: (agent) => `${elapsed(agent.silent_s)} ago` },
    { name: "Lag", number: true, value: (agent) => agent.lag_s, cell: (agent) => duration(agent.lag_s) },
    { name: "Batches", number: true, value: (agent) => agent.batches, cell: (agent) => count(agent.batches) },
    { name: "Lost records", number: true, value: (agent) => agent.dropped_records, cell: (agent) => count(agent.dropped_records) },
    { name: "Clock ahead", number: true, value: (agent) => agent.clock_offset_s, cell: (agent) => duration(agent.clock_offset_s) },
    { name: "Capture tools", value: (agent) => agent.capture_tools.join(" "), cell: (agent) => agent.capture_tools.join(", ") || "none" },
    { name: "Version", value: (agent) => agent.version, cell: (agent) => agent.version ?? "unknown" },
    { name: "Missing, and how to fix it", wide: true, value: (agent) => agent.missing?.length, cell: (agent) => (agent.missing?.length ? agent.missing.map(gap) : "Nothing is missing.") },
  ],
});

export function showAgents(main, agents) {
  const connected = agents.filter((agent) => agent.connected).length;
  const expected = agents.filter((agent) => !agent.left).length;
  const lacking = agents.filter((agent) => agent.missing?.length).length;
  section(main, "summary", [connected, expected, agents.length, lacking], () =>
    agents.length
      ? [el("h1", { id: "summary" }, `${connected} of ${plural(expected, "agent")} connected`), el("p", { class: "quiet" }, lacking ? `${plural(lacking, "agent")} with something missing` : "Nothing is missing.")]
      : [el("div", { class: "empty", id: "empty" }, el("h1", {}, "No agent yet"), el("p", {}, "Run an agent on each node with this aggregator’s address:"), el("pre", {}, "perfd agent --aggregator HOST:9461"))],
  );
  if (agents.length) table.show(main, agents);
}

// Serving engines: latencies compared with what the hardware allows, and the setting to change.

import { el, prose, section } from "./dom.js";
import { count, duration, moment, percent, plural, UNKNOWN } from "./format.js";
import { captureAddress } from "./paths.js";
import { sortedTable } from "./table.js";

const STALE_S = 30;
const SLOW = 1.5;
const CARDS = 24;
const MOST_CAPTURES = 5;

const silent = (server) => server.silent_s > STALE_S;

function state(server) {
  if (silent(server)) return "silent";
  return server.up === false ? "down" : "up";
}

const overTheory = (server) => {
  const [measured, allowed] = [server.tpot_s.p50, server.theory?.tpot_theory_s];
  return measured == null || !allowed ? null : measured / allowed;
};

const URGENCY = { down: 0, silent: 1, up: 2 };
const order = (a, b) => URGENCY[state(a)] - URGENCY[state(b)] || b.findings.length - a.findings.length || name(a).localeCompare(name(b), "en", { numeric: true });
const engine = (server) => [server.engine, server.version].filter(Boolean).join(" ");
const layout = (server) => Object.entries(server.parallel).filter(([, size]) => size > 1).map(([dimension, size]) => `${dimension} ${size}`).join(" ");
const role = (server) => (server.role === "both" ? null : server.role);
const identity = (server) => [engine(server), server.model, role(server), layout(server)].filter(Boolean).join(" · ");
// The end of a path: as many parts as a Hugging Face model name has.
const shortModel = (server) => server.model?.split("/").slice(-2).join("/");
const name = (server) => `${server.node} ${server.server}`;
const anchor = (server) => `server-${server.node}-${server.server}`;

const table = sortedTable({
  id: "servers",
  noun: "servers",
  order,
  text: (server) => [name(server), identity(server), state(server), ...server.findings.map((finding) => finding.name)].join(" "),
  columns: [
    { name: "Server", wide: true, value: name, cell: (server) => [el("strong", {}, server.server), el("small", {}, server.node)] },
    { name: "Engine", value: engine, cell: (server) => [engine(server) || UNKNOWN, server.model && el("small", { class: "model", title: server.model }, shortModel(server))] },
    { name: "State", value: state, cell: (server) => el("span", { class: `state ${state(server)}` }, state(server)) },
    { name: "Running", number: true, value: (server) => server.running_requests, cell: (server) => count(server.running_requests) },
    { name: "Queued", number: true, value: (server) => server.queued_requests, cell: (server) => count(server.queued_requests) },
    { name: "KV cache", number: true, value: (server) => server.kv_cache_used_ratio, cell: (server) => percent(server.kv_cache_used_ratio) },
    { name: "Tokens/s", number: true, value: (server) => server.generation_tokens_per_s, cell: (server) => count(server.generation_tokens_per_s) },
    { name: "TTFT p50", number: true, value: (server) => server.ttft_s.p50, cell: (server) => duration(server.ttft_s.p50) },
    { name: "TPOT p50", number: true, value: (server) => server.tpot_s.p50, cell: (server) => duration(server.tpot_s.p50) },
    { name: "Over theory", number: true, value: overTheory, cell: (server) => times(overTheory(server)) },
  ],
});

const times = (ratio) => (ratio == null ? UNKNOWN : `${ratio.toFixed(2)} ×`);

export function showServers(main, servers, captures) {
  section(main, "summary", servers.map((server) => [state(server), server.findings.length]), () => (servers.length ? [summary(servers)] : [empty()]));
  if (!servers.length) return;
  if (servers.length > 1) table.show(main, servers);
  const of = (server) => captures.filter((one) => one.job === `${server.node}/${server.server}`);
  section(main, "cards", [servers, captures], () => [...servers].sort(order).slice(0, CARDS).map((server) => card(server, of(server))));
}

function summary(servers) {
  const troubled = servers.filter((server) => state(server) !== "up" || server.findings.length).length;
  return el("h1", { id: "summary" }, troubled ? `${troubled} of ${plural(servers.length, "serving engine")} ${troubled === 1 ? "needs" : "need"} attention` : plural(servers.length, "serving engine"));
}

function card(server, captures) {
  const theory = server.theory ?? {};
  return el(
    "article",
    { class: `card server ${state(server)}`, id: anchor(server) },
    el("h2", {}, server.server, " ", el("span", { class: `state ${state(server)}` }, state(server)), el("small", {}, server.node)),
    identity(server) && el("p", { class: "quiet" }, identity(server)),
    el("p", { class: "headline" }, headline(server)),
    server.findings.map((finding) => el("p", { class: "finding" }, el("strong", {}, prose(`${finding.summary}. `)), prose(finding.advice))),
    silent(server) && el("p", { class: "notice warn" }, `No data from its agent for ${duration(server.silent_s)}.`),
    latencies("Time to first token", server.ttft_s, [["floor for a prompt of mean length", theory.ttft_floor_s]]),
    latencies("Time per token", server.tpot_s, [["floor at the current batch", theory.tpot_theory_s], ["floor of a single request", theory.tpot_floor_s]]),
    facts(server),
    captureList(captures),
  );
}

function captureList(captures) {
  if (!captures.length) return null;
  const id = (one) => el("a", { href: captureAddress(one.job, one.id) }, one.id);
  const line = (one) => el("li", {}, el("span", { class: `state ${one.state}` }, one.state), " ", id(one), " ", el("span", { class: "quiet" }, moment(one.requested_unix_s)), one.reason && prose(` ${one.reason}`));
  return [el("h3", {}, "Captures"), el("ul", { class: "captures" }, captures.slice(-MOST_CAPTURES).reverse().map(line))];
}

function headline(server) {
  if (server.up === false) return "No metrics from this server.";
  const ratio = overTheory(server);
  if (ratio == null) return server.theory ? "No tokens decoded in the newest window." : "Theory unknown: the server does not report its model or GPU (docs/serving.md).";
  const measured = `TPOT p50 is ${duration(server.tpot_s.p50)}, ${ratio.toFixed(2)} times the floor of its batch (${duration(server.theory.tpot_theory_s)})`;
  return ratio > SLOW ? `${measured}: kernels and links do not explain it.` : `${measured}: at the hardware’s limit.`;
}

// Bars on one scale, with theory as lines.
function latencies(title, found, limits) {
  const known = [["p50", found.p50], ["p90", found.p90], ["p99", found.p99]].filter(([, value]) => value != null);
  if (!known.length) return el("p", { class: "quiet" }, `${title}: unknown.`);
  const lines = limits.filter(([, value]) => value != null);
  const most = Math.max(...known.map(([, value]) => value), ...lines.map(([, value]) => value));
  const at = (value) => `${((value / most) * 100).toFixed(2)}%`;
  const row = ([label, value]) =>
    el("li", {}, el("span", { class: "name" }, label), el("span", { class: "track" }, el("span", { class: "part latency", style: { width: at(value) } }), lines.map(([, limit]) => el("span", { class: "theory", style: { left: at(limit) } }))), el("strong", {}, duration(value)));
  const says = lines.map(([words, value]) => `${duration(value)} ${words}`).join(", ");
  return el("figure", {}, el("h3", {}, title), el("ol", { class: "stages" }, known.map(row)), says && el("figcaption", { class: "quiet" }, `Theory: ${says}.`));
}

function facts(server) {
  const all = [
    ["Running", count(server.running_requests)],
    ["Queued", count(server.queued_requests)],
    ["KV cache", percent(server.kv_cache_used_ratio)],
    ["Prefix hits", percent(server.prefix_hit_ratio)],
    ["Tokens/s", count(server.generation_tokens_per_s)],
    ["Prompt tokens/s", count(server.prompt_tokens_per_s)],
    ["Memory bandwidth", percent(server.theory?.memory_bandwidth_used_ratio)],
    ["CUDA graphs", percent(server.cuda_graph_ratio)],
  ];
  return el("dl", { class: "facts" }, all.map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, value))));
}

const empty = () =>
  el("div", { class: "empty", id: "empty" }, el("h1", {}, "No serving engines yet"), el("p", {}, "Agents discover SGLang and vLLM servers that export metrics on their node. To check one directly:"), el("pre", {}, "perfd serving http://127.0.0.1:30000"));

// Rank-by-rank matrices: which rank waits for which, and the bandwidth of the links between them.

import { el, section } from "./dom.js";
import { bandwidth, count, percent, rankNames } from "./format.js";
import { jobAddress } from "./paths.js";

// A wait for this share of the time, or a link short of this share of its bandwidth, gets the full color.
const FULL = 0.5;
const DOCS = "docs/nccl.md";
let chosen = "waits";

export function drawPeers(main, job, peers, again) {
  const known = ["waits", "links"].filter((kind) => peers?.[kind]);
  const ranks = job.parallel?.world_size ?? job.gpu_count;
  section(main, "peers", [peers, known.includes(chosen) ? chosen : known[0], ranks], () => {
    if (!known.length) return absent(peers, ranks);
    const shown = known.includes(chosen) ? chosen : known[0];
    return [el("h2", {}, "Waits and links between ranks"), ...(known.length > 1 ? [tabs(shown, again)] : []), shown === "waits" ? waits(job.name, peers, ranks) : links(job.name, peers, ranks)];
  });
}

function absent(peers, ranks) {
  if (!peers || !(ranks > 1)) return [];
  const why = peers.source ? "No rank waits for another in collectives with known times." : `Waits and links between ranks need times of NCCL’s operations: ${DOCS} shows how to get them.`;
  return [el("h2", {}, "Waits and links between ranks"), el("p", { class: "quiet", id: "no-peers" }, why)];
}

function tabs(shown, again) {
  const tab = (kind, text) => {
    const button = el("button", { type: "button", id: `peers-${kind}`, "aria-pressed": String(kind === shown) }, text);
    button.addEventListener("click", () => {
      chosen = kind;
      again();
    });
    return button;
  };
  return el("div", { class: "tools choice", role: "group", "aria-label": "Waiting or links" }, tab("waits", "Waiting"), tab("links", "Links"));
}

function waits(name, { waits: found, nodes, missing_ranks: silent, source }, ranks) {
  const rows = found.waiting.map((rank, i) => ({
    rank,
    cells: [...found.last.map((other, j) => (rank === other ? null : { value: found.wait_ratios[i][j], far: found.wait_ratios[i][j] / FULL, says: `rank ${rank} waits ${percent(found.wait_ratios[i][j])} of the time for rank ${other}` })),
      { value: found.all_ratios[i], far: 0, says: `rank ${rank} waits ${percent(found.all_ratios[i])} of the time for all others` }],
  }));
  const some = ranks > found.waiting.length || ranks > found.last.length;
  return matrix(name, nodes, { id: "peer-waits", corner: "Waits \\ for", columns: found.last, more: ["All"], rows, show: percent }, [
    "Share of all time that the row’s rank waits in collectives for the column’s rank, which arrives last. “All” includes ranks that are not shown, and operations whose last rank is unknown.",
    some && `Of ${count(ranks)} ranks, those that wait most and those that others wait for most.`,
    silent.length > 0 && `No data from ${rankNames(silent)}, which others may wait for.`, source && `Source: ${source}.`,
  ]);
}

function links(name, { links: found, nodes, source }, ranks) {
  const rows = found.ranks.map((rank, i) => ({
    rank,
    cells: found.ranks.map((other, j) => {
      const group = found.groups[found.group_index[i][j]];
      if (rank === other || !group) return null;
      const value = found.bus_ratios[i][j];
      return { value, far: Math.max(0, 1 - value) / FULL, says: `rank ${rank} and rank ${other}: ${bandwidth(group.bus_bytes_per_s)} of ${bandwidth(group.expected_bus_bytes_per_s)} in ${group.operation}${group.group ? ` of ${group.group}` : ""}, ${count(group.rank_count)} ranks (${group.reference})` };
    }),
  }));
  return matrix(name, nodes, { id: "peer-links", corner: "Link", columns: found.ranks, more: [], rows, show: (value) => percent(value, 0) }, [
    "Bus bandwidth of the slowest group that has both ranks, as a share of what its links allow or, if that is unknown, of similar groups. A slow link shows as a row and a column that stand out.",
    ranks > found.ranks.length && `Of ${count(ranks)} ranks, those whose groups are slowest.`, source && `Source: ${source}.`,
  ]);
}

function matrix(name, nodes, { id, corner, columns, more, rows, show }, notes) {
  const head = (rank) => el("a", { href: jobAddress(name, `ranks/${rank}`), title: nodes[rank] ? `rank ${rank} on ${nodes[rank]}` : null }, `rank ${rank}`);
  const cell = (one) => (one ? el("td", { class: one.far > 0 && "above", title: one.says, style: { "--far": `${(100 * Math.min(one.far, 1)).toFixed(0)}%` } }, show(one.value)) : el("td", { class: "none" }, el("span", { "aria-label": "none" }, "·")));
  return el("figure", {},
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Rank matrix" },
      el("table", { class: "heat matrix", id }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, corner), columns.map((rank) => el("th", { scope: "col" }, head(rank))), more.map((text) => el("th", { scope: "col" }, text)))),
        el("tbody", {}, rows.map(({ rank, cells }) => el("tr", {}, el("th", { scope: "row" }, head(rank), nodes[rank] && el("small", {}, nodes[rank])), cells.map(cell)))))),
    el("figcaption", { class: "quiet" }, notes.filter(Boolean).join(" ")));
}

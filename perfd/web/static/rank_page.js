// One rank: its numbers beside the median of all ranks, and its GPU in the job's charts.

import { ApiError, overviewOf } from "./api.js";
import { captureButton } from "./actions.js";
import { el, section } from "./dom.js";
import { signedPercent, UNKNOWN } from "./format.js";
import { drawCharts, loadSeries } from "./job_charts.js";
import { linksOf, valuesOf } from "./links.js";
import { jobAddress } from "./paths.js";
import { loadRanks, metricsOf, rankName } from "./rank_metrics.js";

// Loads first and returns a draw function, so a failed request leaves the page as it was.
export async function showRank(main, name, rank, again) {
  const [job, ranks, series] = await Promise.all([overviewOf(name), loadRanks(name, { rank }), loadSeries(name)]);
  const [row] = ranks.rows;
  if (!row) throw new ApiError(404, `${name} has no numbers of rank ${rank}.`);
  return () => {
    section(main, "rank", [row, ranks.metrics], () => [heading(job, row), numbers(row, ranks)]);
    drawCharts(main, series, { name, rank, again });
  };
}

function heading(job, row) {
  const facts = [row.node && `node ${row.node}`, row.gpu != null && `GPU ${row.gpu}`, row.stage != null && `pipeline stage ${row.stage}`].filter(Boolean).join(" · ");
  return el("div", {}, el("h1", { id: "rank" }, rankName(row), row.culprit && el("span", { class: "limit" }, " culprit"), el("small", {}, facts)),
    el("p", { class: "actions" }, el("a", { href: jobAddress(job.name) }, job.name), linksOf("rank", { ...valuesOf(job), rank: row.rank, node: row.node, gpu: row.gpu }), row.node && linksOf("node", { node: row.node }), job.ended ? [] : captureButton(job.name, `${row.rank}+peer`, "this rank")));
}

function numbers({ values }, ranks) {
  const line = ([key, name, show]) => {
    const usual = ranks.metrics[key].median;
    return el("tr", { "data-key": key }, el("th", { scope: "row" }, name), el("td", { class: "number" }, show(values[key])), el("td", { class: "number" }, usual == null ? UNKNOWN : show(usual)), el("td", { class: "number" }, difference(key, values[key], usual, show)));
  };
  return el("div", { class: "scroll" }, el("table", { class: "plain", id: "rank-numbers" }, el("thead", {}, el("tr", {}, ["Number", "This rank", "Median of ranks", "Difference"].map((name, i) => el("th", { scope: "col", class: i > 0 && "number" }, name)))), el("tbody", {}, metricsOf(ranks).filter(([key]) => values[key] != null).map(line))));
}

// If two numbers print the same, their difference is noise. Celsius has no true zero, so a percentage is meaningless.
function difference(key, own, usual, show) {
  if (usual == null) return UNKNOWN;
  const alike = show(own) === show(usual);
  if (key === "temperature_celsius") return alike ? "0 °C" : `${own < usual ? "" : "+"}${show(own - usual)}`;
  return usual ? signedPercent(alike ? 0 : own / usual - 1) : UNKNOWN;
}

// Alerts of all jobs, nodes and servers: firing ones, which can be silenced in Alertmanager, and past ones.

import { askToken } from "./actions.js";
import { get, missing, post } from "./api.js";
import { figure } from "./captures.js";
import { el, prose, section } from "./dom.js";
import { elapsed, moment, plural } from "./format.js";
import { captureAddress, jobAddress, to } from "./paths.js";
import { sortedTable } from "./table.js";

const MOST_PAST = 500;
const SILENCES = [["1 hour", 3600], ["8 hours", 28_800], ["1 day", 86_400], ["7 days", 604_800]];

let silences = null;
// Ids of silences that this page created, by the alert's labels.
const made = new Map();
const keyOf = (alert) => JSON.stringify(alert.labels);

export async function loadAlerts() {
  silences ??= (await get("silences").catch(missing)) ?? { available: false, reason: null };
  const [firing, past] = await Promise.all([get("alerts?state=firing"), get(`alerts?state=resolved&limit=${MOST_PAST}`)]);
  return { firing: firing.alerts, past: past.alerts, count: past.count };
}

// The name, as a link to the runbook.
export function runbook(alert) {
  const address = alert.annotations?.runbook_url ?? "";
  if (/^https?:\/\//.test(address)) return el("a", { href: address, rel: "noreferrer" }, alert.name);
  const served = address.startsWith("/") && document.documentElement.dataset.saved === undefined;
  return served ? el("a", { href: to(address) }, alert.name) : alert.name;
}

const about = ({ job, labels = {} }) => job ?? ([labels.node, labels.server].filter(Boolean).join("/") || "-");
const rest = ({ labels = {} }) => Object.entries(labels).filter(([name]) => !["alertname", "perfd_job", "capture", "severity"].includes(name)).map(([name, value]) => `${name} ${value}`).join(", ");
const lasted = (alert) => (alert.resolved_at_unix_s == null ? null : alert.resolved_at_unix_s - alert.fired_at_unix_s);

const table = sortedTable({
  id: "alert-list",
  noun: "alerts",
  order: (a, b) => (b.state === "firing") - (a.state === "firing") || b.fired_at_unix_s - a.fired_at_unix_s,
  text: (alert) => [alert.name, alert.state, about(alert), rest(alert), alert.annotations?.summary].join(" "),
  columns: [
    { name: "Alert", wide: true, value: (alert) => alert.name, cell: (alert) => [el("strong", {}, runbook(alert)), el("small", {}, prose(alert.annotations?.summary))] },
    { name: "State", value: (alert) => alert.state, cell: (alert) => el("span", { class: `state ${alert.state}` }, alert.state) },
    { name: "Job", value: about, cell: (alert) => [alert.job ? el("a", { href: jobAddress(alert.job) }, alert.job) : about(alert), el("small", {}, rest(alert))] },
    { name: "Value", number: true, value: (alert) => alert.value, cell: (alert) => (alert.value == null ? "-" : figure(alert.value)) },
    { name: "Since", number: true, value: (alert) => alert.fired_at_unix_s, cell: (alert) => moment(alert.fired_at_unix_s) },
    { name: "Lasted", number: true, value: lasted, cell: (alert) => elapsed(lasted(alert)) },
    { name: "Captures", cell: (alert) => (alert.captures?.length ? alert.captures.map((id) => el("small", {}, el("a", { href: captureAddress(alert.job ?? about(alert), id) }, id))) : "-") },
    { name: "Silence", cell: (alert) => (silences?.available && alert.state === "firing" ? silenceButton(alert) : "-") },
  ],
});

export function showAlerts(main, { firing, past, count }) {
  const older = count - past.length;
  section(main, "summary", [firing.length, count, silences], () =>
    firing.length + count
      ? [el("h1", { id: "summary" }, firing.length ? plural(firing.length, "firing alert") : "No alert is firing"), el("p", { class: "quiet" }, `${plural(count, "past alert")}${older > 0 ? `, of which the newest ${past.length} are shown` : ""}. `, silences?.reason ?? "")]
      : [el("div", { class: "empty", id: "empty" }, el("h1", {}, "No alert has fired"), el("p", {}, el("a", { href: to("runbooks/") }, "All alerts and when they fire")))]);
  if (firing.length + count) table.show(main, [...firing, ...past]);
}

function silenceButton(alert) {
  const says = el("output", { class: "quiet" }, made.get(keyOf(alert)) ?? "");
  const button = el("button", { type: "button", "aria-label": `Silence ${alert.name}` }, "Silence");
  button.addEventListener("click", () => {
    const length = el("select", { id: "silence-length" }, SILENCES.map(([name, seconds]) => el("option", { value: seconds }, name)));
    const who = el("input", { id: "silence-by", required: true, autocomplete: "username" });
    const why = el("input", { id: "silence-why", autocomplete: "off" });
    askToken(`Silence ${alert.name}?`, "Alertmanager will not notify about the alert with exactly these labels for that long.", "Silence",
      [el("label", {}, "For ", length), el("label", {}, "Your name ", who), el("label", {}, "Why ", why)],
      async (token) => {
        const { id } = await post("silences", { labels: alert.labels, duration_s: Number(length.value), by: who.value, comment: why.value }, token);
        made.set(keyOf(alert), `Silenced: ${id}`);
        return [made.get(keyOf(alert))];
      }, says);
  });
  return [button, says];
}

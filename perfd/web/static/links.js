// Links to other systems that the configuration adds: URLs with placeholders, by the place where they stand.

import { get, missing } from "./api.js";
import { el } from "./dom.js";

const PLACEHOLDER = /\{(\w+)\}/g;
const AROUND_MS = 60_000;

let links = null;

// Once, before anything is drawn.
export async function loadLinks() {
  links ??= (await get("links").catch(missing))?.links ?? {};
}

// Those of a place with everything they need to know; others would lead nowhere.
export function linksOf(place, values) {
  const known = (template) => [...template.matchAll(PLACEHOLDER)].every(([, name]) => values[name] != null && values[name] !== "");
  const filled = (template) => template.replace(PLACEHOLDER, (_, name) => encodeURIComponent(values[name]));
  return Object.entries(links?.[place] ?? {})
    .filter(([, template]) => /^https?:\/\//.test(template) && known(template))
    .map(([name, template]) => el("a", { href: filled(template), class: "outside", rel: "noreferrer" }, name));
}

const ms = (unixS) => (unixS == null ? null : Math.round(1000 * unixS));

// The job's run of W&B, where it names one on W&B's own servers and the configuration has no link to it.
export function wandbLink(job) {
  const configured = Object.values(links?.job ?? {}).some((template) => template.includes("{wandb_"));
  const url = !configured && /^https:\/\//.test(job.wandb?.url ?? "") && job.wandb.url;
  return url ? [el("a", { href: url, class: "outside", rel: "noreferrer" }, "W&B run")] : [];
}

// What is known of a job.
export const valuesOf = (job) => ({
  wandb_run: job.wandb?.run_id, wandb_project: job.wandb?.project, wandb_entity: job.wandb?.entity,
  job: job.name, cluster: job.cluster, namespace: job.namespace, owner: job.owner, title: job.title,
  from: ms(job.started_unix_s), to: job.ended ? ms(job.ended_unix_s) : "now",
});

// The same around a moment.
export const valuesAround = (job, firstUnixS, lastUnixS) => ({ ...valuesOf(job), from: ms(firstUnixS) - AROUND_MS, to: ms(lastUnixS) + AROUND_MS });

// For lines of text: each after a separator.
export const separated = (found) => found.flatMap((link) => [" · ", link]);

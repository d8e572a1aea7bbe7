// The aggregator's JSON interface (docs/api.md).

import { to } from "./paths.js";

const TIMEOUT_MS = 10_000;
// Of jobs whose names contain that of the one that is looked for.
const MOST_ALIKE = 100;

const texts = new WeakMap();

// The text of an answer, to compare it with an earlier one.
export const textOf = (answer) => texts.get(answer) ?? null;

// A failed request; `status` 0 means that there was no answer.
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const get = (path) => ask(path, {});

export const post = (path, body, token) =>
  ask(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) } });

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(to(`api/v1/${path}`), { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store", ...options });
  } catch {
    throw new ApiError(0, "The aggregator does not answer.");
  }
  const text = await answer.text().catch(() => "");
  const body = decoded(text);
  if (!answer.ok) throw new ApiError(answer.status, body?.error ?? `The aggregator answered with status ${answer.status}.`);
  if (body === null) throw new ApiError(answer.status, "The aggregator's answer is not JSON.");
  if (typeof body === "object") texts.set(body, text);
  return body;
}

function decoded(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

export const jobPath = (name) => `jobs/${encodeURIComponent(name)}`;

// For `catch`: what is not there is null.
export function missing(error) {
  if (error instanceof ApiError && error.status === 404) return null;
  throw error;
}

// A job's newest numbers, without its ranks; of one that is only in history, its last ones.
export async function overviewOf(name) {
  const { jobs } = await get(`jobs?short=1&job=${encodeURIComponent(name)}`);
  if (jobs.length) return jobs[0];
  const ended = await get(`jobs?short=1&state=ended&limit=${MOST_ALIKE}&q=${encodeURIComponent(name)}`).catch(missing);
  const stored = ended?.jobs.find((one) => one.name === name);
  if (stored) return stored;
  const summary = await get(`${jobPath(name)}?short=1`);
  return { ...summary.jobs[0], ended: true };
}

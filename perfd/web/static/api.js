// The aggregator's JSON interface (docs/api.md).

const TIMEOUT_MS = 10_000;

// A failed request; `status` 0 means that there was no answer.
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function get(path) {
  let answer;
  try {
    answer = await fetch(`/api/v1/${path}`, { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store" });
  } catch {
    throw new ApiError(0, "The aggregator does not answer.");
  }
  const body = await answer.json().catch(() => null);
  if (!answer.ok) throw new ApiError(answer.status, body?.error ?? `The aggregator answered with status ${answer.status}.`);
  if (body === null) throw new ApiError(answer.status, "The aggregator's answer is not JSON.");
  return body;
}

export const jobPath = (name) => `jobs/${encodeURIComponent(name)}`;

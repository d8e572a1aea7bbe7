// Refreshes on the aggregator's events, and every few seconds in any case.

import { to } from "./paths.js";

const POLL_MS = 5_000;
const TRY_AGAIN_MS = 30_000;

const waiting = new Set();

// Refresh now.
export function wake() {
  for (const done of waiting) done();
  waiting.clear();
}

// `refresh` is never called twice at once, nor while the page is hidden; `changed` gets each new state, "live",
// "polling", or "saved" for a run that is over, which is drawn again only when the window changes.
export async function follow(refresh, changed) {
  const saved = document.documentElement.dataset.saved !== undefined;
  const stream = saved ? { look() {} } : eventStream(wake, changed);
  if (saved) changed("saved");
  document.addEventListener("visibilitychange", () => {
    stream.look(document.visibilityState === "visible");
    wake();
  });
  window.addEventListener("resize", wake);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", wake);
  stream.look(document.visibilityState === "visible");
  for (;;) {
    // Rounds that end during a refresh cause one more refresh, not one each.
    const woken = new Promise((done) => waiting.add(done));
    if (document.visibilityState === "visible") await refresh();
    await (saved ? woken : Promise.race([woken, new Promise((done) => setTimeout(done, POLL_MS))]));
  }
}

// A browser allows six connections per host, so a hidden page closes its own.
function eventStream(wake, changed) {
  let source = null;
  let again = null;
  let seen = null;
  const open = () => {
    clearTimeout(again);
    source = new EventSource(to("api/v1/events"));
    source.addEventListener("open", () => changed("live"));
    source.addEventListener("round", (event) => {
      // The first one says which round is over already: the page has just asked for its numbers.
      if (seen !== null && event.lastEventId !== seen) wake();
      seen = event.lastEventId;
    });
    source.addEventListener("error", () => {
      changed("polling");
      wake();
      // The browser reconnects unless it was refused, because there are too many viewers.
      if (source?.readyState === EventSource.CLOSED) again = setTimeout(open, TRY_AGAIN_MS);
    });
  };
  const close = () => {
    clearTimeout(again);
    source?.close();
    source = null;
  };
  return {
    look(visible) {
      if (visible && !source) open();
      if (!visible && source) close();
    },
  };
}

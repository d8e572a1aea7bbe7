// Says when there are newer numbers: as the aggregator tells it, and every few seconds in any case.

const POLL_MS = 5_000;
const TRY_AGAIN_MS = 30_000;

// `refresh` is never called twice at once, and not while nobody looks; `changed` hears of each new state,
// "live" or "polling".
export async function follow(refresh, changed) {
  const waiting = new Set();
  const wake = () => {
    for (const done of waiting) done();
    waiting.clear();
  };
  const stream = eventStream(wake, changed);
  document.addEventListener("visibilitychange", () => {
    stream.look(document.visibilityState === "visible");
    wake();
  });
  window.addEventListener("resize", wake);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", wake);
  stream.look(document.visibilityState === "visible");
  for (;;) {
    // Rounds that end while a refresh is under way are one more refresh, not one each.
    const told = new Promise((done) => waiting.add(done));
    if (document.visibilityState === "visible") await refresh();
    await Promise.race([told, new Promise((done) => setTimeout(done, POLL_MS))]);
  }
}

// A browser allows six connections to a host, so a page that nobody sees gives its own back.
function eventStream(wake, changed) {
  let source = null;
  let again = null;
  const open = () => {
    clearTimeout(again);
    source = new EventSource("/api/v1/events");
    source.addEventListener("open", () => changed("live"));
    source.addEventListener("round", wake);
    source.addEventListener("error", () => {
      changed("polling");
      wake();
      // The browser reconnects by itself unless it was refused: then there are viewers enough.
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

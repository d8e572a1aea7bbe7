// Numbers as people read them: the same texts as perfd/formatting.py, which a test compares.

export const UNKNOWN = "-";
const RANKS_SHOWN = 8;
const DURATIONS = [[1e-7, 1e-9, "ns"], [1e-3, 1e-6, "µs"], [10, 1e-3, "ms"], [600, 1, "s"], [36_000, 60, "min"]];
const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
// From this share of a unit on, one decimal of the smaller unit shows 1000.0.
const ROUNDS_UP = 1 - 0.5e-4;

const known = (value) => typeof value === "number" && Number.isFinite(value);

// With 0 or 1 decimals. Of 0.5 and 6.25 the even digit is taken, as in Python: toFixed alone rounds both up.
function fixed(value, digits) {
  const tie = digits ? Math.abs(value) % 1 === 0.25 : Math.abs(value) % 2 === 0.5;
  return (tie ? value - 0.01 * Math.sign(value) : value).toFixed(digits);
}

const grouped = (value, digits) => Number(fixed(value, digits)).toLocaleString("en-US", { minimumFractionDigits: digits });

export const percent = (ratio, digits = 1) => (known(ratio) ? `${fixed(100 * ratio, digits)}%` : UNKNOWN);

// A difference, always with its sign.
export const signedPercent = (ratio) => (known(ratio) ? `${ratio < 0 ? "" : "+"}${percent(ratio)}` : UNKNOWN);

export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds === 0) return "0 s";
  const [, unitS, unit] = DURATIONS.find(([limitS, size]) => Math.abs(seconds) < limitS - size / 20) ?? [null, 3600, "h"];
  return `${fixed(seconds / unitS, 1)} ${unit}`;
}

// How long something lasted or has been waiting: people count seconds, not thousands of milliseconds.
export const elapsed = (seconds) => (known(seconds) && seconds >= 1 && seconds < 10 ? `${fixed(seconds, 1)} s` : duration(seconds));

function scaled(value, unit) {
  if (!known(value)) return UNKNOWN;
  const found = PREFIXES.find(([factor]) => Math.abs(value) >= factor * ROUNDS_UP);
  return found ? `${grouped(value / found[0], 1)} ${found[1]}${unit}` : `${fixed(value, 0)} ${unit}`;
}

export const dataSize = (sizeBytes) => scaled(sizeBytes, "B");
export const bandwidth = (bytesPerS) => scaled(bytesPerS, "B/s");
export const flops = (operations) => scaled(operations, "FLOP");
export const flopsPerS = (rate) => scaled(rate, "FLOP/s");
export const power = (watts) => (known(watts) ? `${fixed(watts, 0)} W` : UNKNOWN);
export const count = (value, digits = 0) => (known(value) ? grouped(value, digits) : UNKNOWN);

export function rankNames(ranks) {
  const more = ranks.length > RANKS_SHOWN ? ` and ${ranks.length - RANKS_SHOWN} more` : "";
  return `rank${ranks.length > 1 ? "s" : ""} ${ranks.slice(0, RANKS_SHOWN).join(", ")}${more}`;
}

// What only the page shows.

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

export const clock = (date) => date.toLocaleTimeString("en-GB");

export const moment = (unixS) =>
  known(unixS) ? new Date(unixS * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC" : UNKNOWN;

// A sentence whose numbers stay beside their units where a line ends.
export const unbroken = (text) => text.replace(/(\d) (?=(?:ns|µs|ms|s|min|h|W|[kMGT]?B(?:\/s)?|[GM]iB|MHz|[kMGT]?FLOP(?:\/s)?)(?![\w/]))/g, "$1\u00a0");

export const words = (name) => String(name ?? "unknown").replaceAll("_", " ");

export function progress(step, all) {
  if (step == null) return UNKNOWN;
  return all ? `${step} of ${all}` : String(step);
}

const DIMENSIONS = ["tp", "pp", "dp", "cp", "ep"];

export function layout(job) {
  const sizes = DIMENSIONS.filter((name) => (job.parallel?.[name] ?? 1) > 1).map(
    (name) => `${name.toUpperCase()} ${job.parallel[name]}`,
  );
  return [job.framework, job.parallel?.world_size ? plural(job.parallel.world_size, "rank") : null, ...sizes].filter(Boolean).join(" · ");
}

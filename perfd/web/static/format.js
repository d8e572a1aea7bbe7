// Numbers as people read them. What is not known is a dash, never a zero.

export const UNKNOWN = "–";

const known = (value) => typeof value === "number" && Number.isFinite(value);

export const percent = (ratio, digits = 1) => (known(ratio) ? `${(ratio * 100).toFixed(digits)}\u00a0%` : UNKNOWN);

// A difference: always with its sign.
export const signed = (ratio) => (known(ratio) ? `${ratio < 0 ? "−" : "+"}${percent(Math.abs(ratio))}` : UNKNOWN);

export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds < 2) return `${(seconds * 1000).toFixed(0)} ms`;
  if (seconds < 10) return `${seconds.toFixed(2)} s`;
  if (seconds < 100) return `${seconds.toFixed(1)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(0)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

// A latency, whose parts of a millisecond matter.
export function finer(seconds) {
  if (known(seconds) && seconds < 0.1) return `${(seconds * 1000).toFixed(1)} ms`;
  return known(seconds) && seconds >= 1 && seconds < 10 ? `${seconds.toFixed(2)} s` : duration(seconds);
}

export const plural = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;

export const count = (value) => (known(value) ? Math.round(value).toLocaleString("en-US") : UNKNOWN);

export const teraflops = (value) => (known(value) ? (value < 1e11 ? (value / 1e12).toPrecision(2) : (value / 1e12).toFixed(1)) : UNKNOWN);

export const watts = (value) => (known(value) ? `${value.toFixed(0)} W` : UNKNOWN);

export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = value < 1 ? 0 : Math.min(Math.floor(Math.log10(value) / 3), units.length - 1);
  return `${(value / 1000 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
}

export const clock = (date) => date.toLocaleTimeString("en-GB");

export const moment = (unixS) =>
  known(unixS) ? new Date(unixS * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC" : UNKNOWN;

// A sentence whose numbers stay beside their units where a line ends.
export const unbroken = (text) => text.replace(/(\d) (?=%|(?:ms|s|W|GB|GiB|MiB|MHz|TFLOP\/s)\b)/g, "$1\u00a0");

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
  return [job.framework, job.world_size ? plural(job.world_size, "rank") : null, ...sizes].filter(Boolean).join(" · ");
}

// A small line in a row of a table.

import { UNKNOWN } from "./format.js";

const [WIDTH, HEIGHT, EDGE] = [90, 20, 2];
const SVG = "http://www.w3.org/2000/svg";
// A line that moves less than this looks flat: noise must not look like a change.
const LEAST_RANGE = 0.2;

function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// `show` formats a value; null is a gap.
export function sparkline(values, name, show) {
  const known = values.filter((value) => value != null);
  if (known.length < 2) return UNKNOWN;
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const range = Math.max(high - low, LEAST_RANGE * Math.abs(high), 1e-12);
  const middle = (low + high) / 2;
  const x = (i) => EDGE + (i * (WIDTH - 2 * EDGE)) / (values.length - 1);
  const y = (value) => HEIGHT / 2 - ((value - middle) / range) * (HEIGHT - 2 * EDGE);
  const path = values.map((value, i) => (value == null ? "" : `${i && values[i - 1] != null ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`)).join("");
  const says = `${name}: ${show(low)} to ${show(high)}, newest ${show(known.at(-1))}`;
  const picture = shape("svg", { class: "sparkline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": says });
  const title = shape("title", {});
  title.textContent = says;
  picture.append(title, shape("path", { d: path }));
  return picture;
}

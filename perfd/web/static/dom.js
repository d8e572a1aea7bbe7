// Elements from data. Strings become text nodes, so that nothing from a job is ever read as markup.

import { unbroken } from "./format.js";
import { windowWidth } from "./view.js";

export function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value == null || value === false) continue;
    // A `style` attribute is refused by the page's policy; properties that are set are not.
    if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(2).filter((child) => child != null && child !== false));
  return element;
}

const CODE = /`([^`\n]+)`/;

// A sentence as children of an element: what stands between backticks is code.
export const prose = (text) => String(text ?? "").split(CODE).map((part, i) => (i % 2 ? el("code", {}, part) : unbroken(part)));

// Draws `build()` into the named section only when `data` has changed, so that focus and selection stay.
export function section(parent, name, data, build) {
  const print = JSON.stringify([data, windowWidth(), document.documentElement.dataset.theme]) ?? "";
  let found = parent.querySelector(`:scope > [data-section="${name}"]`);
  if (found?.print === print) return;
  const fresh = el("section", { "data-section": name, id: `section-${name}` }, ...build());
  fresh.print = print;
  const focused = document.activeElement?.id;
  if (found) found.replaceWith(fresh);
  else parent.append(fresh);
  fresh.hidden = !fresh.hasChildNodes();
  if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus();
}

const colors = new Map();

// A color of the theme, by the name of its property. To ask the browser each time would make it lay the page out.
export function color(name) {
  const key = `${document.documentElement.dataset.theme} ${name}`;
  if (!colors.has(key)) colors.set(key, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return colors.get(key);
}

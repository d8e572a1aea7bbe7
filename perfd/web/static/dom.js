// Elements from data. Strings become text nodes, so that nothing from a job is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

export const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value == null || value === false) continue;
    // A `style` attribute is refused by the page's policy; properties that are set are not.
    if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

// Draws `build()` into the section of a name, only when `data` has changed since the last time: what a
// person reads, selects or has the focus on stays where it is.
export function section(parent, name, data, build) {
  const print = JSON.stringify([data, window.innerWidth]) ?? "";
  let found = parent.querySelector(`:scope > [data-section="${name}"]`);
  if (found?.print === print) return;
  const fresh = el("section", { "data-section": name }, build());
  fresh.print = print;
  const focused = document.activeElement?.id;
  if (found) found.replaceWith(fresh);
  else parent.append(fresh);
  fresh.hidden = !fresh.hasChildNodes();
  if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus();
}

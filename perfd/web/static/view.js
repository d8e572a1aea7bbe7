// What is in view, and how wide things are. To ask the browser for a width while a page is drawn would make it lay the
// page out at once, so widths are kept until the window changes.

const widths = new Map();

function forget() {
  widths.clear();
}

window.addEventListener("resize", forget);

export function keptWidth(key, measure) {
  if (!widths.has(key)) widths.set(key, measure());
  return widths.get(key);
}

export const windowWidth = () => keptWidth("window", () => window.innerWidth);

// Of the sections of the page.
export const contentWidth = (main) =>
  keptWidth("content", () => {
    const { paddingLeft, paddingRight } = getComputedStyle(main);
    return main.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight);
  });

// A scroll bar that appears changes widths, but not the window; `changed` is called for the new ones.
export function watchWidth(main, changed) {
  new ResizeObserver(([{ contentRect }]) => {
    if (!widths.has("content") || Math.abs(contentRect.width - widths.get("content")) < 1) return;
    forget();
    changed();
  }).observe(main);
}

const drawings = new Map();
// What has been in the page: several elements may wait before the first of them is put there.
const placed = new WeakSet();
const viewer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (target.isConnected) placed.add(target);
    if (isIntersecting) drawNow(target);
  }
}, { rootMargin: "100% 0px" });

// Draws now or as soon as the element is no more than a screen away; the newest `draw` of an element counts.
export function whenSeen(element, draw) {
  // What was replaced in the meantime will never be seen.
  for (const other of drawings.keys()) if (placed.has(other) && !other.isConnected) drop(other);
  if (!drawings.has(element)) viewer.observe(element);
  drawings.set(element, draw);
}

export function drawNow(element) {
  const draw = drawings.get(element);
  drop(element);
  draw?.();
}

function drop(element) {
  viewer.unobserve(element);
  drawings.delete(element);
}

// Paper shows all of the page.
window.addEventListener("beforeprint", () => [...drawings.keys()].forEach(drawNow));

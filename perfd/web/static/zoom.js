// Which range of an axis charts show. This file is part of the page and, inline, of reports: it imports nothing.

const LEAST_DRAG_PX = 4;
const CLOSER = 0.5;

// What charts share; `changed` is called when another range was chosen, with null for all of it.
export function chartGroup(key, changed = () => {}) {
  let whole = null;
  const group = {
    key,
    range: null,
    members: new Set(),
    zoom(range) {
      if (same(range, group.range)) return;
      group.range = range;
      for (const member of group.members) member.follow();
      changed(range);
    },
    // Escape shows all, + and - zoom around `at`; `shown` is the range that the chart shows. Whether it was such a key.
    press(pressed, shown, at) {
      if (pressed === "Escape") group.zoom(null);
      const times = { "+": CLOSER, "=": CLOSER, "-": 1 / CLOSER, _: 1 / CLOSER }[pressed];
      if (!times) return pressed === "Escape";
      if (!group.range) whole = shown;
      group.zoom(around(group.range ?? shown, whole ?? shown, times, at));
      return true;
    },
  };
  return group;
}

const same = (a, b) => a === b || (a && b && a[0] === b[0] && a[1] === b[1]);

// A range of another length that has `at` at the same place, within the whole axis; null for all of it.
function around([low, high], [first, last], times, at) {
  const wide = (high - low) * times;
  if (wide >= last - first) return null;
  const begin = Math.min(Math.max(at - (at - low) * times, first), last - wide);
  return [begin, begin + wide];
}

export const ZOOM_KEYS = "+ and - zoom, Escape shows all.";

// Makes the charts of a report zoom, together where they share an axis; `show` formats what is on each.
export function zoomFigures(root, show) {
  const groups = new Map();
  for (const svg of root.querySelectorAll("svg[data-axis]")) {
    const key = svg.dataset.axis;
    if (!groups.has(key)) groups.set(key, chartGroup(key));
    zoomFigure(svg, groups.get(key), show[svg.dataset.show]);
  }
}

function zoomFigure(svg, group, show) {
  const view = svg.querySelector("svg");
  const all = [Number(svg.dataset.from), Number(svg.dataset.to)];
  const [, , room, height] = view.getAttribute("viewBox").split(" ").map(Number);
  const left = Number(view.getAttribute("x"));
  const [pixels, readout, reset] = [() => svg.viewBox.baseVal.width / svg.getBoundingClientRect().width, document.createElement("output"), document.createElement("button")];
  const shown = () => group.range ?? all;
  const valueAt = (event) => {
    const part = ((event.clientX - svg.getBoundingClientRect().left) * pixels() - left) / room;
    return shown()[0] + Math.min(Math.max(part, 0), 1) * (shown()[1] - shown()[0]);
  };
  reset.textContent = "Reset zoom";
  reset.addEventListener("click", () => group.zoom(null));
  const tools = document.createElement("p");
  tools.className = "zoom";
  tools.append(`Drag to zoom; with the keyboard, ${ZOOM_KEYS} `, readout, " ", reset);
  svg.after(tools);
  svg.setAttribute("tabindex", "0");
  svg.setAttribute("aria-label", `${svg.getAttribute("aria-label")}. ${ZOOM_KEYS} Arrow keys move.`);

  const follow = () => {
    const [low, high] = shown();
    const times = room / (all[1] - all[0]);
    view.setAttribute("viewBox", `${(low - all[0]) * times} 0 ${(high - low) * times} ${height}`);
    for (const tick of svg.querySelectorAll("[data-tick]")) tick.textContent = show(low + Number(tick.dataset.tick) * (high - low), high - low);
    readout.textContent = group.range ? `Shown: ${show(low, high - low)} to ${show(high, high - low)}.` : "";
    reset.hidden = !group.range;
  };
  const move = (part) => {
    const [low, high] = shown();
    const by = Math.min(Math.max(part * (high - low), all[0] - low), all[1] - high);
    if (by) group.zoom([low + by, high + by]);
  };
  group.members.add({ follow });
  follow();

  svg.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { ArrowLeft: -0.25, ArrowRight: 0.25 }[event.key];
    if (by) move(by);
    else if (!group.press(event.key, all, (shown()[0] + shown()[1]) / 2)) return;
    event.preventDefault();
  });
  svg.addEventListener("dblclick", () => group.zoom(null));

  let began = null;
  const chosen = document.createElementNS(svg.namespaceURI, "rect");
  chosen.setAttribute("class", "chosen");
  chosen.setAttribute("height", height);
  const stop = () => {
    began = null;
    chosen.remove();
  };
  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    began = { x: event.clientX, at: valueAt(event) };
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!began) return;
    const place = (value) => left + (room * (value - shown()[0])) / (shown()[1] - shown()[0]);
    const ends = [place(began.at), place(valueAt(event))];
    chosen.setAttribute("x", Math.min(...ends));
    chosen.setAttribute("width", Math.abs(ends[1] - ends[0]));
    svg.append(chosen);
  });
  svg.addEventListener("pointercancel", stop);
  svg.addEventListener("pointerup", (event) => {
    if (began && Math.abs(event.clientX - began.x) >= LEAST_DRAG_PX) group.zoom([began.at, valueAt(event)].sort((a, b) => a - b));
    stop();
  });
}

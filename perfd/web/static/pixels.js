// Images of one pixel per value: thousands of rectangles would take longer to draw.

import { color, el } from "./dom.js";

// A canvas of that size; `fill(put)` calls `put(place, [red, green, blue], opacity)`.
export function pixelImage(columns, lines, fill) {
  const image = el("canvas", { width: columns, height: lines });
  const pen = image.getContext("2d");
  const { data } = new ImageData(columns, lines);
  fill((place, [red, green, blue], opacity = 1) => data.set([red, green, blue, 255 * opacity], 4 * place));
  pen.putImageData(new ImageData(data, columns), 0, 0);
  return image;
}

const known = new Map();

// A color of the theme as red, green and blue.
export function components(name) {
  const text = color(name);
  if (!known.has(text)) {
    const pen = el("canvas", { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
    pen.fillStyle = text;
    pen.fillRect(0, 0, 1, 1);
    known.set(text, [...pen.getImageData(0, 0, 1, 1).data.slice(0, 3)]);
  }
  return known.get(text);
}

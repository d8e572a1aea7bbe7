// Rows by what they have in common.

// As Map.groupBy, which browsers from before 2024 lack: pairs of a key and its rows, in the order of the first of each.
export function grouped(rows, keyOf) {
  const groups = new Map();
  for (const [index, row] of rows.entries()) {
    const key = keyOf(row, index);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(row);
  }
  return [...groups];
}

// The value of the run that a place is in, and its offset there; runs are pairs of a value and their length.
export function runAt(runs, place) {
  let offset = place;
  for (const [value, length] of runs) {
    if (offset < length) return [value, offset];
    offset -= length;
  }
  return [null, 0];
}

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

// Values of runs, pairs of a value and how often it follows itself.
export const repeated = (runs) => runs.flatMap(([value, count]) => new Array(count).fill(value));

// Numbers of ranges, pairs of the first one and how many there are.
export const counted = (ranges) => ranges.flatMap(([first, count]) => Array.from({ length: count }, (_, i) => first + i));

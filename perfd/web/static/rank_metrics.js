// What is known of ranks, from GPUs, NCCL and timers.

import { get, jobPath } from "./api.js";
import { percent, power, signedPercent } from "./format.js";
import { runAt } from "./groups.js";

const TITLES = {
  slowdown_ratio: ["Compute time", (ratio) => signedPercent(ratio - 1)],
  sm_active_ratio: ["SM active", percent],
  tensor_active_ratio: ["Tensor active", percent],
  dram_active_ratio: ["DRAM active", percent],
  power_w: ["Power", power],
  memory_used_ratio: ["Memory", percent],
  temperature_celsius: ["Temperature", (value) => `${value.toFixed(0)} °C`],
  sm_clock_hz: ["SM clock", (value) => `${(value / 1e6).toFixed(0)} MHz`],
  busy_ratio: ["In NCCL", percent],
  wait_ratio: ["Waiting", percent],
  gain_ratio: ["Gain if as peers", percent],
};

// Key, name and how to show a value of each metric that is known.
export const metricsOf = (ranks) => Object.entries(TITLES).filter(([key]) => ranks.metrics[key]).map(([key, [name, show]]) => [key, name, show]);

export const loadRanks = (job, query) => get(`${jobPath(job)}/ranks?${new URLSearchParams(query)}`);

const gpuOf = (row) => (row.node == null ? "" : `${row.node}/${row.gpu}`);

export const rankName = (row) => (row.rank == null ? gpuOf(row) : `rank ${row.rank}`);

// Where a rank is, if its name is not that already.
export const whereOf = (row) => (row.rank == null ? "" : gpuOf(row));

// The number of the rank at a place of the grid.
export function rankAt(grid, place) {
  const [first, offset] = runAt(grid.ranks, place);
  return first + offset;
}

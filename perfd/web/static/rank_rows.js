// One row per rank, from its GPU, NCCL and timers.

import { percent, power, signedPercent } from "./format.js";

export const METRICS = [
  ["slowdown_ratio", "Compute time", (ratio) => signedPercent(ratio - 1)],
  ["sm_active_ratio", "SM active", percent],
  ["tensor_active_ratio", "Tensor active", percent],
  ["dram_active_ratio", "DRAM active", percent],
  ["power_w", "Power", power],
  ["memory_used_ratio", "Memory", percent],
  ["temperature_celsius", "Temperature", (value) => `${value.toFixed(0)} °C`],
  ["sm_clock_hz", "SM clock", (value) => `${(value / 1e6).toFixed(0)} MHz`],
  ["busy_ratio", "In NCCL", percent],
  ["wait_ratio", "Waiting", percent],
  ["gain_ratio", "Gain if as peers", percent],
];

export function rankRows(job) {
  const culprits = new Set((job.bottleneck?.culprits ?? []).map((who) => `${who.kind} ${who.id}`));
  const rows = new Map();
  const add = (name, values) => rows.set(name, { where: "", culprit: culprits.has(name), ...rows.get(name), ...values, name });
  for (const gpu of job.gpus ?? []) {
    const where = `${gpu.node}/${gpu.gpu}`;
    const blamed = culprits.has(`gpu ${where}`) || culprits.has(`node ${gpu.node}`);
    if (gpu.rank == null) add(where, { ...gpu, culprit: blamed });
    else add(`rank ${gpu.rank}`, { ...gpu, where, culprit: blamed || culprits.has(`rank ${gpu.rank}`) });
  }
  for (const one of job.nccl?.ranks ?? []) add(`rank ${one.rank}`, one);
  for (const one of job.slowdowns ?? []) add(`rank ${one.rank}`, { rank: one.rank, slowdown_ratio: one.ratio });
  return [...rows.values()].sort((a, b) => (a.rank ?? Infinity) - (b.rank ?? Infinity));
}

export function middle(values) {
  const known = values.filter((value) => value != null).sort((a, b) => a - b);
  if (!known.length) return null;
  return (known[(known.length - 1) >> 1] + known[known.length >> 1]) / 2;
}

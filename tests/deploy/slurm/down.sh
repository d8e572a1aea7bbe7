#!/bin/bash
# down.sh DIR: ends what up.sh started there, jobs first.
dir=$1
export SLURM_CONF=$dir/etc/slurm.conf
for partition in main urgent; do timeout 5 scancel --partition="$partition"; done
for _ in $(seq 150); do [ -z "$(timeout 5 squeue -h)" ] && break; sleep 0.1; done
for file in "$dir"/*.pid; do [ -s "$file" ] && kill "$(cat "$file")"; done
# The controller writes its state before it ends.
for file in "$dir"/*.pid; do
  for _ in $(seq 100); do
    { [ -s "$file" ] && kill -0 "$(cat "$file")" 2>/dev/null; } || break
    sleep 0.1
  done
done
exit 0

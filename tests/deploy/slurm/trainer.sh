#!/bin/bash
# In place of a training: the last rank prints $1 lines like Megatron-LM's, each after $2 seconds (0.1),
# and goes on after step $3 (0). The loss differs between attempts.
[ -n "$KINETO_USE_DAEMON" ] && [ "$SLURM_PROCID" = 0 ] && echo "KINETO_USE_DAEMON is $KINETO_USE_DAEMON"
[ "$SLURM_PROCID" = $((SLURM_NTASKS - 1)) ] || exec sleep "$(awk "BEGIN { print $1 * ${2:-0.1} + 1 }")"
for step in $(seq $((${3:-0} + 1)) $((${3:-0} + $1))); do
  sleep "${2:-0.1}"
  echo " [$(date '+%F %T')] iteration $(printf %8d "$step")/     500 | consumed samples: $(printf %12d $((step * 8)))" \
    "| elapsed time per iteration (ms): 100.0 | throughput per GPU (TFLOP/s/GPU): 300.0 | learning rate: 1.0E-04" \
    "| global batch size:     8 | lm loss: 1.${SLURM_RESTART_COUNT:-0}E+01 | loss scale: 1.0 | grad norm: 1.0 |" \
    "number of skipped iterations:   0 | number of nan iterations:   0 |"
done

#!/bin/bash
# Prolog of slurmd: starts an agent for the job on this node. It never fails: a Prolog that does drains the node.
set -u
: "${PERFD_SLURM_CONF:=/etc/perfd/slurm.sh}"
# shellcheck source=deploy/slurm/slurm.sh
. "$PERFD_SLURM_CONF" || exit 0

state=$PERFD_STATE/${SLURMD_NODENAME:-$(hostname -s)}/$SLURM_JOB_ID
mkdir -p "$state" && chmod 700 "$state" || exit 0
# An array's task is called as the ranks' own environment calls it.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID:-}}
# slurmd kills what is left of this script's process group when it ends, so the agent's own session must be there
# before that: the process id is written from inside it. The buffer is in the job's state.
export XDG_STATE_HOME=$state MALLOC_ARENA_MAX=2
# shellcheck disable=SC2016
setsid bash -c 'echo $$ >"$0"; exec "$@"' "$state/agent.pid" \
  "$PERFD" agent --config "$PERFD_AGENT_CONFIG" --aggregator "$PERFD_AGGREGATOR" \
  --node "${SLURMD_NODENAME:-$(hostname -s)}" --job "${job:-$SLURM_JOB_ID}" \
  </dev/null >"$state/agent.log" 2>&1 &
for _ in $(seq 50); do [ -s "$state/agent.pid" ] && break; sleep 0.1; done
exit 0

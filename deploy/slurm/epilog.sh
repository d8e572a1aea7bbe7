#!/bin/bash
# Epilog of slurmd: ends the job's agent on this node and leaves nothing. It never fails, as that drains the node.
set -u
: "${PERFD_SLURM_CONF:=/etc/perfd/slurm.sh}"
# shellcheck source=deploy/slurm/slurm.sh
. "$PERFD_SLURM_CONF" || exit 0

state=$PERFD_STATE/${SLURMD_NODENAME:-$(hostname -s)}/$SLURM_JOB_ID
pid=$(cat "$state/agent.pid" 2>/dev/null) || exit 0
# A number may belong to another process by now.
ours() { tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q "perfd.* agent .*--config"; }
ours && kill -TERM "$pid"
# It sends what is left, in seconds; what it could not send in ten is given up.
for _ in $(seq 100); do ours || break; sleep 0.1; done
ours && kill -KILL "$pid"
rm -rf "$state"
exit 0

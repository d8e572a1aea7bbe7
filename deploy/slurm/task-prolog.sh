#!/bin/bash
# TaskProlog: what it prints becomes the environment of the user's task. What the user set stays.
: "${PERFD_SLURM_CONF:=/etc/perfd/slurm.sh}"
# shellcheck source=deploy/slurm/slurm.sh
. "$PERFD_SLURM_CONF" 2>/dev/null || exit 0

# PERFD_NCCL_PLUGIN is looked for once, at installation: starting Python for every task would be slow.
if [ -z "${NCCL_PROFILER_PLUGIN:-}" ] && [ -r "${PERFD_NCCL_PLUGIN:-}" ]; then
  echo "export NCCL_PROFILER_PLUGIN=$PERFD_NCCL_PLUGIN"
fi
if [ -z "${KINETO_USE_DAEMON:-}" ]; then echo "export KINETO_USE_DAEMON=1"; fi
exit 0

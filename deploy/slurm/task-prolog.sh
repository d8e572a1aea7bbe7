#!/bin/bash
# TaskProlog: what it prints becomes the environment of the user's task. What the user set stays.
# It runs for every task, as the user, and a task whose TaskProlog fails does not start: this one never fails.
settings() {
  # shellcheck source=deploy/slurm/slurm.sh
  . "${PERFD_SLURM_CONF:=/etc/perfd/slurm.sh}" >&2 || return
  case " ${PERFD_PARTITIONS:-${SLURM_JOB_PARTITION:-}} " in
    *" ${SLURM_JOB_PARTITION:-} "*) ;;
    *) return ;;
  esac
  # PERFD_NCCL_PLUGIN is looked for once, at installation: starting Python for every task would be slow.
  [ -n "${NCCL_PROFILER_PLUGIN:-}" ] || [ ! -r "${PERFD_NCCL_PLUGIN:-}" ] ||
    echo "export NCCL_PROFILER_PLUGIN=$PERFD_NCCL_PLUGIN"
  [ -n "${KINETO_USE_DAEMON:-}" ] || echo "export KINETO_USE_DAEMON=1"
  # What the batch script's or `perfd run`'s task got came here with srun, and may be another node's.
  case "${PERFD_HOOK_SOCKET:-}" in
    "" | "${PERFD_RUN:-}"/*-"$SLURM_JOB_ID".sock) ;;
    *) [ "${PERFD_HOOK_NODE:-$(hostname)}" != "$(hostname)" ] || return 0 ;;
  esac
  # The agent may listen later than the task starts: perfd.hook looks for it again.
  # The node's own agent listens where perfd.hook looks anyway.
  [ -z "${PERFD_RUN:-}" ] || [ "${PERFD_NODE_AGENT:-}" = yes ] || {
    echo "export PERFD_HOOK_SOCKET=$PERFD_RUN/${SLURMD_NODENAME:-$(hostname -s)}-$SLURM_JOB_ID.sock"
    echo "unset PERFD_HOOK_NODE"
  }
}
# In a shell of its own: not even an `exit` in the settings reaches the task.
(settings) 2>/dev/null
exit 0

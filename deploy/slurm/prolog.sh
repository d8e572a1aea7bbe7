#!/bin/bash
# Prolog of slurmd: starts an agent for the job on this node.
# slurmd drains the node of a Prolog that fails, and the job waits for one that hangs. Whatever is wrong with perfd,
# this ends within seconds and with 0; what was wrong is in the system's log, as `perfd-prolog`.
if [ "${1:-}" != run ]; then
  {
    timeout -k 2 20 bash "$0" run ||
      echo "no agent for job ${SLURM_JOB_ID:-(SLURM_JOB_ID is not set)} on this node: status $?"
  } </dev/null 2>&1 | logger -t perfd-prolog
  exit 0
fi

set -u
# shellcheck source=deploy/slurm/slurm.sh
. "${PERFD_SLURM_CONF:=/etc/perfd/slurm.sh}" || exit 1
: "${SLURM_JOB_ID:?is what slurmd sets for a Prolog}" "${PERFD_AGGREGATOR:?is missing in $PERFD_SLURM_CONF}"
case " ${PERFD_PARTITIONS:-${SLURM_JOB_PARTITION:-}} " in
  *" ${SLURM_JOB_PARTITION:-} "*) ;;
  *) exit 0 ;;
esac
[ -x "${PERFD:?is missing in $PERFD_SLURM_CONF}" ] || { echo "$PERFD cannot be run here" >&2; exit 1; }
node=${SLURMD_NODENAME:-$(hostname -s)}
if [ "${PERFD_NODE_AGENT:-}" = yes ]; then
  # The node's own agent reads this file (its collector `slurm_jobs`), and deletes it after the job's end.
  jobs=${PERFD_STATE:?is missing in $PERFD_SLURM_CONF}/$node/jobs
  mkdir -p "$jobs" && chmod 700 "$jobs" || exit 1
  export SLURM_RESTART_COUNT=${SLURM_JOB_RESTART_COUNT:-0}
  [ -n "${SLURM_HET_JOB_ID:-}" ] && PERFD_HET_GROUP=$((SLURM_JOB_ID - SLURM_HET_JOB_ID)) || SLURM_JOB_NODELIST=${SLURM_NODELIST:-}
  # A log with a name is visible on all nodes: only the first one reads it.
  case ${PERFD_LOG:=none} in
    /*) [ "$(scontrol show hostnames "${SLURM_NODELIST:-$node}" | head -n 1)" = "$node" ] || PERFD_LOG=none ;;
  esac
  PERFD_LOG=${PERFD_LOG//%j/$SLURM_JOB_ID}
  PERFD_LOG=${PERFD_LOG//%u/${SLURM_JOB_USER:-}}
  entry=$SLURM_JOB_ID-$SLURM_RESTART_COUNT
  for name in SLURM_{JOB_ID,JOB_UID,JOB_USER,JOB_ACCOUNT,JOB_PARTITION,JOB_NODELIST,HET_JOB_ID,ARRAY_JOB_ID,ARRAY_TASK_ID} \
    SLURM_{CLUSTER_NAME,RESTART_COUNT} PERFD_{HET_GROUP,CLUSTER,LOG}; do
    [ -z "${!name:-}" ] || echo "$name=${!name}"
  done >"$jobs/.$entry" && mv "$jobs/.$entry" "$jobs/$entry" || exit 1
  exit 0
fi
state=${PERFD_STATE:?is missing in $PERFD_SLURM_CONF}/$node/$SLURM_JOB_ID
mkdir -p "$state" && chmod 700 "$state" || exit 1

# An array's task, and the parts of a heterogeneous job, are called as the ranks' own environment calls them.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID:-}}
job=${job:-${SLURM_HET_JOB_ID:-$SLURM_JOB_ID}}
# Which nodes are the job's, as its tasks know it; a part of a heterogeneous job is told only its own.
SLURM_JOB_NODELIST=${SLURM_NODELIST:-}
if [ -n "${SLURM_HET_JOB_ID:-}" ]; then
  export PERFD_HET_GROUP=$((SLURM_JOB_ID - SLURM_HET_JOB_ID))
  SLURM_JOB_NODELIST=$(timeout 5 scontrol show job -o "$SLURM_HET_JOB_ID" | tr ' ' '\n' | sed -n 's/^NodeList=//p' | paste -sd,)
fi
echo "${SLURM_JOB_RESTART_COUNT:-0}" >"$state/restarts"
export SLURM_JOB_NODELIST SLURM_RESTART_COUNT=${SLURM_JOB_RESTART_COUNT:-0} PERFD_OWN_PROCESS=1
arguments=(agent --config "${PERFD_AGENT_CONFIG:?is missing in $PERFD_SLURM_CONF}" --aggregator "$PERFD_AGGREGATOR"
  --node "$node" --job "$job" --job-end "$state/end"
  --job-user "${SLURM_JOB_UID:?is what slurmd sets for a Prolog}")

log=${PERFD_LOG:-none}
# What the job's processes on this node write to, whatever sbatch, srun or the shell call it.
[ "$log" != stdout ] || arguments+=(--job-output "${SLURM_HET_JOB_ID:-$SLURM_JOB_ID}")
# The job's first node queries once what slurmd does not pass to a Prolog.
if [ "$(scontrol show hostnames "${SLURM_NODELIST:-$node}" | head -n 1)" = "$node" ]; then
  said=$(timeout 5 scontrol show job -o "$SLURM_JOB_ID")
  # The name, which may contain anything, is between these two fields.
  numbers=${said%% JobName=*} rest=${said#* UserId=} name=${said#* JobName=}
  field() { tr ' ' '\n' <<<"$2" | sed -n "s/^$1=//p" | head -n 1; }
  SLURM_JOB_NAME=${name%% UserId=*} SLURM_ARRAY_JOB_ID=$(field ArrayJobId "$numbers")
  SLURM_ARRAY_TASK_ID=$(field ArrayTaskId "$numbers")
  export SLURM_JOB_NAME SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID
  # A log with a name is visible on all nodes: only one reads it.
  log=${log//%j/$SLURM_JOB_ID}
  log=${log//%u/${SLURM_JOB_USER:-}}
  if [ "$log" = stdout ]; then
    # By its name the batch script's output is found too when the job is over before the agent looks.
    log=$(field StdOut "$rest")
  fi
  case $log in /*) arguments+=(--log "$log") ;; esac
fi

if [ -n "${PERFD_RUN:-}" ] && mkdir -p "$PERFD_RUN"; then
  export PERFD_HOOK_SOCKET=$PERFD_RUN/$node-$SLURM_JOB_ID.sock
fi
# The buffer is in the job's state. Two arenas keep glibc from holding memory for each thread.
export XDG_STATE_HOME=$state MALLOC_ARENA_MAX=2
# slurmd kills what is left of its script's process group, so the agent's own session must be there before this ends:
# its process id is written from inside it.
# shellcheck disable=SC2016
setsid bash -c 'echo $$ >"$0"; exec "$@"' "$state/agent.pid" "$PERFD" "${arguments[@]}" \
  </dev/null >"$state/agent.log" 2>&1 &
for _ in $(seq 50); do [ -s "$state/agent.pid" ] && exit 0; sleep 0.1; done
echo "the agent of job $SLURM_JOB_ID does not start" >&2
exit 1

#!/bin/bash
# Epilog of slurmd: ends the job's agent on this node and leaves nothing.
# As with the Prolog, an Epilog that fails drains the node: this one ends with 0 and within a minute, and what went
# wrong is in the system's log, as `perfd-epilog`.
if [ "${1:-}" != run ]; then
  {
    timeout -k 2 50 bash "$0" run ||
      echo "the agent of job ${SLURM_JOB_ID:-(SLURM_JOB_ID is not set)} may be left on this node: status $?"
  } </dev/null 2>&1 | logger -t perfd-epilog
  exit 0
fi

set -u
# shellcheck source=deploy/slurm/slurm.sh
. "${PERFD_SLURM_CONF:=/etc/perfd/slurm.sh}" || exit 1
node=${SLURMD_NODENAME:-$(hostname -s)}
state=${PERFD_STATE:?is missing in $PERFD_SLURM_CONF}/$node/${SLURM_JOB_ID:?is what slurmd sets for an Epilog}
jobs=$PERFD_STATE/$node/jobs
# What the Prolog wrote for the node's own agent, by how often the job was requeued before.
entry=$(cd "$jobs" 2>/dev/null && printf '%s\n' "$SLURM_JOB_ID"-* | grep -x '[0-9]*-[0-9]*' | sort -V | tail -n 1)
[ -d "$state" ] || [ -n "$entry" ] || exit 0
pid=$(cat "$state/agent.pid" 2>/dev/null)

# A number may belong to another process by now.
ours() { [ -n "$pid" ] && tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -q "perfd.* agent .*--config"; }
# On a busy node a look takes long: seconds are counted, not looks, so that all is done before the time limit above.
gone() { local end=$((SECONDS + $1)); while ours; do [ $SECONDS -lt $end ] || return 1; sleep 0.1; done; }

# How the job ended, as `perfd agent --job-end` reads it. slurmctld is asked once or twice a job: by its first two nodes,
# of which one may be lost. The others know the batch script's exit code, which is 0 too for a job that was cancelled.
how_it_ended() {
  local said='' restarts code signal before=${entry#*-}
  before=${before:-$(cat "$state/restarts" 2>/dev/null || echo 0)}
  if scontrol show hostnames "${SLURM_NODELIST:-$node}" | head -n 2 | grep -qx "$node"; then
    said=$(timeout 5 scontrol show job -o "${SLURM_HET_JOB_ID:-$SLURM_JOB_ID}" | tr ' ' '\n')
  fi
  field() { sed -n "s/^$1=//p" <<<"$said" | head -n 1; }
  IFS=: read -r code signal <<<"$(field ExitCode)"
  restarts=$(field Restarts)
  case $(field Reason) in
    NodeDown) echo "outcome=node_failure" ;;
    TimeLimit) echo "outcome=time_limit" ;;
    OutOfMemory) echo "outcome=out_of_memory" ;;
    *)
      # Requeued: SLURM_JOB_RESTART_COUNT already counts it. Or canceled by preemption: the state is COMPLETING.
      if [ "${restarts:-0}" -gt "$before" ] ||
        [[ $(field PreemptTime) == [0-9]* ]]; then
        echo "outcome=preempted"
      elif [ -z "$code" ]; then
        IFS=: read -r code signal <<<"${SLURM_JOB_EXIT_CODE2:-0:0}"
        [ "$code:$signal" = 0:0 ] && echo "outcome=unknown" || echo "exit_code=$((signal ? 128 + signal : code))"
      else
        echo "exit_code=$((signal ? 128 + signal : code))"
      fi
      ;;
  esac
}

if [ -n "$entry" ]; then
  how_it_ended >"$jobs/.$entry" && mv "$jobs/.$entry" "$jobs/$entry.end"
  # Those that no agent read in a day.
  find "$jobs" -name '*.end' -mmin +1440 | while read -r old; do rm -f "$old" "${old%.end}"; done
fi
[ -d "$state" ] || exit 0
# A job may be over before its agent is up, which then would not hear the signal, or could not start.
end=$((SECONDS + 10))
while [ $SECONDS -lt $end ] && [ ! -s "$state/perfd/$node/spool.sqlite" ] && ours; do sleep 0.1; done
if ours; then
  how_it_ended >"$state/end"
  kill -TERM "$pid"
  # It sends what is left, in seconds; what it could not send in twenty is given up.
  gone 20 || { kill -KILL "$pid"; gone 10 || echo "process $pid does not end" >&2; }
else
  echo "the agent of job $SLURM_JOB_ID ended before the job: $(tail -n 1 "$state/agent.log" 2>&1)" >&2
fi
rm -rf "$state"
[ -z "${PERFD_RUN:-}" ] || rm -f "$PERFD_RUN/$node-$SLURM_JOB_ID.sock"

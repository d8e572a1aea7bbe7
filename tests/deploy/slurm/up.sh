#!/bin/bash
# up.sh DIR NODES GPUS: a SLURM of several nodes on this machine, without systemd, cgroups or anything in /etc.
# Prolog, Epilog and TaskProlog are taken from DIR/etc if they are there, and DIR/etc/mounts may name folders (FROM TO)
# that jobs see at another place. Process ids are in DIR/*.pid.
set -eu
dir=$1 nodes=$2 gpus=$3
mkdir -p "$dir"/{etc,munge,state,log,dev}
chmod 755 "$dir"; chmod 711 "$dir/munge"
mapfile -t ports < <(python3 - "$nodes" <<'P'
import socket, sys
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]) + 1)]
print(*(one.getsockname()[1] for one in held), sep="\n")
P
)
(umask 077; head -c 128 /dev/urandom >"$dir/munge/key")
munged --force --num-threads=2 --key-file="$dir/munge/key" --socket="$dir/munge/socket" \
  --pid-file="$dir/munged.pid" --log-file="$dir/log/munged.log" --seed-file="$dir/munge/seed" 2>/dev/null
# SLURM wants character devices: these are /dev/null.
for gpu in $(seq 0 $((gpus - 1))); do mknod "$dir/dev/gpu$gpu" c 1 3; done
echo "AutoDetect=off
NodeName=n[1-$nodes] Name=gpu Type=h100 File=$dir/dev/gpu[0-$((gpus - 1))]" >"$dir/etc/gres.conf"
{
  cat <<CONF
ClusterName=perfd
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$dir/munge/socket,cred_expire=5
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/slurmctld.pidfile
SlurmdPidFile=$dir/slurmd-%n.pidfile
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd-%n.log
MpiDefault=none
GresTypes=gpu
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
KillWait=5
PrologFlags=Alloc
SlurmdParameters=config_overrides
CONF
  for script in Prolog Epilog TaskProlog; do
    [ -x "$dir/etc/$script" ] && echo "$script=$dir/etc/$script"
  done
  for node in $(seq "$nodes"); do
    echo "NodeName=n$node NodeHostname=n$node NodeAddr=127.0.0.1 Port=${ports[$node]} CPUs=16 RealMemory=4000" \
      "Gres=gpu:h100:$gpus State=UNKNOWN"
  done
  # A job of `urgent` requeues those of `main` that are in its way.
  echo "PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=n[1-$nodes] Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=n[1-$nodes] MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF"
} >"$dir/etc/slurm.conf"
export SLURM_CONF=$dir/etc/slurm.conf
setsid slurmctld -c -D -f "$SLURM_CONF" </dev/null >"$dir/log/slurmctld.out" 2>&1 &
echo $! >"$dir/slurmctld.pid"
touch "$dir/etc/mounts"
for node in $(seq "$nodes"); do
  # A hostname of its own, so that tasks see the node's name. The mounts end with the daemon.
  # shellcheck disable=SC2016
  setsid unshare -u -m sh -c 'hostname "$1"; while read -r from to; do mount --bind "$from" "$to"; done <"$3"
    exec slurmd -D -N "$1" -f "$2"' node "n$node" "$SLURM_CONF" "$dir/etc/mounts" \
    </dev/null >"$dir/log/slurmd-n$node.out" 2>&1 &
  echo $! >"$dir/slurmd-n$node.pid"
done
for _ in $(seq 200); do
  [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = "$nodes" ] && exit 0
  sleep 0.1
done
sinfo -R >&2; tail -n 5 "$dir"/log/* >&2
exit 1

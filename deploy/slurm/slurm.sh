# shellcheck shell=bash disable=SC2034
# Settings of prolog.sh, epilog.sh and task-prolog.sh: /etc/perfd/slurm.sh on every node. Read by bash, and by
# task-prolog.sh as the job's user: nothing in it may be secret.

# The command, with its whole path: slurmd gives its scripts no PATH to speak of.
PERFD=/opt/perfd/bin/perfd

# The cluster's aggregator, a systemd service of its own (docs/deploy-systemd.md).
PERFD_AGGREGATOR=perfd.example.org:9461

# TLS, collectors, captures: deploy/agent.yaml with `listen: null`, and `capture.output_directory` on a disk that
# outlives the job: what is in PERFD_STATE goes with it.
PERFD_AGENT_CONFIG=/etc/perfd/agent.yaml

# Process ids, logs and buffers of running jobs; a local disk, and root's alone.
PERFD_STATE=/var/lib/perfd/slurm

# Sockets for perfd.hook, one a job.
PERFD_RUN=/run/perfd-slurm

# The training's log: `stdout` for all files that the job's processes on a node have as output, opened with the rights of
# the job's user; a path with %j for the job's number and %u for its user, which the job's first node follows; `none`.
PERFD_LOG=stdout

# For task-prolog.sh, on a disk that the job's containers see too. Its path prints
#   python -c 'import perfd_collectors.nccl as n; print(*n.__path__)'
PERFD_NCCL_PLUGIN=/opt/perfd/lib/libnccl-profiler-perfd.so

# The partitions whose jobs perfd watches, separated by spaces; empty: all.
PERFD_PARTITIONS=

# Where jobs share nodes: `yes` if one agent of systemd on each node has the collector `slurm_jobs` enabled, with PERFD_STATE
# as its `directory`. The Prolog then starts no agents.
PERFD_NODE_AGENT=

# Settings of prolog.sh, epilog.sh and task-prolog.sh: /etc/perfd/slurm.sh on every node. Read by bash.

# The command, with its whole path: slurmd gives its scripts no PATH to speak of.
PERFD=/opt/perfd/bin/perfd

# The cluster's aggregator, a systemd service of its own (docs/deploy-systemd.md).
PERFD_AGGREGATOR=perfd.example.org:9461

# TLS, collectors, captures: deploy/agent.yaml, with `listen: null` where several jobs share a node.
PERFD_AGENT_CONFIG=/etc/perfd/agent.yaml

# Process ids, logs and buffers of running jobs; a local disk, and root's alone.
PERFD_STATE=/var/lib/perfd/slurm

# For task-prolog.sh, on a disk that the job's containers see too. Its path prints
#   python -c 'import perfd_collectors.nccl as n; print(*n.__path__)'
PERFD_NCCL_PLUGIN=/opt/perfd/lib/libnccl-profiler-perfd.so

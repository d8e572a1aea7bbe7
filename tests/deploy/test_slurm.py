"""perfd beside jobs of a real SLURM: nodes of eight GPUs each, on this machine."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from deploy.slurm.cluster import USER, Cluster, processes_that_name, until

from perfd.aggregator import Aggregator

ROOT = Path(__file__).parents[2]
TOOLS = ("slurmctld", "slurmd", "munged", "srun")
pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        not (all(map(shutil.which, TOOLS)) and os.geteuid() == 0) and not os.environ.get("CI"),
        reason="needs root and SLURM (Debian packages `slurm-wlm` and `munge`)",
    ),
]
NODES = {"n1", "n2", "n3", "n4"}
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
FOUR_NODES = "--nodes=4 --ntasks-per-node=2 --gpus-per-node=8"
TWO_NODES = "--nodes=2 --nodelist=n1,n2 --ntasks-per-node={} --gpus-per-node=8"


@pytest.fixture(autouse=True)
def jobs_end_with_their_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """One test's failure must not keep the next one's job waiting."""
    yield
    if "cluster" in request.fixturenames:
        cluster: Cluster = request.getfixturevalue("cluster")
        cluster("scancel", "--partition=main")
        until(lambda: not cluster("squeue", "-h").strip(), "the end of all jobs")


def test_two_lines_in_a_batch_script_show_every_node_and_step(cluster: Cluster) -> None:
    folder = cluster.folder("sidecar", USER)
    job = cluster.submit(
        folder,
        FOUR_NODES,
        f"{cluster.sidecar} start",
        # `start` waits for the first node alone.
        f"cd {cluster.directory}/spools",
        "until [ $(ls perfd-$SLURM_JOB_ID-*/spool.sqlite 2>/dev/null | wc -l) = 4 ]; do sleep 0.1; done",
        f"srun {cluster.trainer} 20",
        "result=$?",
        f"{cluster.sidecar} stop",
        # What is left when `stop` comes back.
        "ps -e -o args | grep '[p]erfd-sidecar keep'",
        "ls",
        "exit $result",
        user=USER,
    )
    until(lambda: cluster.ended(job), "the end of the job")
    assert cluster.state(job) == "COMPLETED"
    # Another rank prints the steps, and may be first.
    assert [line for line in output(folder).splitlines() if "iteration" not in line] == [
        "KINETO_USE_DAEMON is 1"
    ]
    status = json.loads((folder / f"perfd-{job}" / "status.json").read_text())
    (seen,) = [entry for entry in status["jobs"] if entry["name"] == job]
    assert (seen["steps"]["count"], seen["steps"]["last"]) == (20, 20)
    assert {agent["node"] for agent in status["agents"]} == NODES
    assert [agent["dropped_records"] for agent in status["agents"]] == [0] * 4
    assert f"How job {job} runs" in (folder / f"perfd-{job}" / "report.html").read_text()
    assert left_over(cluster, job) == []


def test_scancel_ends_sidecar_and_aggregator(cluster: Cluster) -> None:
    folder = cluster.folder("cancelled", USER)
    job = cluster.submit(
        folder, TWO_NODES.format(2), f"{cluster.sidecar} start", f"srun {cluster.trainer} 3000", user=USER
    )
    until(lambda: "iteration" in output(folder), "the first step")
    until(lambda: len(agents_of_sidecar(cluster, job)) == 2, "two agents")
    spools = [f"{path.stat().st_mode & 0o777:o} {path.owner()}" for path in spools_of(cluster, job)]
    assert spools == [f"700 {USER}"] * 2
    cluster("scancel", job)
    until(lambda: cluster.ended(job), "the end of the job")
    until(lambda: left_over(cluster, job) == [], "the end of all that belonged to it")


def test_a_requeued_job_begins_anew_in_the_same_place(cluster: Cluster) -> None:
    folder = cluster.folder("requeued")
    job = cluster.submit(
        folder,
        "--requeue --nodes=2 --ntasks-per-node=2 --gpus-per-node=8",
        f"{cluster.sidecar} start",
        f"srun {cluster.trainer} $([ ${{SLURM_RESTART_COUNT:-0}} = 0 ] && echo 3000 || echo 5)",
        f"{cluster.sidecar} stop",
    )
    until(lambda: "iteration" in output(folder), "the first step")
    cluster("scontrol", "requeue", job)
    until(lambda: cluster.state(job) == "PENDING", "its place in the queue")
    until(lambda: cluster.ended(job), "the end of the job")
    assert cluster.state(job) == "COMPLETED"
    assert "perfd-sidecar:" not in output(folder)
    status = json.loads((folder / f"perfd-{job}" / "status.json").read_text())
    assert [entry["steps"]["last"] for entry in status["jobs"] if entry["name"] == job] == [5]
    until(lambda: left_over(cluster, job) == [], "the end of the first run's processes")


def test_tasks_of_an_array_that_share_nodes_are_jobs_of_their_own(
    cluster: Cluster, aggregator: Aggregator
) -> None:
    folder = cluster.folder("array", USER)
    array = cluster.submit(
        folder,
        "--array=1-2 --nodes=2 --nodelist=n1,n2 --ntasks-per-node=1 --gpus-per-node=4",
        f"{cluster.sidecar} start",
        f"srun {cluster.trainer} $((5 * SLURM_ARRAY_TASK_ID))",
        "touch done-$SLURM_ARRAY_TASK_ID; while [ ! -e go ]; do sleep 0.1; done",
        f"{cluster.sidecar} stop",
        user=USER,
    )
    until(lambda: (folder / "done-1").exists() and (folder / "done-2").exists(), "both tasks' steps")
    # The Prolog knows a task by its own number only; its agents' nodes are told apart by the aggregator.
    numbers = dict(line.split() for line in cluster("squeue", "-h", "-j", array, "-o", "%K %A").splitlines())
    until(lambda: steps_of(aggregator, numbers["1"]) == 5, "the first task's steps")
    until(lambda: steps_of(aggregator, numbers["2"]) == 10, "the second task's steps")
    for task, number in numbers.items():
        (known,) = aggregator.overview(number)
        assert (known["title"], known["array"]) == ("job.sh", [array, task])
    (folder / "go").touch()
    until(lambda: cluster.ended(array), "the end of the array")
    seen = {}
    for path in folder.glob("perfd-*/status.json"):
        (job,) = json.loads(path.read_text())["jobs"]
        seen[job["name"]] = job["steps"]["last"], job["array"]
    assert seen == {f"{array}_1": (5, [array, "1"]), f"{array}_2": (10, [array, "2"])}


def test_a_node_that_is_lost_takes_the_job_and_leaves_nothing_elsewhere(cluster: Cluster) -> None:
    folder = cluster.folder("lost")
    job = cluster.submit(
        folder,
        "--no-requeue --nodes=2 --nodelist=n4,n5 --ntasks-per-node=1 --gpus-per-node=8",
        f"{cluster.sidecar} start",
        f"srun {cluster.trainer} 3000",
    )
    until(lambda: "iteration" in output(folder), "the first step")
    until(lambda: len(agents_of_sidecar(cluster, job)) == 2, "two agents")
    cluster.lose("n5")
    until(lambda: cluster.state(job) == "NODE_FAIL", "the end of the job")
    # The lost node's own buffer is where it was when it comes back.
    until(lambda: left_over(cluster, job, but="n5") == [], "the end of all that belonged to it")


@pytest.mark.parametrize(
    ("name", "environ", "words"),
    [
        ("unreachable", {"PERFD_AGGREGATOR": "127.0.0.1:1"}, ""),
        ("nothing", {"PERFD": "/nowhere/perfd"}, "there is no /nowhere/perfd here"),
        ("broken", {"PERFD": "/bin/false"}, "the aggregator did not start; see"),
    ],
)
def test_a_job_goes_on_whatever_is_wrong_with_perfd(
    cluster: Cluster, name: str, environ: dict[str, str], words: str
) -> None:
    folder = cluster.folder(name, USER)
    job = cluster.submit(
        folder,
        "--nodes=2 --ntasks-per-node=1",
        "set -e",
        f"{cluster.sidecar} start",
        f"srun {cluster.trainer} 2",
        f"{cluster.sidecar} stop",
        "echo all of it ran",
        "exit 7",
        user=USER,
        **environ,
    )
    until(lambda: cluster.ended(job), "the end of the job")
    printed = output(folder)
    assert "iteration        2/" in printed
    assert "all of it ran" in printed
    assert words in printed
    assert cluster.state(job) == "FAILED"
    assert "ExitCode=7:0" in cluster("scontrol", "show", "job", job)
    assert left_over(cluster, job) == []


def test_every_group_of_a_heterogeneous_job_is_seen_by_sidecar_and_prolog(
    cluster: Cluster, aggregator: Aggregator
) -> None:
    folder = cluster.folder("heterogeneous", USER)
    job = cluster.submit(
        folder,
        "--nodes=1 --nodelist=n1 --ntasks-per-node=1",
        "#SBATCH hetjob",
        "#SBATCH --nodes=2 --nodelist=n[2-3] --ntasks-per-node=2",
        f"{cluster.sidecar} start",
        f"cd {cluster.directory}/spools",
        "until [ $(ls perfd-$SLURM_JOB_ID-*/spool.sqlite 2>/dev/null | wc -l) = 3 ]; do sleep 0.1; done",
        f"srun --het-group=0,1 {cluster.trainer} 5; while [ ! -e {folder}/go ]; do sleep 0.1; done",
        f"{cluster.sidecar} stop 0",
        user=USER,
    )
    until(lambda: steps_of(aggregator, job) == 5, "the steps at the cluster's aggregator")
    (known,) = aggregator.overview(job)
    (folder / "go").touch()
    until(lambda: cluster.ended(job), "the end of the job")
    status = json.loads((folder / f"perfd-{job}" / "status.json").read_text())
    assert {agent["node"] for agent in status["agents"]} == {"n1", "n2", "n3"}
    (seen,) = status["jobs"]
    assert (seen["name"], seen["steps"]["last"]) == (job, 5)
    assert known["het_groups"] == seen["het_groups"] == {"n1": 0, "n2": 1, "n3": 1}
    assert left_over(cluster, job) == []
    # The second group has a number of its own, which is no job to a user.
    until(lambda: outcome_of(aggregator, job) == "completed", "the Epilogs")
    assert str(int(job) + 1) not in aggregator.jobs()


def test_steps_are_found_wherever_the_training_writes_its_output(
    cluster: Cluster, aggregator: Aggregator
) -> None:
    folder = cluster.folder("output", USER)
    (folder / "logs").mkdir()
    shutil.chown(folder / "logs", USER)
    outputs = {
        "srun": "srun --output=%x-%j.log {trainer}",
        "each": "srun --output=logs/%N-%t-%j.log {trainer}",
        "chdir": "srun --chdir=logs --output=train.log {trainer}",
        "shell": "srun {trainer} >logs/train.txt 2>&1",
        "tee": "srun {trainer} 2>&1 | tee logs/teed.txt >/dev/null",
    }
    job = cluster.submit(
        folder,
        "--nodes=2 --ntasks-per-node=2 --job-name=own",
        f"{cluster.sidecar} start",
        # A file is found only while a process writes to it, so the agents must run by then.
        f"spools={cluster.directory}/spools/perfd-$SLURM_JOB_ID",
        "until [ $(ls $spools-*/spool.sqlite 2>/dev/null | wc -l) = 2 ]; do sleep 0.1; done",
        *one_after_another(cluster, outputs),
        f"{cluster.sidecar} stop 0",
        user=USER,
    )
    until_each_is_found(aggregator, job, folder, outputs)
    until(lambda: cluster.ended(job), "the end of the job")
    assert "iteration" not in output(folder)
    status = json.loads((folder / f"perfd-{job}" / "status.json").read_text())
    assert [(seen["name"], seen["steps"]["count"]) for seen in status["jobs"]] == [(job, 300)]


def test_steps_are_found_in_an_interactive_allocation(
    cluster: Cluster, directory: Path, aggregator: Aggregator
) -> None:
    folder = cluster.folder("salloc", USER)
    outputs = {
        # Each rank has its own file open.
        "ranks": "srun --output=%t-%j.log {trainer} >/dev/null",
        # srun writes the only file, on the node on which salloc runs the shell.
        "shared": "srun --output=train-%j.log {trainer} >/dev/null",
        "tee": "srun {trainer} | tee train.log >/dev/null",
    }
    shell = folder / "shell.sh"
    lines = (
        "#!/bin/bash",
        "echo $SLURM_JOB_ID >number",
        "while [ ! -e begin ]; do sleep 0.1; done",
        *one_after_another(cluster, outputs),
        "",
    )
    shell.write_text("\n".join(lines))
    shell.chmod(0o755)
    become = ["setpriv", f"--reuid={USER}", "--regid=nogroup", "--clear-groups"]
    allocation = subprocess.Popen(
        [
            *become,
            "salloc",
            "--nodes=2",
            "--ntasks-per-node=1",
            "srun",
            "--interactive",
            "--overlap",
            "-N1",
            "-n1",
            shell,
        ],
        cwd=folder,
        env=cluster.environment({}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(
            lambda: (folder / "number").exists() and (folder / "number").read_text().strip() != "",
            "the allocation",
        )
        job = (folder / "number").read_text().strip()
        # A file is found only while a process writes to it, so the agents must run by then.
        spools = f"*/{job}/perfd/*/spool.sqlite"
        until(lambda: len(list((directory / "jobs").glob(spools))) == 2, "the agents of both nodes")
        (folder / "begin").touch()
        until_each_is_found(aggregator, job, folder, outputs)
        assert allocation.wait(timeout=90) == 0
    finally:
        allocation.kill()
        allocation.wait()
    until(lambda: outcome_of(aggregator, job) == "completed", "the Epilogs")


def test_a_name_and_the_address_of_the_page_can_be_chosen(cluster: Cluster) -> None:
    folder = cluster.folder("named", USER)
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
    job = cluster.submit(
        folder,
        "--nodes=1 --ntasks-per-node=1",
        f"{cluster.sidecar} start",
        f"srun {cluster.trainer} 5",
        f"until curl -sf http://{address}/api/v1/jobs | grep -q llama; do sleep 0.1; done",
        "cp perfd-$SLURM_JOB_ID/http told",
        f"{cluster.sidecar} stop 0",
        user=USER,
        PERFD_JOB="llama",
        PERFD_HTTP=address,
    )
    until(lambda: cluster.ended(job), "the end of the job")
    assert (folder / "told").read_text() == f"{address}\n"
    status = json.loads((folder / f"perfd-{job}" / "status.json").read_text())
    assert [(seen["name"], seen["steps"]["last"]) for seen in status["jobs"]] == [("llama", 5)]


def test_a_batch_script_without_srun_is_switched_on_too(cluster: Cluster, directory: Path) -> None:
    """As with `torchrun`: SLURM runs a TaskProlog for the batch script itself."""
    folder = cluster.folder("torchrun", USER)
    job = cluster.submit(folder, "--ntasks=1", "env", user=USER, KINETO_USE_DAEMON="0")
    until(lambda: cluster.ended(job), "the end of the job")
    seen = dict(line.split("=", 1) for line in output(folder).splitlines() if "=" in line)
    # What the user chose stays.
    assert (seen["NCCL_PROFILER_PLUGIN"], seen["KINETO_USE_DAEMON"]) == (f"{directory}/etc/plugin.so", "0")


@pytest.mark.parametrize("verb", ["start", "stop"])
def test_outside_of_slurm_the_sidecar_says_what_to_do_and_fails_nothing(verb: str) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    script = ROOT / "deploy" / "slurm" / "perfd-sidecar"
    found = subprocess.run([script, verb], env=environ, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")
    assert "SLURM_JOB_ID is not set: this belongs into a batch script of SLURM" in found.stderr


def test_prolog_starts_an_agent_on_each_node_and_epilog_leaves_nothing(
    cluster: Cluster, directory: Path, aggregator: Aggregator
) -> None:
    folder = cluster.folder("whole", USER)
    loop = (
        "from perfd.hook import StepTimer\n"
        "import time\n"
        "timer = StepTimer(warmup_steps=0)\n"
        "for _ in range(1000):\n"
        "    with timer.step(), timer.phase('rehearsal'):\n"
        "        time.sleep(0.05)\n"
    )
    (folder / "loop.py").write_text(loop)
    python = cluster.perfd.read_text().replace('-m perfd "$@"', "loop.py")
    (folder / "python").write_text(python)
    (folder / "python").chmod(0o755)
    job = cluster.submit(
        folder,
        TWO_NODES.format(2),
        "srun env >environ",
        f"srun {cluster.trainer} 3",
        "srun ./python & while [ ! -e go ]; do sleep 0.1; done; kill $!",
        user=USER,
    )
    nodes = {"n1", "n2"}
    until(lambda: agents_of_prolog(directory, job) == len(nodes), "two agents")
    until(lambda: nodes_of(aggregator) >= nodes, "their streams")
    until(lambda: steps_of(aggregator, job) == 3, "the steps of the batch script's output")
    until(lambda: reports_phase(aggregator, job, "rehearsal"), "what the hook measures in the user's loop")
    (folder / "go").touch()
    until(lambda: cluster.ended(job), "the end of the job")
    until(lambda: not list((directory / "jobs").glob(f"*/{job}")), "the end of the Epilogs")
    until(lambda: agents_of_prolog(directory, job) == 0, "the end of the agents")
    assert list((directory / "run").glob(f"*-{job}.sock")) == []
    environ = (folder / "environ").read_text()
    assert f"NCCL_PROFILER_PLUGIN={directory}/etc/plugin.so\n" in environ
    assert "KINETO_USE_DAEMON=1\n" in environ
    for node in nodes:
        # The batch script of n1 hands its environment to the tasks of all.
        assert f"PERFD_HOOK_SOCKET={directory}/run/{node}-{job}.sock\n" in environ


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file or directory"),
        ("if then fi", "syntax error"),
        ("exit 3", "status 3"),
        ("PERFD=/nowhere/perfd\nPERFD_AGGREGATOR=a:1", "/nowhere/perfd cannot be run here"),
        ("PERFD=/bin/false", "PERFD_AGGREGATOR: is missing in"),
        ("PERFD=/bin/false\nPERFD_AGGREGATOR=a:1\nPERFD_STATE=/proc/no", "cannot create directory"),
    ],
)
def test_no_settings_make_a_prolog_drain_its_node_or_stop_a_job(
    cluster: Cluster, directory: Path, settings: Path, content: str | None, words: str
) -> None:
    kept, log = settings.read_text(), directory / "system.log"
    log.unlink(missing_ok=True)
    settings.unlink()
    if content is not None:
        settings.write_text(content)
    try:
        ran = cluster("srun", "--nodes=2", "--ntasks=2", "--immediate=60", "echo", "ran", cwd=directory)
        until(lambda: "CG" not in cluster("squeue", "-h", "-o", "%t"), "the end of the Epilogs")
    finally:
        settings.write_text(kept)
    assert ran == "ran\nran\n"
    assert words in log.read_text()
    assert "perfd-prolog: no agent for job" in log.read_text()
    assert "drain" not in cluster("sinfo", "-h", "-o", "%T")


def test_a_site_can_switch_perfd_on_for_some_partitions_alone(
    cluster: Cluster, aggregator: Aggregator, directory: Path, settings: Path
) -> None:
    kept = settings.read_text()
    settings.write_text(kept + "PERFD_PARTITIONS='test main'\n")
    lines = ("env >environ", f"srun {cluster.trainer} 5", "while [ ! -e go ]; do sleep 0.1; done")
    folders = {name: cluster.folder(f"partition-{name}", USER) for name in ("main", "urgent")}
    try:
        jobs = {
            name: cluster.submit(folder, f"--partition={name} --ntasks=1", *lines, user=USER)
            for name, folder in folders.items()
        }
        until(lambda: steps_of(aggregator, jobs["main"]) == 5, "the steps of the one that is watched")
        until(lambda: "iteration        5/" in output(folders["urgent"]), "those of the other")
        assert agents_of_prolog(directory, jobs["main"]) == 1
        assert agents_of_prolog(directory, jobs["urgent"]) == 0
        for folder in folders.values():
            (folder / "go").touch()
        until(lambda: all(map(cluster.ended, jobs.values())), "the end of both")
    finally:
        settings.write_text(kept)
    until(lambda: outcome_of(aggregator, jobs["main"]) == "completed", "the Epilog")
    assert jobs["urgent"] not in aggregator.jobs()
    has_plugin = {
        name: "NCCL_PROFILER_PLUGIN" in (folder / "environ").read_text() for name, folder in folders.items()
    }
    assert has_plugin == {"main": True, "urgent": False}


def test_an_agent_that_breaks_is_reported_in_the_systems_log(
    cluster: Cluster, directory: Path, settings: Path
) -> None:
    kept, log = settings.read_text(), directory / "system.log"
    log.unlink(missing_ok=True)
    settings.write_text(kept + "PERFD_AGENT_CONFIG=/nowhere.yaml\n")
    try:
        cluster("srun", "--nodes=1", "--ntasks=1", "--immediate=60", "sleep", "2", cwd=directory)
        until(lambda: log.exists() and "ended before the job" in log.read_text(), "the Epilog's word")
    finally:
        settings.write_text(kept)
    assert "/nowhere.yaml" in log.read_text()


def test_jobs_that_share_a_node_have_one_agent_that_stays(
    cluster: Cluster, aggregator: Aggregator, directory: Path, settings: Path
) -> None:
    kept, config = settings.read_text(), directory / "node-agent.yaml"
    reader = {"enabled": True, "options": {"directory": f"{directory}/jobs"}}
    config.write_text(json.dumps({"listen": None, "collectors": {"slurm_jobs": reader}}))
    settings.write_text(kept + "PERFD_NODE_AGENT=yes\n")
    until(lambda: "n2" not in nodes_of(aggregator), "the end of other tests' agents")
    command = [sys.executable, "-m", "perfd", "agent", "--node=n2", "--config", config]
    agent = subprocess.Popen(
        [*command, "--aggregator", aggregator.grpc_address],
        env={**os.environ, "XDG_STATE_HOME": str(directory / "node-state")},
        stderr=subprocess.DEVNULL,
    )
    options = "--array=1-2 --nodelist=n2 --ntasks=1 --gpus-per-node=4 --job-name=shared"
    folder = cluster.folder("shared", USER)
    try:
        until(lambda: "n2" in nodes_of(aggregator), "the node's agent")
        array = cluster.submit(
            folder,
            options,
            f"srun {cluster.trainer} $((5 * SLURM_ARRAY_TASK_ID))",
            "while [ ! -e go-$SLURM_ARRAY_TASK_ID ]; do sleep 0.1; done; exit $((SLURM_ARRAY_TASK_ID - 1))",
            user=USER,
        )
        jobs = [f"{array}_1", f"{array}_2"]
        until(lambda: [steps_of(aggregator, job) for job in jobs] == [5, 10], "the steps of both")
        nodes = {node for node in nodes_of(aggregator) if node.startswith("n2")}
        seen = [aggregator.overview(job)[0] for job in jobs]
        (folder / "go-1").touch()
        until(lambda: outcome_of(aggregator, jobs[0]) == "completed", "the end of the first")
        assert outcome_of(aggregator, jobs[1]) is None
        (folder / "go-2").touch()
        until(lambda: outcome_of(aggregator, jobs[1]) == "failed", "the end of the second")
        until(lambda: list((directory / "jobs" / "n2" / "jobs").iterdir()) == [], "nothing left of them")
        assert agent.poll() is None
    finally:
        settings.write_text(kept)
        agent.terminate()
        agent.wait(timeout=60)
    assert nodes == {"n2"}
    assert [(job["title"], job["array"]) for job in seen] == [
        ("shared", [array, "1"]),
        ("shared", [array, "2"]),
    ]


def test_ranks_are_captured_over_srun_without_agents(cluster: Cluster) -> None:
    # Under Yama a user's py-spy may not look into processes that it did not start.
    user = USER if not YAMA.exists() or YAMA.read_text().strip() == "0" else "root"
    folder = cluster.folder("captured", user)
    (folder / "train.py").write_text(
        # Always on the stack: a busy machine may stop a process between two calls.
        "import time\ndef train_step():\n    print('begun', flush=True)\n    while True:\n"
        "        time.sleep(0.05)\ntrain_step()\n"
    )
    python = cluster.perfd.read_text().replace('-m perfd "$@"', "train.py")
    (folder / "python").write_text(python)
    (folder / "python").chmod(0o755)
    job = cluster.submit(
        folder,
        TWO_NODES.format(4),
        # Ranks 6 and 7 are no Python at all.
        "srun bash -c '[ $SLURM_PROCID -ge 6 ] && exec sleep 1000; ./python; exit 1' &",
        "while [ ! -e go ]; do sleep 0.1; done",
        f"{cluster.perfd} capture --slurm $SLURM_JOB_ID --json >all.json",
        f"{cluster.perfd} capture --slurm $SLURM_JOB_ID --ranks 1,4,99 --json >some.json",
        "kill %1",
        user=user,
    )
    until(lambda: output(folder).count("begun") == 6, "six ranks in Python")
    (folder / "go").touch()
    until(lambda: cluster.ended(job), "the end of the job")
    everyone = capture_of(folder / "all.json")
    assert {(rank["rank"], rank["node"], rank["state"]) for rank in everyone["ranks"]} == {
        (rank, f"n{rank // 4 + 1}", "done" if rank < 6 else "failed") for rank in range(8)
    }
    assert all("py-spy dump failed" in rank["reason"] for rank in everyone["ranks"] if rank["rank"] >= 6)
    for rank in everyone["ranks"][:6]:
        (stacks,) = [Path(file["path"]) for file in rank["files"]]
        assert "train_step" in stacks.read_text()
        assert (stacks.owner(), stacks.stat().st_mode & 0o777) == (user, 0o600)
    some = capture_of(folder / "some.json")
    assert [(rank["rank"], rank["state"]) for rank in some["ranks"]] == [
        (1, "done"),
        (4, "done"),
        (99, "refused"),
    ]


def test_an_interrupted_capture_leaves_no_helper_behind(cluster: Cluster) -> None:
    folder = cluster.folder("interrupted")
    job = cluster.submit(folder, "--nodes=2 --ntasks-per-node=1", f"srun {cluster.trainer} 3000")
    until(lambda: "iteration" in output(folder), "the first step")
    capture = subprocess.Popen(
        [sys.executable, "-m", "perfd", "capture", "--slurm", job, "--tool", "kineto"],
        cwd=folder,
        env=cluster.environment({}),
        stdout=subprocess.PIPE,
        text=True,
    )
    until(lambda: len(helpers()) == 2, "two helpers")
    capture.send_signal(signal.SIGINT)
    printed, _ = capture.communicate(timeout=120)
    assert capture.returncode == 1
    # A node that had answered already keeps its answer.
    assert "lost" in printed or "refused" in printed
    until(lambda: helpers() == [], "the end of the helpers")
    cluster("scancel", job)
    until(lambda: cluster.ended(job), "the end of the job")


def outcome_of(aggregator: Aggregator, job: str) -> str | None:
    overview = aggregator.overview(job) if job in aggregator.jobs() else []
    return overview[0]["outcome"] if overview else None


def output(folder: Path) -> str:
    """What all jobs of a folder have printed."""
    return "".join(path.read_text() for path in folder.glob("*.out"))


def capture_of(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text())
    assert document["schema"] == "perfd.capture/1"
    return dict(document["capture"])


def helpers() -> list[str]:
    """The helpers of `perfd capture --slurm` that run on nodes, without their srun."""
    return [
        line for line in processes_that_name("-m perfd.cli.capture_slurm") if line.startswith(sys.executable)
    ]


def spools_of(cluster: Cluster, job: str) -> list[Path]:
    return list((cluster.directory / "spools").glob(f"perfd-{job}-*"))


def agents_of_sidecar(cluster: Cluster, job: str) -> list[str]:
    return processes_that_name(f"-m perfd agent --config {cluster.directory}/spools/perfd-{job}-")


def left_over(cluster: Cluster, job: str, but: str = "") -> list[str]:
    """Processes and files of a sidecar that are still there, but those of a lost node."""
    files = [path.name for path in spools_of(cluster, job) if not but or not path.name.endswith(f"-{but}")]
    aggregators = [line for line in processes_that_name(f"/perfd-{job}/") if str(cluster.directory) in line]
    return [*agents_of_sidecar(cluster, job), *aggregators, *files]


def agents_of_prolog(directory: Path, job: str) -> int:
    """How many agents run that the Prolog started for a job."""
    lines = processes_that_name(f" agent --config {directory}/etc/agent.yaml ")
    return sum(f" --job {job} " in f"{line} " for line in lines)


def nodes_of(aggregator: Aggregator) -> set[str]:
    return {str(agent["node"]) for agent in aggregator.agents() if agent["connected"]}


def steps_of(aggregator: Aggregator, job: str) -> int | None:
    """The last step that the cluster's aggregator knows of a job."""
    overview = aggregator.overview(job) if job in aggregator.jobs() else []
    return overview[0]["steps"]["last"] if overview else None


def one_after_another(cluster: Cluster, outputs: Mapping[str, str]) -> list[str]:
    """Lines by which one job writes 60 steps, 6 s, to each output in turn, and waits until they are known."""
    return [
        line.format(trainer=f"{cluster.trainer} 60 0.1 {60 * number}")
        + f"; while [ ! -e go-{name} ]; do sleep 0.1; done"
        for number, (name, line) in enumerate(outputs.items())
    ]


def until_steps(aggregator: Aggregator, job: str, steps: int, what: str) -> None:
    until(lambda: steps_of(aggregator, job) == steps, what)


def until_each_is_found(aggregator: Aggregator, job: str, folder: Path, outputs: Mapping[str, str]) -> None:
    for number, name in enumerate(outputs, 1):
        until_steps(aggregator, job, 60 * number, f"the steps of {name} at the cluster's aggregator")
        (folder / f"go-{name}").touch()


def reports_phase(aggregator: Aggregator, job: str, phase: str) -> bool:
    lines = aggregator.page().decode().splitlines()
    return any(f'job="{job}"' in line and f'phase="{phase}"' in line for line in lines)

"""Another user of the node against an agent that runs as root."""

import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from perfd_collectors.file_follower import FileFollower
from perfd_collectors.hook.collector import HookCollector, HookOptions
from perfd_collectors.nccl.flight_recorder.dump import FlightRecorderError, read_dump
from perfd_collectors.nccl.flight_recorder.dump_files import DumpDirectory
from perfd_collectors.nccl.operations import RingBuffers
from perfd_collectors.nccl.segments.segment import Segment
from perfd_collectors.ranks import CgroupIdentity, resolve_rank
from perfd_collectors.ranks.placement import RankProcess, of_one_user

from perfd.capture.kineto.daemon_socket import KinetoEndpoint
from perfd.capture.node import CapturePlan
from perfd.capture.stacks.flight_recorder_tool import FlightRecorderTool
from perfd.clock import SystemClock, VirtualClock
from perfd.collector import LocalJobs, Settings
from perfd.file_access import bind_socket
from perfd.model import CaptureState, CollectiveProgress, RankPlacement

NOBODY = 65534
PYTHON = "/usr/bin/python3"
"""That of the tests may be in a folder that other users cannot enter."""
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not Path(PYTHON).exists(), reason="needs root, to be another user, and its Python"
)


@pytest.fixture
def place():
    """A folder that everybody enters, with `user`, a folder of another user, and `secret`, a file of root."""
    # The path of a socket is short.
    with tempfile.TemporaryDirectory(prefix="perfd-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "user").mkdir()
        os.chown(folder / "user", NOBODY, NOBODY)
        (folder / "secret").write_text("root only\n")
        (folder / "secret").chmod(0o600)
        yield folder


def as_nobody(code, *arguments, **environ):
    """A process of the other user that runs this Python code."""
    return subprocess.Popen(
        [PYTHON, "-S", "-c", code, *map(str, arguments)],
        user=NOBODY, group=NOBODY, extra_groups=[], env=environ, cwd="/",
    )  # fmt: skip


SWAP = """
import os, sys
sock, target = sys.argv[1:]
while True:
    try:
        os.rename(sock, sock + ".x")
        os.symlink(target, sock)
        os.unlink(sock + ".x")
    except OSError:
        pass
"""


@pytest.mark.slow
def test_a_socket_that_is_swapped_for_a_link_changes_no_permissions_of_root(place):
    attacker = as_nobody(SWAP, place / "user" / "dynolog", place / "secret")
    try:
        until_s = time.monotonic() + 1.0
        while time.monotonic() < until_s:
            endpoint = KinetoEndpoint(place / "user", SystemClock())
            endpoint.start()
            endpoint.stop()
    finally:
        attacker.kill()
        attacker.wait()
    assert stat.S_IMODE((place / "secret").stat().st_mode) == 0o600
    assert (place / "secret").read_text() == "root only\n"


def test_a_socket_has_its_permissions_from_the_start(place, monkeypatch):
    def refuse(path, *_args, **_options):
        raise AssertionError(f"the mode of {path} is changed by its name")

    monkeypatch.setattr(os, "chmod", refuse)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        bind_socket(server, place / "user" / "s", 0o666)
        assert stat.S_IMODE((place / "user" / "s").stat().st_mode) == 0o666


def test_no_socket_is_made_in_a_folder_that_a_user_linked_elsewhere(place):
    (place / "etc").mkdir(mode=0o700)
    (place / "user" / "sockets").symlink_to(place / "etc")
    os.chown(place / "user" / "sockets", NOBODY, NOBODY, follow_symlinks=False)
    endpoint = KinetoEndpoint(place / "user" / "sockets", SystemClock())
    endpoint.start()
    assert "link that another user can change" in endpoint.problem
    assert list((place / "etc").iterdir()) == []


def test_a_log_that_a_user_linked_to_a_file_of_root_is_not_read(place):
    link = place / "user" / "slurm-1.out"
    link.symlink_to(place / "secret")
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    follower = FileFollower(lambda: {"log": link}, from_start=True)
    assert follower.poll(1 << 20) == []
    link.unlink()
    link.write_text("step 1\n")
    os.chown(link, NOBODY, NOBODY)
    assert [chunk.data for chunk in follower.poll(1 << 20)] == [b"step 1\n"]
    follower.close()


@pytest.mark.parametrize("what", ["fifo", "device"])
def test_a_log_that_is_exchanged_for_a_pipe_or_a_device_stops_no_other_log(place, what):
    logs = {name: place / "user" / name for name in ("log", "other")}
    follower = FileFollower(lambda: logs, from_start=True)
    if what == "fifo":
        os.mkfifo(logs["log"])
    else:
        os.mknod(logs["log"], stat.S_IFCHR | 0o666, os.makedev(1, 5))
    for number in range(3):
        with logs["other"].open("a") as file:
            file.write(f"step {number}\n")
        assert [chunk.data for chunk in follower.poll(1 << 20)] == [f"step {number}\n".encode()]
    logs["log"].unlink()
    logs["log"].write_text("step 1\n")
    assert [chunk.data for chunk in follower.poll(1 << 20)] == [b"step 1\n"]
    follower.close()


def dump(path, uid):
    group = {"last_enqueued_collective": 9, "last_started_collective": 9, "last_completed_collective": 4}
    path.write_text(json.dumps({"version": "2.4", "pg_status": {"0": group}, "entries": []}))
    os.chown(path, uid, uid)


@pytest.mark.parametrize(
    ("job_user", "owner", "believed"),
    [(1001, NOBODY, False), (NOBODY, NOBODY, True), (None, NOBODY, False), (None, 0, True), (1001, 0, True)],
)
def test_dumps_are_believed_from_the_jobs_user_only(place, caplog, job_user, owner, believed):
    settings = Settings(node="n", job="train", clock=VirtualClock())
    if job_user is not None:
        settings.local_jobs.replace({"train": job_user})
    dumps = DumpDirectory(str(place / "nccl_trace_rank_"), settings)
    dump(place / "nccl_trace_rank_0", owner)
    assert any(isinstance(record, CollectiveProgress) for record in dumps.collect()) is believed
    assert ("not of the job's user" in caplog.text) is not believed


@pytest.mark.parametrize("sandboxed", [False, True])
def test_a_dump_is_read_alike_with_and_without_rights_and_a_bad_one_is_an_event(place, sandboxed):
    settings = Settings(node="n", job="train", clock=VirtualClock(), sandboxed=sandboxed)
    settings.local_jobs.replace({"train": NOBODY})
    dumps = DumpDirectory(str(place / "nccl_trace_rank_"), settings)
    dump(place / "nccl_trace_rank_3", NOBODY)
    (progress,) = dumps.collect()
    assert (progress.rank, progress.enqueued, progress.completed) == (3, 9, 4)
    for content in (b"{", b"\x80\x04cos\nsystem\n."):
        (place / "nccl_trace_rank_4").write_bytes(content)
        os.chown(place / "nccl_trace_rank_4", NOBODY, NOBODY)
        assert dumps.collect() == []
        (event,) = dumps.collect()
        assert event.message.startswith("The flight recorder dump of rank 4 cannot be read: it ")


def test_json_that_would_take_a_gigabyte_is_refused():
    content = b'{"entries":[' + b"[]," * (3 << 20) + b"[]]}"
    with pytest.raises(FlightRecorderError, match="as JSON it is larger than 8 MiB"):
        read_dump(content, job="j", rank=0, read_unix_ns=0)


def test_a_sparse_segment_that_claims_four_billion_rings_costs_nothing(place):
    path = place / "perfd-nccl-1-x"
    rings, entries = 2**32 - 1, 1
    size = 4096 + 256 * 64 + rings * (64 + 128)
    with path.open("wb") as file:
        file.truncate(size)
        file.write(struct.pack("<4sIQIIIIiiiIQQ", b"NCL1", 1, size, 7, entries, 128, 256, 0, 0, 2, 5, 1, 1))
        file.seek(256)
        file.write(struct.pack("<II", rings, 0))
    segment = Segment(path)
    started_s = time.process_time()
    assert len(RingBuffers(segment).read().operations) == 0
    assert time.process_time() - started_s < 1.0
    segment.close()


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize(("uid", "accepted"), [(NOBODY, False), (1001, True), (0, True)])
def test_steps_of_the_hook_are_believed_from_the_jobs_user_only(place, uid, accepted, scheduled):
    settings = Settings(node="n", job="train", clock=VirtualClock())
    settings.local_jobs.replace({"train": 1001})
    if scheduled:
        # A stranger's process that says it is a rank of the job was there first.
        settings = Settings(
            node="n", job="train", clock=VirtualClock(), local_jobs=LocalJobs({"train": 1001})
        )
        settings.local_jobs.replace({"train": NOBODY})
    hook = HookCollector(HookOptions(socket=str(place / "hook.sock"), listen_s=0.0), settings)
    content = {"v": 1, "rank": 0, "step": 7, "unix_ns": 1, "step_s": 1.0, "phases": {}, "world_size": 1}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        credentials = struct.pack("@iII", os.getpid(), uid, uid)
        sender.connect(str(place / "hook.sock"))
        sender.sendmsg(
            [json.dumps(content).encode()], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)]
        )
    hook.collect()
    assert hook.unsound_messages == 0
    assert (hook.foreign_messages == 0) is accepted
    hook.close()


@pytest.mark.parametrize(("looked_for", "accepted"), [(False, False), (True, True)])
def test_without_the_ranks_collector_the_hook_believes_only_root(place, looked_for, accepted):
    settings = Settings(node="n", job="train", clock=VirtualClock())
    if looked_for:
        settings.local_jobs.replace({})
    hook = HookCollector(HookOptions(socket=str(place / "hook.sock"), listen_s=0.0), settings)
    content = {"v": 1, "rank": 0, "step": 7, "unix_ns": 1, "step_s": 1.0, "phases": {}, "world_size": 1}
    code = "import socket, sys\nsocket.socket(1, 2).sendto(sys.argv[2].encode(), sys.argv[1])"
    assert as_nobody(code, place / "hook.sock", json.dumps(content)).wait() == 0
    hook.collect()
    assert hook.unsound_messages == 0
    assert (hook.foreign_messages == 0) is accepted
    hook.close()


RANK = """
import os, sys, time
home, secret = sys.argv[1:]
os.mkfifo(home + "/p25519.pipe")
os.mkdir(home + "/real")
os.symlink(home + "/real", home + "/d")
pipe = os.open(home + "/p25519.pipe", os.O_RDONLY | os.O_NONBLOCK)
while True:
    try:
        if os.read(pipe, 1):
            break
    except BlockingIOError:
        pass
    time.sleep(0.01)
if secret == "sparse":
    with open(home + "/d/id_ed25519", "w") as file:
        file.truncate(1900 << 20)
elif secret == "own":
    open(home + "/d/id_ed25519", "w").write("a dump")
else:
    os.symlink(secret, home + "/d2")
    os.rename(home + "/d2", home + "/d")
time.sleep(60)
"""


@pytest.mark.parametrize(("what", "state"), [("own", "done"), ("secret", "failed"), ("sparse", "failed")])
def test_a_rank_brings_in_no_file_of_root_and_none_without_end(place, what, state):
    home, keys, captures = place / "user", place / "keys", place / "captures"
    keys.mkdir(mode=0o700)
    (keys / "id_ed25519").write_text("PRIVATE KEY OF ROOT")
    captures.mkdir()
    names = {"RANK": "25519", "WORLD_SIZE": "30000", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{home}/p"}
    names["TORCH_FR_DUMP_TEMP_FILE"] = f"{home}/d/id_ed"
    job = as_nobody(RANK, home, keys if what == "secret" else what, **names)
    try:
        until_s = time.monotonic() + 20
        while not (home / "d").exists() and time.monotonic() < until_s:
            time.sleep(0.01)
        placed = [RankPlacement(job="j", rank=25519, pid=job.pid)]
        tool = FlightRecorderTool(placements=lambda _: placed, clock=SystemClock(), patience_s=8)
        ready = tool.ready("j", [25519])
        plan = CapturePlan(
            capture_id="c", directory=captures, max_duration_s=5, max_bytes=1 << 31,
            start_unix_ns=None, steps=None, step_time_s=None,
        )  # fmt: skip
        tool.start(ready.targets, plan)
        (outcome,) = tool.stop(ready.targets, plan)
    finally:
        job.send_signal(signal.SIGKILL)
        job.wait()
    assert outcome.state is CaptureState(state)
    assert [Path(file).read_text() for file in outcome.files] == (["a dump"] if what == "own" else [])
    assert len(list(captures.iterdir())) == len(outcome.files)


OF_THE_UNIT = """
import os, sys, time
from pathlib import Path
from perfd.capture.node.trace_directory import TraceDirectory
from perfd.capture.node import environment_of
from perfd.sandbox import Sandbox
from perfd_collectors.hook.collector import HookCollector, HookOptions
from perfd_collectors.nccl.segments.segment import RecordingMode, Segment
from perfd_collectors.nccl.segments.segment_discovery import remove_left_over
from perfd.collector import LocalJobs, Settings

place, pid, uid = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
segment = Segment(place / "perfd-nccl-1-x")
segment.set_recording_mode(RecordingMode.OPERATIONS)
print("segment", segment.recording_mode() is RecordingMode.OPERATIONS)
segment.close()
print("left over", remove_left_over([segment.path], time.time()) == [segment.path], segment.path.exists())
box = TraceDirectory(root=Path("/"), place=place, name="perfd-kineto-1")
box.create(uid, uid)
box.mark(1, 0.0, uid, uid)
made = [(place / name).stat().st_uid == uid for name in ("perfd-kineto-1", "perfd-kineto-until-1")]
box.unmark(1)
box.remove()
print("traces", made, [path.name for path in place.glob("perfd-kineto*")])
print("environment", environment_of(Path("/proc"), pid).get("RANK"))
HookCollector(HookOptions(socket=str(place / "hook.sock"), listen_s=0.0), Settings(node="n", job="j")).close()
print("hook", (place / "hook.sock").exists())
sandbox = Sandbox("perfd_collectors.nccl.flight_recorder.dump_files:reader")
print("sandbox", os.stat(f"/proc/{sandbox.pid}").st_uid, sandbox.filters_system_calls)
sandbox.close()
"""


def test_the_units_capabilities_suffice_for_what_jobs_of_users_need(place):
    unit = (Path(__file__).parents[2] / "deploy/systemd/perfd-agent.service").read_text()
    (names,) = (line.partition("=")[2] for line in unit.splitlines() if "CapabilityBoundingSet" in line)
    capabilities = ",".join("+" + name.removeprefix("CAP_").lower() for name in names.split())
    # As /tmp and /dev/shm are.
    place.chmod(0o1777)
    segment = place / "perfd-nccl-1-x"
    size = 4096 + 256 * 64 + 64 + 128
    header = struct.pack("<4sIQIIIIiiiIQQ", b"NCL1", 1, size, 7, 1, 128, 256, 0, 0, 2, 5, 1, 1)
    segment.write_bytes(header.ljust(size, b"\0"))
    segment.chmod(0o600)
    os.chown(segment, NOBODY, NOBODY)
    job = as_nobody("import time; time.sleep(600)", RANK="3")
    try:
        shown = subprocess.run(
            ["setpriv", f"--bounding-set=-all,{capabilities}", "--no-new-privs", sys.executable, "-c",
             OF_THE_UNIT, place, str(job.pid), str(NOBODY)],
            check=True, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    finally:
        job.kill()
        job.wait()
    assert shown.stdout.splitlines() == [
        "segment True",
        "left over True False",
        "traces [True, True] []",
        "environment 3",
        "hook False",
        "sandbox 65534 True",
    ]


READ = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from perfd.file_access import open_as_owner
for path in sys.argv[2:]:
    try:
        print(os.read(open_as_owner(Path(path)), 100).decode().strip())
    except OSError as error:
        print("refused")
"""


@pytest.mark.parametrize("capabilities", ["+dac_read_search", "+dac_read_search,+setuid,+setgid"])
def test_the_units_capabilities_suffice_and_give_no_more(place, capabilities):
    (place / "user" / "log").write_text("steps")
    os.chown(place / "user" / "log", NOBODY, NOBODY)
    (place / "user" / "log").chmod(0o600)
    for name, target in (("link", place / "secret"), ("folder", place)):
        (place / "user" / name).symlink_to(target)
    paths = [
        place / "user" / "log",
        place / "user" / "link",
        place / "user" / "folder" / "secret",
        place / "secret",
    ]
    limits = ["setpriv", f"--bounding-set=-all,{capabilities}", "--no-new-privs"]
    root = Path(__file__).parents[2]
    shown = subprocess.run(
        [*limits, PYTHON, "-S", "-c", READ, root, *paths],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert shown.stdout.splitlines() == ["steps", "refused", "refused", "root only"]


def test_a_process_of_another_user_than_the_scheduler_says_is_no_rank_of_the_job():
    def rank(pid, uid):
        environ = {"RANK": str(pid), "WORLD_SIZE": "2", "SLURM_JOB_ID": "77"}
        known = resolve_rank(environ, CgroupIdentity(), uid)
        return RankProcess(pid=pid, ancestors=(), identity=known, gpu=None, holds_gpu=True, started_unix_ns=0)

    ranks = [rank(0, NOBODY), rank(1, 1001)]
    mine, users = of_one_user(ranks, lambda identity: identity.job, {}, {"77": 1001})
    assert ([one.pid for one in mine], users) == ([1], {"77": 1001})
    # Without the scheduler's word the first one counts.
    mine, users = of_one_user(ranks, lambda identity: identity.job, {}, {})
    assert ([one.pid for one in mine], users) == ([0], {"77": NOBODY})

"""The judgements of `perfd doctor`, each over made-up facts."""

from dataclasses import replace
from pathlib import Path

import pytest

from perfd.capture.nsys.nsys_installation import Installation
from perfd.doctor.capture_checks import (
    check_importer,
    check_jax,
    check_kineto,
    check_kineto_socket,
    check_nsys,
    check_py_spy,
    check_quota,
)
from perfd.doctor.clock_sync import clock_facts
from perfd.doctor.nccl_checks import check_nccl_plugin, check_nccl_settings, check_shared_memory
from perfd.doctor.node_checks import (
    Level,
    check_aggregator,
    check_captures,
    check_clock,
    check_gateway,
    check_gpm,
    check_history,
    check_nvml,
    check_processes,
    check_reports,
    check_spool,
    check_uploads,
    diagnose,
    to_json,
    worst,
)
from perfd.doctor.node_facts import (
    AggregatorFacts,
    ClockFacts,
    DirectoryFacts,
    GatewayFacts,
    GpuFacts,
    HistoryFacts,
    HistoryServerFacts,
    NcclSetting,
    NodeFacts,
    NsysFacts,
    NvmlFacts,
    ProcessFacts,
    PySpyFacts,
    SocketFacts,
    StorageFacts,
)

NSYS = Installation(
    nsys=Path("/opt/host/target-linux-x64/nsys"),
    importer=Path("/opt/host/host-linux-x64/QdstrmImporter"),
    importer_elsewhere=None,
    importer_expected=Path("/opt/host/host-linux-x64/QdstrmImporter"),
)
COMPUTE_NSYS = replace(
    NSYS,
    importer=None,
    importer_elsewhere=Path("/opt/host/linux-desktop-glibc_2_11_3-x64/QdstrmImporter"),
)
GOOD_DIRECTORY = DirectoryFacts(path=Path("/state"), free_bytes=2**40)
HEALTHY = NodeFacts(
    gateway=None,
    perfd_version="1.0.0",
    python_version="3.12.1",
    nvml=NvmlFacts(driver="580.159", gpus=[GpuFacts(index=0, name="NVIDIA H200", gpm=True)]),
    nsys=NsysFacts(installation=NSYS, version="2025.3.1", libdw=Path("/usr/lib/libdw.so.1")),
    captures_enabled=True,
    perf_event_paranoid=4,
    processes=ProcessFacts(total=100, unreadable=1),
    spool=GOOD_DIRECTORY,
    spool_max_bytes=2**28,
    captures=GOOD_DIRECTORY,
    captures_min_free_bytes=2**30,
    captures_used_bytes=2**20,
    captures_max_bytes=2**31,
    clock=ClockFacts(synchronized=True, max_error_s=0.001),
    nccl_plugin=Path("/lib/libnccl-profiler-perfd.so"),
    shared_memory=DirectoryFacts(path=Path("/dev/shm"), free_bytes=2**30),
    kineto={},
    kineto_socket=SocketFacts(place="@dynolog", taken=False),
    jax={},
    py_spy=PySpyFacts(path=Path("/usr/bin/py-spy"), ptrace_scope=1, may_trace=True),
    aggregator=AggregatorFacts(address="head:9461", configured=True),
    history=None,
    promtool=None,
)


def spy(**changes):
    return replace(HEALTHY.py_spy, **changes)


def test_a_healthy_node_has_nothing_to_fix():
    assert worst(diagnose(HEALTHY)) is Level.OK


UNLOADABLE = "QdstrmImporter: error while loading shared libraries: {}: cannot open shared object file"


def nsys(installation=NSYS, version="2025.3.1", libdw=Path("/lib/libdw.so.1"), problem=""):
    facts = NsysFacts(installation=installation, version=version, libdw=libdw, importer_problem=problem)
    return {"nsys": facts}


def nccl(name, value, source="the environment"):
    settings = {name: NcclSetting(value, source)}
    return {"nccl_settings": settings, "infiniband": ["mlx5_0"], "interfaces": ["eth0", "lo"]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_P2P_DISABLE", "0"),
        ("NCCL_IB_DISABLE", "0"),
        ("NCCL_IB_HCA", "mlx5"),
        ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1"),
        ("NCCL_IB_HCA", "^mlx5_9"),
        ("NCCL_SOCKET_IFNAME", "eth"),
        ("NCCL_SOCKET_IFNAME", "^lo,docker"),
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_NVLS_ENABLE", "1"),
    ],
)
def test_settings_of_nccl_that_cost_nothing_are_listed(name, value):
    found = check_nccl_settings(replace(HEALTHY, **nccl(name, value)))

    assert (found.level, found.what) == (Level.OK, f"{name}={value}")


def test_without_infiniband_nccl_may_disable_it():
    facts = replace(HEALTHY, **(nccl("NCCL_IB_DISABLE", "1") | {"infiniband": []}))

    assert check_nccl_settings(facts).level is Level.OK


def of_server(**facts):
    """A history in PostgreSQL."""
    return HistoryFacts(directory=None, max_bytes=0, server=HistoryServerFacts(**facts))


@pytest.mark.parametrize(
    ("check", "changes", "level", "words"),
    [
        (check_nvml, {"nvml": NvmlFacts(library_missing=True)}, Level.WARN, "install the NVIDIA driver"),
        (check_nvml, {"nvml": NvmlFacts(error="Version mismatch")}, Level.FAIL, "Version mismatch"),
        (check_nvml, {"nvml": NvmlFacts(driver="580")}, Level.WARN, "--gpus all"),
        (
            check_gpm,
            {"nvml": NvmlFacts(driver="580", gpus=[GpuFacts(index=3, name="A100", gpm=False)])},
            Level.WARN,
            "GPUs 3 lack GPM",
        ),
        (check_nsys, nsys(installation=None), Level.WARN, "nsight-systems-cli"),
        (check_nsys, nsys(version=None), Level.FAIL, "does not run"),
        (
            check_nsys,
            nsys(installation=COMPUTE_NSYS),
            Level.FAIL,
            "ln -s /opt/host/linux-desktop-glibc_2_11_3-x64 /opt/host/host-linux-x64",
        ),
        (
            check_nsys,
            nsys(installation=replace(NSYS, cupti_version=130000, only_found=True)),
            Level.WARN,
            "at their first capture: not used",
        ),
        (
            check_nsys,
            nsys(installation=replace(NSYS, cupti_version=130000)),
            Level.WARN,
            "used because of capture.nsys_path",
        ),
        (check_nsys, {**nsys(None), "captures_enabled": False}, Level.OK, "disabled"),
        (check_importer, nsys(libdw=None), Level.WARN, "Install libdw1"),
        (check_importer, nsys(problem=UNLOADABLE.format("libdw.so.1")), Level.FAIL, "Install libdw1"),
        (check_importer, nsys(problem=UNLOADABLE.format("libssh.so")), Level.FAIL, "Install libssh-4"),
        (check_importer, nsys(problem=UNLOADABLE.format("libx.so")), Level.FAIL, "package with libx.so"),
        (check_importer, nsys(problem="Segmentation fault"), Level.FAIL, "Reinstall"),
        (check_importer, nsys(installation=None, libdw=None), Level.OK, "not needed"),
        (check_kineto, {"kineto": {"KINETO_USE_DAEMON": "1"}}, Level.WARN, "--no-nsys"),
        (check_kineto, {"kineto": {"KINETO_USE_DAEMON": "0"}}, Level.OK, "KINETO_USE_DAEMON=0"),
        (
            check_kineto_socket,
            {"kineto_socket": SocketFacts(place="@dynolog", taken=True, owner="dynolog (pid 7)")},
            Level.FAIL,
            "@dynolog is taken by dynolog (pid 7)",
        ),
        (
            check_kineto_socket,
            {"kineto_socket": SocketFacts(place="@dynolog", taken=True, owner="python perfd agent (pid 7)")},
            Level.OK,
            "is served by",
        ),
        (
            check_kineto_socket,
            {"kineto_socket": SocketFacts(place="/x/dynolog", taken=False, problem="File name too long")},
            Level.FAIL,
            "File name too long",
        ),
        (
            check_kineto_socket,
            {"kineto_socket": SocketFacts(place="@dynolog", taken=True)},
            Level.WARN,
            "Run doctor as root to identify it",
        ),
        (check_kineto_socket, {"kineto_socket": None}, Level.OK, "is off"),
        (check_jax, {"jax": {}}, Level.OK, "no process"),
        (check_jax, {"jax": {7: ""}}, Level.OK, "reachable"),
        (check_jax, {"jax": {7: "", 8: "has no server"}}, Level.WARN, "1 of 2 processes with JAX: has no"),
        (check_kineto_socket, {"captures_enabled": False}, Level.OK, "capture.enabled"),
        (check_py_spy, {"py_spy": spy(path=None)}, Level.WARN, "pip install py-spy"),
        (check_py_spy, {"py_spy": spy(may_trace=False)}, Level.WARN, "CAP_SYS_PTRACE"),
        (check_py_spy, {"py_spy": spy(may_trace=False, ptrace_scope=None)}, Level.OK, "this user"),
        (check_py_spy, {"py_spy": spy(ptrace_scope=3)}, Level.WARN, "disabled for all users"),
        (check_quota, {"captures_used_bytes": 2**31}, Level.FAIL, "no capture can start"),
        (check_processes, {"processes": ProcessFacts(total=100, unreadable=60)}, Level.WARN, "as root"),
        (
            check_spool,
            {"spool": replace(GOOD_DIRECTORY, problem="Read-only file system")},
            Level.FAIL,
            "/state cannot be written: Read-only file system",
        ),
        (check_spool, {"spool": replace(GOOD_DIRECTORY, free_bytes=300)}, Level.WARN, "/state: 300 B free"),
        (
            check_captures,
            {"captures": replace(GOOD_DIRECTORY, free_bytes=2**20)},
            Level.WARN,
            "1.1 GB needed",
        ),
        (check_clock, {"clock": None}, Level.WARN, "chrony"),
        (check_clock, {"clock": ClockFacts(synchronized=False, max_error_s=16)}, Level.WARN, "not sync"),
        (check_clock, {"clock": ClockFacts(synchronized=True, max_error_s=0.2)}, Level.WARN, "200.0 ms"),
        (check_nccl_plugin, {"nccl_plugin": None}, Level.WARN, "libnccl-profiler-perfd.so not found"),
        (
            check_shared_memory,
            {"shared_memory": DirectoryFacts(path=Path("/shm"), free_bytes=0, problem="Read-only")},
            Level.WARN,
            "/shm is not writable: Read-only",
        ),
        (
            check_shared_memory,
            {"shared_memory": DirectoryFacts(path=Path("/shm"), free_bytes=5 << 20)},
            Level.WARN,
            "/shm: 5.2 MB free, 9.4 MB needed (9.4 MB per GPU)",
        ),
        (
            check_nccl_settings,
            nccl("NCCL_P2P_DISABLE", "1", source="/etc/nccl.conf"),
            Level.WARN,
            "NCCL_P2P_DISABLE=1 (/etc/nccl.conf) disables direct transfers between GPUs",
        ),
        (check_nccl_settings, nccl("NCCL_P2P_LEVEL", "LOC"), Level.WARN, "NVLink included"),
        (check_nccl_settings, nccl("NCCL_IB_DISABLE", "1"), Level.WARN, "although mlx5_0 could be used"),
        (check_nccl_settings, nccl("NCCL_NET", "Socket"), Level.WARN, "although mlx5_0 could be used"),
        (check_nccl_settings, nccl("NCCL_IB_HCA", "=mlx5"), Level.WARN, "names no InfiniBand device"),
        (check_nccl_settings, nccl("NCCL_SOCKET_IFNAME", "eno1"), Level.WARN, "of this node (eth0, lo)"),
        (check_nccl_settings, nccl("NCCL_SOCKET_IFNAME", "lo"), Level.WARN, "cannot reach"),
        (check_nccl_settings, nccl("NCCL_ALGO", "Tree"), Level.WARN, "forces one algorithm"),
        (check_nccl_settings, nccl("NCCL_NVLS_ENABLE", "0"), Level.WARN, "NVLink SHARP"),
        (check_nccl_settings, nccl("NCCL_SHM_DISABLE", "1"), Level.WARN, "shared memory"),
        (check_nccl_settings, nccl("NCCL_DEBUG", "TRACE"), Level.WARN, "slows the job"),
        (
            check_aggregator,
            {"aggregator": AggregatorFacts(address="head:1", configured=True, error="refused")},
            Level.FAIL,
            "head:1 cannot be reached: refused",
        ),
        (
            check_aggregator,
            {"aggregator": AggregatorFacts(address="head:1", configured=False, error="refused")},
            Level.OK,
            "none at head:1; perfd run starts its own",
        ),
        (
            check_history,
            {"history": HistoryFacts(directory=None, max_bytes=1)},
            Level.WARN,
            "a kill or restart of the aggregator loses all steps",
        ),
        (
            check_history,
            {
                "history": HistoryFacts(
                    directory=DirectoryFacts(path=Path("/h"), free_bytes=5, problem="Read-only"), max_bytes=1
                )
            },
            Level.FAIL,
            "/h cannot be written: Read-only",
        ),
        (
            check_history,
            {"history": of_server(place="postgresql://h:1/perfd", error="refused")},
            Level.FAIL,
            "postgresql://h:1/perfd cannot be used: refused",
        ),
        (
            check_history,
            {"history": of_server(place="postgresql://h:1/perfd", version="15.1", schema="0001")},
            Level.OK,
            "postgresql://h:1/perfd, PostgreSQL 15.1, schema 0001, no TLS",
        ),
        (
            check_history,
            {"history": of_server(place="postgresql://h:1/perfd", version="15.1", encrypted=True)},
            Level.OK,
            "postgresql://h:1/perfd, PostgreSQL 15.1, no tables yet, TLS",
        ),
        (
            check_uploads,
            {"uploads": StorageFacts(url="s3://traces/perfd", problem="The bucket is full.")},
            Level.FAIL,
            "The bucket is full Correct capture.object_storage, or the storage that it names",
        ),
        (check_uploads, {"uploads": None}, Level.OK, "capture.object_storage is not configured"),
        (
            check_reports,
            {"reports": StorageFacts(url="s3://traces/perfd/a")},
            Level.OK,
            "s3://traces/perfd/a was stored",
        ),
    ],
)
def test_what_a_node_lacks_is_said_with_what_to_do(check, changes, level, words):
    finding = check(replace(HEALTHY, **changes))
    assert finding.level is level
    assert words in f"{finding.what} {finding.fix}"
    assert finding.fix or level is Level.OK


def test_the_worst_finding_is_the_level_of_the_whole():
    findings = diagnose(replace(HEALTHY, **nsys(installation=COMPUTE_NSYS), nccl_plugin=None))
    document = to_json(findings)
    assert (document["schema"], document["level"]) == ("perfd.doctor/2", "fail")
    assert set(document["findings"][0]) == {"check", "level", "title", "what", "fix"}
    assert len({finding.check for finding in findings}) == len(findings)


@pytest.mark.parametrize(
    ("state", "status", "synchronized"),
    [(0, 0x2001, True), (5, 0x40, False), (0, 0x40, False), (5, 0, False)],
)
def test_the_kernel_shows_whether_the_clock_is_disciplined(state, status, synchronized):
    assert clock_facts(state, status, 16_000) == ClockFacts(synchronized=synchronized, max_error_s=0.016)


@pytest.mark.parametrize(
    ("facts", "level", "word"),
    [
        (GatewayFacts(servers="s", needed_bytes=1000, max_payload_bytes=5096), Level.OK, "reached"),
        (GatewayFacts(servers="s", needed_bytes=1000, max_payload_bytes=5095), Level.FAIL, "at most"),
        (
            GatewayFacts(servers="s", needed_bytes=1000, error="No NATS server answers."),
            Level.FAIL,
            "answers",
        ),
    ],
)
def test_the_servers_of_a_gateway_must_take_its_batches(facts: GatewayFacts, level: Level, word: str) -> None:
    found = check_gateway(replace(HEALTHY, gateway=facts))
    assert found.level is level
    assert word in found.what

"""What `perfd doctor` finds out about nodes made of files."""

import json
import os
import socket
from pathlib import Path

import pytest

from perfd.capture.nsys.nsys_installation import find_libdw, find_nsys, parse_version
from perfd.cli import main
from perfd.config import AgentCaptureConfig, AgentConfig, KinetoConfig, UplinkConfig
from perfd.doctor.capture_probe import probe_kineto_socket
from perfd.doctor.nccl_probe import active_infiniband, probe_nccl_settings
from perfd.doctor.node_facts import NsysFacts, PySpyFacts
from perfd.doctor.node_probe import (
    probe,
    probe_aggregator,
    probe_directory,
    probe_nsys,
    probe_processes,
)
from perfd.net.http import HttpServer
from tests.support import nsys_installation


def nsight_compute(root):
    """What Nsight Compute lays out: an nsys whose importer is in a folder where nsys does not look."""
    host = root / "opt/nvidia/nsight-compute/2025.3.1/host"
    nsys_installation.install(host, importer=False)
    elsewhere = host / "linux-desktop-glibc_2_11_3-x64"
    elsewhere.mkdir()
    (elsewhere / "QdstrmImporter").touch()
    return host


def test_the_nsys_inside_nsight_compute_is_found_and_its_missing_link_too(tmp_path):
    host = nsight_compute(tmp_path)
    found = find_nsys(None, "", root=tmp_path)
    assert found.nsys == host / "target-linux-x64" / "nsys"
    assert found.importer_missing
    assert found.fix_for_importer == (
        f"Run: ln -s {host / 'linux-desktop-glibc_2_11_3-x64'} {host / 'host-linux-x64'}"
    )
    (host / "host-linux-x64").symlink_to(host / "linux-desktop-glibc_2_11_3-x64")
    assert not find_nsys(None, "", root=tmp_path).importer_missing


def test_a_whole_nsight_systems_wins_over_nsight_compute_and_the_newest_over_older_ones(tmp_path):
    nsight_compute(tmp_path)
    for version in ("2023.4.4", "2025.3.1", "2024.10.1"):
        nsys_installation.install(tmp_path / "opt/nvidia/nsight-systems" / version)
    assert "nsight-systems/2025.3.1" in str(find_nsys(None, "", root=tmp_path).nsys)


def test_the_configured_nsys_wins_and_a_wrong_one_is_not_replaced_by_a_guess(tmp_path):
    nsight_compute(tmp_path)
    mine = nsys_installation.install(tmp_path / "mine")
    assert find_nsys(str(mine), "", root=tmp_path).nsys == mine
    assert find_nsys(str(tmp_path / "nosuch"), "", root=tmp_path) is None


def test_nsys_on_the_path_is_followed_to_where_it_really_lies(tmp_path):
    real = nsys_installation.install(tmp_path / "real", importer=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nsys").symlink_to(real)
    assert find_nsys(None, str(tmp_path / "bin"), root=tmp_path).importer_missing


def test_a_wrapper_script_of_unknown_layout_is_given_the_benefit_of_the_doubt(tmp_path):
    (tmp_path / "nsys").write_text("#!/bin/sh\n")
    (tmp_path / "nsys").chmod(0o755)
    assert not find_nsys(None, str(tmp_path), root=tmp_path).importer_missing


def test_libdw_is_found_in_the_system_or_beside_the_importer(tmp_path):
    assert find_libdw(root=tmp_path) is None
    beside = tmp_path / "host"
    beside.mkdir()
    (beside / "libdw.so.1").touch()
    assert find_libdw(root=tmp_path, beside=[beside]) == beside / "libdw.so.1"
    system = tmp_path / "usr/lib/x86_64-linux-gnu"
    system.mkdir(parents=True)
    (system / "libdw.so.1").touch()
    assert find_libdw(root=tmp_path) == system / "libdw.so.1"


def test_the_version_is_what_nsys_says(tmp_path):
    nsys_installation.install(tmp_path / "opt/nvidia/nsight-systems/2024", version="2024.2.3.38-1")
    facts = probe_nsys(find_nsys(None, "", root=tmp_path), root=tmp_path)
    assert facts.version == "2024.2.3.38"
    assert facts.importer_problem == ""
    assert probe_nsys(None, root=tmp_path) == NsysFacts()
    assert parse_version("NVIDIA Nsight Systems version 2022.4.2.1-df9881f") == "2022.4.2.1"
    assert parse_version("not nsys at all") is None


def test_an_importer_that_lacks_a_library_is_found_by_running_it(tmp_path):
    nsys_installation.install(tmp_path / "opt/nvidia/nsight-systems/2025", importer_loads=False)
    facts = probe_nsys(find_nsys(None, "", root=tmp_path), root=tmp_path)
    assert "libdw.so.1" in facts.importer_problem


def test_an_nsys_that_does_not_run_has_no_version(tmp_path):
    broken = nsys_installation.install(tmp_path / "broken")
    broken.write_text("#!/nonexistent/interpreter\n")
    assert probe_nsys(find_nsys(str(broken), "", root=tmp_path), root=tmp_path).version is None


def test_processes_are_counted_in_the_given_proc(tmp_path):
    for name in ("1", "22", "self"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "environ").write_bytes(b"A=1\0")
    assert probe_processes(tmp_path).total == 2


def test_a_directory_that_is_not_there_yet_is_judged_by_its_parent(tmp_path):
    facts = probe_directory(tmp_path / "not" / "yet")
    assert not facts.problem
    assert facts.free_bytes > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["file/below", "/proc/home", "/sys/home", "x" * 300])
def test_where_nothing_can_be_made_root_gets_the_reason_too(tmp_path, place):
    (tmp_path / "file").touch()
    assert probe_directory(tmp_path / place).problem


def test_a_directory_that_cannot_even_be_looked_at_is_one_finding_among_the_others(tmp_path, capsys):
    unusable = tmp_path / ("x" * 300) / "captures"
    (tmp_path / "agent.yaml").write_text(
        f"spool: {{directory: {tmp_path}}}\ncapture: {{output_directory: {unusable}}}\n"
    )
    assert main(["doctor", "--config", str(tmp_path / "agent.yaml")]) == 1
    reported = capsys.readouterr().out
    assert f"fail capture directory: {unusable} cannot be written: File name too long" in reported
    assert "ok   spool" in reported


def test_the_aggregator_is_reached_or_the_error_says_why():
    server = HttpServer("127.0.0.1:0", {})
    assert probe_aggregator(server.address, configured=True).error == ""
    server.close()
    assert "refused" in probe_aggregator(server.address, configured=True).error.lower()
    assert "is not an address" in probe_aggregator("nonsense", configured=True).error


def test_every_fact_of_a_made_up_node_comes_from_its_files(tmp_path):
    proc = tmp_path / "proc"
    (proc / "sys/kernel").mkdir(parents=True)
    (proc / "sys/kernel/perf_event_paranoid").write_text("3\n")
    (proc / "sys/kernel/yama").mkdir()
    (proc / "sys/kernel/yama/ptrace_scope").write_text("2\n")
    (proc / "self").mkdir()
    (proc / "self/status").write_text("Name:\tperfd\nCapEff:\t0000000000080000\n")
    nsight_compute(tmp_path)
    facts = probe(
        AgentConfig(
            proc=str(proc),
            uplink=UplinkConfig(address="127.0.0.1:1"),
            capture=AgentCaptureConfig(py_spy_path=str(tmp_path / "none")),
        ),
        node="n1",
        spool=tmp_path / "spool",
        configured=True,
        environment={
            "PATH": "",
            "KINETO_USE_DAEMON": "1",
            "SECRET": "x",
            "PERFD_NCCL_DIR": str(tmp_path),
        },
        root=tmp_path,
    )
    assert facts.perf_event_paranoid == 3
    assert facts.nsys.installation.importer_missing
    assert facts.kineto == {"KINETO_USE_DAEMON": "1"}
    assert facts.captures.path == tmp_path / "spool" / "captures"
    assert (facts.shared_memory.path, facts.shared_memory.problem) == (tmp_path, "")
    assert facts.py_spy == PySpyFacts(path=None, ptrace_scope=2, may_trace=True)
    assert facts.aggregator.error


def test_whoever_answers_libkineto_is_named(tmp_path):
    config = KinetoConfig(enabled=True, socket_directory=str(tmp_path))
    proc = Path("/proc")
    assert probe_kineto_socket(KinetoConfig(), proc) is None
    assert not probe_kineto_socket(config, proc).taken
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(tmp_path / "dynolog"))
        found = probe_kineto_socket(config, proc)
        assert (found.taken, found.place) == (True, str(tmp_path / "dynolog"))
        assert f"(pid {os.getpid()})" in found.owner
    assert not probe_kineto_socket(config, proc).taken, "a socket that nobody holds any more"


def test_a_folder_that_is_too_long_for_a_socket_is_a_problem(tmp_path):
    config = KinetoConfig(enabled=True, socket_directory=str(tmp_path / ("x" * 200)))
    assert probe_kineto_socket(config, Path("/proc")).problem


def test_the_verb_prints_its_schema_and_fails_only_for_what_cannot_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    config = tmp_path / "agent.yaml"
    broken = nsys_installation.install(tmp_path / "nsys", importer=False)
    config.write_text(f"node: n1\ncapture: {{nsys_path: {broken}}}\nuplink: {{address: '127.0.0.1:1'}}\n")
    assert main(["doctor", "--json", "--config", str(config)]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "perfd.doctor/2"
    levels = {finding["check"]: finding["level"] for finding in document["findings"]}
    assert (levels["nsys"], levels["aggregator"], levels["spool"]) == ("fail", "fail", "ok")
    main(["doctor"])
    assert "ok   versions: perfd" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("history", "words"),
    [
        ("{}", "off: a kill or restart of the aggregator loses all steps"),
        ("{path: DIRECTORY/h.sqlite, max_bytes: 1}", "DIRECTORY, "),
    ],
)
def test_the_aggregators_configuration_shows_what_survives_a_kill(tmp_path, capsys, history, words):
    config = tmp_path / "aggregator.yaml"
    config.write_text(f"history: {history}\n".replace("DIRECTORY", str(tmp_path)))
    main(["doctor", "--aggregator-config", str(config)])
    assert f"history: {words}".replace("DIRECTORY", str(tmp_path)) in capsys.readouterr().out


def test_nccl_reads_the_environment_before_the_users_file_and_that_before_the_nodes(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "home/ada").mkdir(parents=True)
    (tmp_path / "etc/nccl.conf").write_text(
        "NCCL_DEBUG=WARN\nNCCL_ALGO = Ring # no\n# NCCL_PROTO=LL\nNCCL_NET=IB\n"
    )
    (tmp_path / "home/ada/.nccl.conf").write_text("NCCL_ALGO=Tree\nNCCL_NET=Socket\n")
    environment = {"HOME": "/home/ada", "NCCL_NET": "OFI", "SECRET": "x"}

    found = probe_nccl_settings(environment, tmp_path)

    assert {name: (one.value, one.source) for name, one in found.items()} == {
        "NCCL_DEBUG": ("WARN", "/etc/nccl.conf"),
        "NCCL_ALGO": ("Tree", "/home/ada/.nccl.conf"),
        "NCCL_NET": ("OFI", "the environment"),
    }
    (tmp_path / "other.conf").write_text("NCCL_ALGO=Ring\n")
    other = probe_nccl_settings(environment | {"NCCL_CONF_FILE": "/other.conf"}, tmp_path)
    assert other["NCCL_ALGO"].source == "/other.conf"


def test_infiniband_counts_if_a_port_is_active(tmp_path):
    for device, state in (("mlx5_0", "4: ACTIVE\n"), ("mlx5_1", "1: DOWN\n")):
        port = tmp_path / device / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(state)

    assert active_infiniband(tmp_path) == ["mlx5_0"]

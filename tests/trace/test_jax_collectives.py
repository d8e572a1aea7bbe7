"""Collectives of JAX's profiles are matched across devices by the HLO that the profile has."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.trace.diagnosis.trace_analysis import analyse
from perfd.trace.diagnosis.trace_bottleneck import diagnose
from perfd.trace.readers.trace_files import read_traces
from perfd.trace.readers.xplane.hlo_collectives import read_collectives
from perfd.trace.readers.xplane.xplane_reader import read_space
from tests.support import xplane_hlo as hlo
from tests.support.xplane_hlo import Profile, Run

SHARED = Path(os.environ.get("PERFD_SHARED", "/nowhere"), "traces", "jax-fsdp4")
_STEP_US = 10_000


def groups_of(groups: bytes, opcode: str = "all-reduce", **options: object):
    """What is read of one collective in a module of four devices; None if nothing is."""
    assignment = options.pop("assignment", ((0,), (1,), (2,), (3,)))
    written = hlo.instruction("c.1", opcode, groups, **options)
    found = read_collectives(
        memoryview(hlo.metadata_plane(hlo.module("m", [written], assignment=assignment)))
    )
    return found["m", "c.1"].groups if ("m", "c.1") in found else None


@pytest.mark.parametrize(
    "groups",
    [
        hlo.lists((0, 2), (1, 3)),
        hlo.device_list((0, 2), (1, 3)),
        hlo.iota(2, 2, (2, 2), (1, 0)),
        hlo.mesh((2, 2), [0]),
        hlo.mesh((4,), [(0, 1, 2)]),
        hlo.mesh((2, 2), [1], (0, 2, 1, 3)),
    ],
    ids=["lists", "device list", "permuted range", "mesh", "part of an axis", "mesh of listed devices"],
)
def test_groups_are_read_in_each_form(groups):
    assert groups_of(groups) == ((0, 2), (1, 3))


def test_no_groups_are_all_devices():
    assert groups_of(b"") == ((0, 1, 2, 3),)


def test_numbers_are_those_of_the_devices_that_the_module_runs_on():
    assert groups_of(hlo.lists((0, 1), (2, 3)), assignment=((3,), (1,), (2,), (0,))) == ((1, 3), (0, 2))


@pytest.mark.parametrize(
    ("opcode", "channel", "assignment", "expected"),
    [
        ("all-to-all", 1, ((0,), (1,), (2,), (3,)), ((0, 1), (2, 3))),
        ("all-reduce", 1, ((0,), (1,), (2,), (3,)), ((0, 1, 2, 3), (0, 1, 2, 3))),
        ("all-reduce", 0, ((0, 1, 2, 3),), ((0, 1), (2, 3))),
        # Of replicas within one partition, while devices are replicas and partitions.
        ("all-reduce", 0, ((0, 1), (2, 3)), None),
    ],
    ids=["partitions", "replicas over partitions", "replicas", "both"],
)
def test_numbers_that_are_not_global_are_what_the_operation_makes_of_them(
    opcode, channel, assignment, expected
):
    found = groups_of(
        hlo.lists((0, 1), (2, 3)), opcode, channel=channel, global_ids=False, assignment=assignment
    )
    assert found == expected


@pytest.mark.parametrize(
    "groups",
    [
        hlo.lists((0, 4)),
        hlo.iota(2, 3, (2, 2)),
        hlo.iota(2, 2, (2, 2), (0, 0)),
        hlo.mesh((2, 2), [2]),
        hlo.mesh((4,), [(0, 3, 2)]),
        hlo.mesh((2, 2), [0, 0]),
        hlo.mesh((1 << 40, 1 << 40), [0]),
        hlo.mesh((2,) * 100, [0]),
        hlo.mesh((2, 2), [0], (0, 1)),
    ],
)
def test_groups_that_cannot_be_are_unknown(groups):
    assert groups_of(groups) is None


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    data=st.data(),
)
def test_groups_of_a_mesh_are_what_numpy_makes_of_its_axes(sizes, data):
    axes = data.draw(st.lists(st.sampled_from(range(len(sizes))), unique=True))
    devices = data.draw(st.permutations(range(int(np.prod(sizes)))))
    others = [at for at in range(len(sizes)) if at not in axes]
    grid = np.array(devices).reshape(sizes).transpose([*others, *axes])
    size = int(np.prod([sizes[at] for at in axes]))
    expected = tuple(tuple(sorted(row)) for row in grid.reshape(-1, size).tolist())
    assignment = tuple((one,) for one in range(len(devices)))
    assert groups_of(hlo.mesh(sizes, axes, devices), assignment=assignment) == expected


def test_the_size_is_that_of_the_whole_message():
    parts = hlo.part(4, hlo.shape((8,))) + hlo.part(4, hlo.shape((32,)))
    written = [
        hlo.instruction("r.1", "reduce-scatter", hlo.mesh((4,), [0]), result=hlo.shape((10,), hlo.F32)),
        hlo.instruction("g.1", "all-gather-start", hlo.mesh((4,), [0]), result=hlo.number(2, 13) + parts),
        hlo.instruction("s.1", "all-reduce", result=hlo.number(2, 13) + parts),
        hlo.instruction("u.1", "all-reduce", result=hlo.shape((10,), 99)),
    ]
    found = read_collectives(memoryview(hlo.metadata_plane(hlo.module("m", written))))
    assert {name: (one.size_bytes, one.elements) for (_, name), one in found.items()} == {
        "r.1": (4 * 10 * 4, 40),
        "g.1": (32 * 2, 32),
        "s.1": ((8 + 32) * 2, 40),
        "u.1": (None, None),
    }


def test_a_fusion_and_a_start_are_the_collective_that_they_call():
    inner = [hlo.instruction("all-reduce.2", "all-reduce", hlo.mesh((4,), [0]))]
    outer = [hlo.instruction("all-reduce.2-fusion", "fusion", calls=1)]
    found = read_collectives(memoryview(hlo.metadata_plane(hlo.module("m", inner, outer))))
    assert found["m", "all-reduce.2-fusion"] == found["m", "all-reduce.2"]


def test_what_two_modules_of_a_name_have_differently_is_unknown():
    modules = [
        hlo.module("m", [hlo.instruction("a", "all-reduce", one), hlo.instruction("b", "all-gather")])
        for one in (hlo.lists((0, 1), (2, 3)), hlo.lists((0, 2), (1, 3)))
    ]
    assert read_collectives(memoryview(hlo.metadata_plane(*modules))).keys() == {("m", "b")}


def steps(device: int, slow: int, count: int = 4) -> list[Run]:
    """Each: a product, which takes a device longer, and an all-reduce that ends for all at once."""
    found = []
    for begin in range(0, count * _STEP_US, _STEP_US):
        computed = begin + (8_000 if device == slow else 5_000)
        found += [
            Run(hlo="dot.1", start_us=begin, end_us=computed),
            Run(hlo="all-reduce.1", start_us=computed, end_us=begin + 9_000),
        ]
    return found


def all_reduces(groups: bytes = b"") -> list[bytes]:
    return [hlo.module("jit_step", [hlo.instruction("all-reduce.1", "all-reduce", groups)])]


def analysis_of(tmp_path, *profiles: Profile):
    paths = [tmp_path / f"host-{at}.xplane.pb" for at in range(len(profiles))]
    for path, profile in zip(paths, profiles, strict=True):
        path.write_bytes(profile.space())
    return analyse(read_traces(paths))


def test_the_gpu_for_which_the_others_wait_is_named(tmp_path):
    profile = Profile(devices=[steps(device, slow=2) for device in range(4)], modules=all_reduces())
    analysis = analysis_of(tmp_path, profile)
    finding = diagnose(analysis).findings[0]
    assert (finding.kind, [one.id for one in finding.culprits]) == ("straggler", [2])
    for rank, (row,) in analysis.collectives.by_rank.items():
        assert (row.group, row.group_ranks, row.matched_count) == (
            "ranks 0, 1, 2, 3",
            (0, 1, 2, 3),
            row.count,
        )
        assert row.size_bytes == row.count * 2 << 20
        assert row.wait_s == pytest.approx(0 if rank == 2 else row.count * 3e-3)
    assert analysis.collectives.unmatched == ()


def test_only_the_group_of_a_slow_gpu_waits(tmp_path):
    profile = Profile(
        devices=[steps(device, slow=2) for device in range(4)], modules=all_reduces(hlo.mesh((2, 2), [1]))
    )
    waits = {rank: row.wait_s for rank, (row,) in analysis_of(tmp_path, profile).collectives.by_rank.items()}
    assert [rank for rank, wait in waits.items() if wait > 1e-3] == [3]


def test_runs_at_the_edges_of_a_profile_have_no_partner(tmp_path):
    devices = [steps(device, slow=1) for device in range(4)]
    # The first device's profile begins with its second step, that of the last one ends before the last.
    profile = Profile(devices=[devices[0][2:], *devices[1:3], devices[3][:-2]], modules=all_reduces())
    traces = read_space(memoryview(profile.space()), tmp_path / "host.xplane.pb")
    numbers = [{one.sequence for one in trace.collectives} for trace in traces]
    common = set.intersection(*numbers)
    assert [len(found) for found in numbers] == [3, 4, 4, 3]
    assert len(common) == 2
    ends = [
        [int(trace.operations.end_ns[one.operation]) for one in trace.collectives if one.sequence in common]
        for trace in traces
    ]
    assert len(set(map(tuple, ends))) == 1


def test_devices_of_a_second_host_are_ranks_of_their_own(tmp_path):
    profiles = [
        Profile(
            devices=[steps(device, slow=slow) for device in range(2)],
            modules=[
                hlo.module(
                    "jit_step", [hlo.instruction("all-reduce.1", "all-reduce")], assignment=((0,), (1,))
                )
            ],
        )
        for slow in (0, 1)
    ]
    rows = analysis_of(tmp_path, *profiles).collectives.by_rank
    assert [rows[rank][0].group_ranks for rank in range(4)] == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert [rank for rank, (row,) in rows.items() if (row.wait_s or 0) > 1e-3] == [1, 2]


def test_a_module_over_other_hosts_too_joins_unknown_ranks(tmp_path):
    profile = Profile(devices=[steps(device, slow=1) for device in range(2)], modules=all_reduces())
    (row,) = analysis_of(tmp_path, profile).collectives.by_rank[0]
    assert row.group_ranks == ()


def test_a_permutation_has_its_messages(tmp_path):
    pairs = b"".join(hlo.part(52, hlo.number(1, one) + hlo.number(2, (one + 1) % 4)) for one in range(4))
    permute = hlo.instruction("collective-permute.1", "collective-permute", pairs)
    devices = [
        [Run(hlo="collective-permute.1", start_us=100 + 50 * (device == 3), end_us=200)]
        for device in range(4)
    ]
    profile = Profile(devices=devices, modules=[hlo.module("jit_step", [permute])])
    traces = read_space(memoryview(profile.space()), tmp_path / "host.xplane.pb")
    assert [(one.peer, one.sent) for one in traces[1].collectives[0].messages] == [(2, True), (0, False)]
    (row,) = analysis_of(tmp_path, profile).collectives.by_rank[0]
    assert (row.operation, row.matched_count, row.wait_s) == ("sendrecv", 1, pytest.approx(0))


@pytest.mark.parametrize(
    ("start_ns", "started_ns", "expected"),
    [
        (1_700_000_000_000_000_000, None, 1_700_000_000_000_000_000),
        (48_000_000, 1_700_000_000_000_000_000, 1_700_000_000_048_000_000),
        (48_000_000, None, None),
        (48_000_000, 7, None),
    ],
)
def test_the_wall_time_is_that_of_the_lines_or_of_the_profile(tmp_path, start_ns, started_ns, expected):
    profile = Profile(devices=[steps(0, slow=0)], start_ns=start_ns, started_ns=started_ns)
    (trace,) = read_space(memoryview(profile.space()), tmp_path / "host.xplane.pb")
    assert (trace.epoch_ns, int(trace.operations.start_ns[0])) == (expected, 0)


@pytest.mark.skipif(not SHARED.is_dir(), reason="PERFD_SHARED has no trace of a real job")
def test_all_collectives_of_a_real_job_are_matched():
    analysis = analyse(read_traces([SHARED / "jax.xplane.pb.gz"]))
    assert analysis.collectives.unmatched == ()
    for rows in analysis.collectives.by_rank.values():
        counts = Counter({(row.operation, row.barrier): row.matched_count for row in rows})
        assert counts["alltoall", False] == 872
        assert counts["allgather", False] == 348
        assert all(row.matched_count == row.count and row.size_bytes for row in rows)
    # The file has the time at which the profile began.
    assert {trace.epoch_ns for trace in read_traces([SHARED / "jax.xplane.pb.gz"])} == {
        1_795_334_015_357_518_376 + 48_023_180
    }

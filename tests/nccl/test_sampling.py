"""Times on the GPU for a part of the time only: on all nodes the same, and no number suffers by it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfd_collectors.nccl.collector import SPEC, NcclOptions
from perfd_collectors.nccl.sampling import BusyTime, in_sample

from perfd.collector import Settings
from perfd.errors import Unavailable

SECOND = 10**9


@given(st.floats(0, 1e10), st.integers(1, 20), st.sampled_from([5.0, 7.5, 30.0]))
def test_a_sample_is_taken_in_one_of_so_many_stretches(unix_s: float, one_in: int, sample_s: float) -> None:
    stretches = [in_sample(unix_s + n * sample_s, sample_s, one_in) for n in range(one_in)]

    assert sum(stretches) == 1


def test_between_samples_time_in_kernels_goes_on_with_the_operations() -> None:
    busy = BusyTime()
    busy.add(0, 50, recording=False)
    assert busy.total_s is None
    for second in range(1, 11):
        busy.add(SECOND // 4, 50 + 100 * second, recording=True)
    assert busy.total_s == pytest.approx(2.5)
    for second in range(11, 21):
        busy.add(0, 50 + 100 * second, recording=False)
    assert busy.total_s == pytest.approx(5.0)
    # A job that stands still is in no kernel, and one that changed is measured anew.
    busy.add(0, 50 + 2000, recording=False)
    assert busy.total_s == pytest.approx(5.0)
    busy.add(SECOND, 50 + 2100, recording=True)
    busy.add(0, 50 + 2200, recording=False)
    assert busy.total_s == pytest.approx(7.0)


@pytest.mark.parametrize("wrong", [{"sample_one_in": 0}, {"sample_one_in": 2, "sample_s": 1.0}])
def test_settings_that_cannot_be_are_refused_with_what_to_do(tmp_path: Path, wrong: dict[str, float]) -> None:
    with pytest.raises(Unavailable, match="must be"):
        SPEC.create(NcclOptions(directory=str(tmp_path), **wrong), Settings(node="n", job="j"))

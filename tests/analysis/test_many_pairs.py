"""Receives of many pairs of ranks are found at once as of each pair alone."""

from __future__ import annotations

import numpy as np
import pytest

from perfd.analysis.data.job_data import Floats, Ints
from perfd.analysis.operations.p2p_timing import receiver_durations_s

MS = 1_000_000
SEND_S = 70e-6


def pair(operations: int, *, every: int, apart_ns: int) -> tuple[Floats, Ints]:
    """A sender each 10 ms and a receiver that is there 4 ms earlier; one in `every` receives shows it."""
    sent_ns = 10 * MS * np.arange(1, operations + 1)
    alone = np.arange(operations) % every == 0
    reported_s = np.stack([np.full(operations, SEND_S), np.where(alone, SEND_S + 4e-3, SEND_S)], axis=1)
    return reported_s, np.stack([sent_ns, sent_ns - 4 * MS + apart_ns], axis=1)


@pytest.mark.parametrize("marks", range(7))
def test_pairs_of_different_lengths_do_not_mix(marks: int) -> None:
    pairs = [
        pair(4 * count, every=4, apart_ns=apart_ns)
        for count, apart_ns in ((marks + 1, 0), (marks, MS), (1, 0), (9, 10**12))
        if count
    ]
    longest = max(len(reported_s) for reported_s, _ in pairs)
    durations_s = np.full((len(pairs), longest, 2), np.nan)
    starts_ns = np.full(durations_s.shape, -1)
    for row, (reported_s, began_ns) in enumerate(pairs):
        durations_s[row, : len(reported_s)], starts_ns[row, : len(reported_s)] = reported_s, began_ns

    found = receiver_durations_s(durations_s, starts_ns)

    for row, (reported_s, began_ns) in enumerate(pairs):
        np.testing.assert_array_equal(
            found[row, : len(reported_s)], receiver_durations_s(reported_s, began_ns)
        )
        assert np.isnan(found[row, len(reported_s) :]).all()
    assert found[-1] == pytest.approx(np.full(longest, SEND_S + 4e-3), abs=1e-6)

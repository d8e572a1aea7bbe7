"""Tables of progress lines and phase timers."""

import math

import numpy as np
from aggregator.support import step
from hypothesis import given
from hypothesis import strategies as st

from perfd.aggregator.jobs.step_tables import PhaseRows, Placed, StepRows
from perfd.model import PhaseTime, StepPhases


def rows(*lines, limit=1000):
    table = StepRows(limit)
    for line in lines:
        table.put(line, 0.0)
    return table


@given(st.lists(st.integers(0, 300), max_size=400))
def test_lines_in_any_order_become_one_row_a_step_in_order(numbers):
    table = rows(*(step(number, step_time_s=number + 0.5) for number in numbers)).table()
    assert table.step.tolist() == sorted(set(numbers))
    assert (table.step_time_s == table.step + 0.5).all()


def test_a_line_that_comes_late_is_put_in_its_place():
    table = rows(step(1), step(3))
    assert table.put(step(2), 0.0) is Placed.INSERTED
    assert table.table().step.tolist() == [1, 2, 3]


def test_the_same_step_again_only_fills_what_was_open():
    table = rows(step(1, step_time_s=2.0))
    assert table.put(step(1, step_time_s=9.0, tokens_per_s=5.0), 0.0) is Placed.MERGED
    assert table.table().step_time_s.tolist() == [2.0]
    assert table.table().tokens_per_s.tolist() == [5.0]


def test_what_a_line_does_not_say_is_nan_and_its_time_is_when_it_came():
    table = rows()
    table.put(step(1, step_time_s=None), 123.0)
    made = table.table()
    assert made.time_unix_s.tolist() == [123.0]
    assert all(math.isnan(column[0]) for column in (made.step_time_s, made.loss, made.tokens_per_s))


def test_beyond_the_limit_the_oldest_lines_go():
    table = rows(*(step(number) for number in range(1000)), limit=128).table()
    assert len(table) <= 128
    assert table.step[-1] == 999
    assert (np.diff(table.step) == 1).all()


def test_a_line_older_than_a_full_table_is_left_out():
    table = rows(*(step(number) for number in range(100, 228)), limit=128)
    table.put(step(1), 0.0)
    assert 1 not in table.table().step


def test_a_table_that_was_given_out_does_not_change():
    table = rows(step(1, step_time_s=None))
    before = table.table()
    table.put(step(1, step_time_s=3.0), 0.0)
    table.cut_from(1)
    table.put(step(7), 0.0)
    assert before.step.tolist() == [1]
    assert math.isnan(before.step_time_s[0])


def test_the_main_loss_is_known_by_its_name():
    line = step(1)
    several = type(line)(job="llm", step=1, losses={"aux": 1.0, "lm loss": 2.0, "mtp": 3.0})
    assert rows(several).table().loss.tolist() == [2.0]


def block(number, **phases):
    return StepPhases(job="llm", step=number, phases=phases)


def phases(*blocks, rows=1000, names=10, ranks=100, cells=1000):
    table = PhaseRows(rows=rows, names=names, ranks=ranks, cells=cells)
    refused = sum(table.put(one) for one in blocks)
    return table, refused


def test_timers_by_rank_become_an_array_as_wide_as_the_world():
    table, _ = phases(
        block(1, forward=PhaseTime(by_rank={0: 1.0, 2: 3.0})),
        block(2, forward=PhaseTime(min_s=0.5, max_s=4.0)),
    )
    made = table.table(ranks=4)
    assert made.by_rank_s["forward"].shape == (2, 4)
    assert made.by_rank_s["forward"][0, [0, 2]].tolist() == [1.0, 3.0]
    assert made.min_s["forward"].tolist() == [1.0, 0.5]
    assert made.max_s["forward"].tolist() == [3.0, 4.0]


def test_ranks_that_report_apart_are_joined():
    table, _ = phases(
        block(1, forward=PhaseTime(by_rank={0: 1.0})), block(1, forward=PhaseTime(by_rank={1: 2.0}))
    )
    assert table.table().by_rank_s["forward"].tolist() == [[1.0, 2.0]]
    assert table.table().max_s["forward"].tolist() == [2.0]


def test_names_and_ranks_beyond_the_bounds_are_refused_and_counted():
    table, refused = phases(
        block(1, a=PhaseTime(min_s=1.0), b=PhaseTime(by_rank={1: 1.0, 9: 1.0}), c=PhaseTime(min_s=1.0)),
        names=2,
        ranks=4,
    )
    assert refused == 2
    assert set(table.table().min_s) == {"a", "b"}
    assert table.table().by_rank_s["b"].shape == (1, 2)


def test_beyond_the_bound_of_cells_the_oldest_blocks_go():
    wide = dict.fromkeys(range(98), 1.0)
    table, _ = phases(*(block(number, f=PhaseTime(by_rank=wide)) for number in range(50)), cells=1000)
    assert table.table().step.tolist() == list(range(40, 50))


def test_a_timer_that_never_came_is_not_in_the_table():
    table, _ = phases(block(1, a=PhaseTime(min_s=1.0)), block(5, b=PhaseTime(min_s=1.0)))
    assert set(table.table(first_step=2).min_s) == {"b"}
    table.cut_from(5)
    assert set(table.table().min_s) == {"a"}

from __future__ import annotations

from agent.support import gpu_table, steps
from hypothesis import given
from hypothesis import strategies as st

from perfd.agent.collection.batcher import merge_tables
from perfd.model import Record, SampleTable, Scope


def rows(records: list[Record]) -> list[tuple[object, ...]]:
    """Each value with its time, entity and name, table by table."""
    return [
        (table.scope, table.times_unix_ns[row], entity, name, values[row])
        for table in records
        if isinstance(table, SampleTable)
        for row, entity in enumerate(table.entities)
        for name, values in table.columns.items()
    ]


def test_tables_of_one_kind_become_one_in_the_order_of_their_rows() -> None:
    (merged,) = merge_tables([gpu_table(1.0, 2.0, unix_ns=1), gpu_table(3.0, 4.0, unix_ns=2)])
    assert isinstance(merged, SampleTable)
    assert list(merged.times_unix_ns) == [1, 1, 2, 2]
    assert list(merged.entities) == ["0", "1", "0", "1"]
    assert list(merged.columns["power_w"]) == [1.0, 2.0, 3.0, 4.0]


def test_other_records_keep_their_order_around_the_tables() -> None:
    first, second = steps(2)
    merged = merge_tables([first, gpu_table(1.0), second, gpu_table(2.0)])
    assert merged[0] == first
    assert merged[2] == second
    assert len(merged) == 3


tables = st.builds(
    lambda scope, names, count, unix_ns: SampleTable(
        scope=scope,
        times_unix_ns=[unix_ns] * count,
        entities=[str(row) for row in range(count)],
        columns={name: [float(row) for row in range(count)] for name in names},
    ),
    scope=st.sampled_from([Scope.GPU, Scope.NODE]),
    names=st.lists(st.sampled_from("abc"), unique=True),
    count=st.integers(0, 3),
    unix_ns=st.integers(0, 5),
)


@given(st.lists(tables, max_size=8))
def test_merging_neither_loses_nor_invents_a_value(parts: list[SampleTable]) -> None:
    before, after = list[Record](parts), merge_tables(parts)
    assert sorted(map(repr, rows(after))) == sorted(map(repr, rows(before)))
    kinds = [(table.scope, *table.columns) for table in after if isinstance(table, SampleTable)]
    assert len(set(kinds)) == len(kinds)

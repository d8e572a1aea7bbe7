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


def entity_table(entity: str, value: float, unix_ns: int) -> SampleTable:
    return SampleTable(
        scope=Scope.RANK, times_unix_ns=[unix_ns], entities=[entity], columns={"lag_s": [value]}
    )


def test_tables_of_one_kind_become_one_of_each_sweep_in_the_order_of_their_rows() -> None:
    came = [
        entity_table(entity, unix_ns + rank, unix_ns)
        for unix_ns in (1, 5)
        for rank, entity in enumerate("ab")
    ]
    merged = merge_tables(came)
    assert [list(table.entities) for table in merged if isinstance(table, SampleTable)] == [["a", "b"]] * 2
    assert [row[1:] for row in rows(merged)] == [
        (1, "a", "lag_s", 1.0),
        (1, "b", "lag_s", 2.0),
        (5, "a", "lag_s", 5.0),
        (5, "b", "lag_s", 6.0),
    ]


def test_whole_sweeps_stay_as_they_are() -> None:
    sweeps: list[Record] = [gpu_table(1.0, 2.0, unix_ns=1), gpu_table(3.0, 4.0, unix_ns=2)]
    assert merge_tables(sweeps) == sweeps


def test_other_records_keep_their_order_around_the_tables() -> None:
    first, second = steps(2)
    merged = merge_tables([first, entity_table("a", 1.0, 1), second, entity_table("b", 2.0, 1)])
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
    joined = [table for table in after if isinstance(table, SampleTable)]
    assert all(len(set(table.entities)) == len(table.entities) for table in joined)
    # No two that follow each other could be one.
    kinds: dict[tuple[object, ...], set[str]] = {}
    for table in joined:
        kind = (table.scope, *table.columns)
        assert kind not in kinds or kinds[kind] & set(table.entities)
        kinds[kind] = set(table.entities)

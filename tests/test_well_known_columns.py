"""perfd knows columns, not collectors: who must provide what, and what is refused."""

import ast
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import perfd
from perfd.collector import CollectorSpec, Column, ColumnKind, Options
from perfd.collector_loading import collector_entry_points, load_collector
from perfd.errors import ConfigError
from perfd.model import GpuColumn, NicColumn, RankColumn, Scope, ServerColumn

FAMILIES = (GpuColumn, NicColumn, RankColumn, ServerColumn)
PACKAGE = Path(perfd.__file__).parent


def column(name, scope, kind=ColumnKind.GAUGE):
    return Column(scope=scope, name=name, help="A value.", source="a source", absent="Never.", kind=kind)


def spec(*columns, provides=()):
    return CollectorSpec(
        name="mine", options=Options, create=lambda *_: None, columns=columns, provides=provides
    )


@pytest.fixture
def load(monkeypatch):
    def load(spec):
        point = SimpleNamespace(load=lambda: spec)
        monkeypatch.setattr("perfd.collector_loading.collector_entry_points", lambda: {"mine": point})
        return load_collector("mine")

    return load


@pytest.mark.parametrize("family", FAMILIES)
def test_each_well_known_column_is_provided_by_a_collector_that_ships(family):
    provided = {known for name in collector_entry_points() for known in load_collector(name).provides}
    assert set(family) <= provided


def test_a_collector_with_the_columns_that_it_provides_is_loaded(load):
    one = spec(column("power_w", Scope.GPU), provides=[GpuColumn.POWER])
    assert load(one) is one


def test_columns_that_are_not_provided_may_be_anything(load):
    one = spec(column("power_w", Scope.NODE), column("power_kw", Scope.GPU))
    assert load(one) is one


@pytest.mark.parametrize(
    ("columns", "provides", "sentence"),
    [
        ([], [GpuColumn.POWER], "It provides power_w per gpu, but has no such column."),
        (
            [column("power_w", Scope.NODE)],
            [GpuColumn.POWER],
            "It provides power_w per gpu, but has no such column, only power_w per node.",
        ),
        (
            [column("power_kw", Scope.GPU)],
            [GpuColumn.POWER],
            "It provides power_w per gpu, but has no such column, only power_kw per gpu.",
        ),
        (
            [column("temperature_celsius", Scope.GPU), column("power_kw", Scope.NODE)],
            [GpuColumn.POWER],
            "It provides power_w per gpu, but has no such column.",
        ),
        (
            [column("clocks_limited_sw_power_s", Scope.GPU)],
            [GpuColumn.LIMITED_SW_POWER],
            "Its column clocks_limited_sw_power_s must be a counter, not a gauge.",
        ),
        (
            [column("nccl_busy_s", Scope.RANK, ColumnKind.COUNTER)],
            [RankColumn.NCCL_BUSY],
            "It provides nccl_busy_s without nccl_lost_operations: perfd reads both or none.",
        ),
        (
            [column("speed_bytes_per_s", Scope.NIC)],
            [NicColumn.SPEED],
            "It provides speed_bytes_per_s without link_up: perfd reads both or none.",
        ),
    ],
)
def test_a_collector_whose_columns_perfd_could_not_read_is_refused(load, columns, provides, sentence):
    with pytest.raises(ConfigError) as error:
        load(spec(*columns, provides=provides))
    assert str(error.value) == f"The collector 'mine' cannot be used: {sentence}"


def test_every_problem_of_a_collector_is_reported(load):
    with pytest.raises(ConfigError, match=r"power_w per gpu.* sm_clock_hz per gpu"):
        load(spec(provides=[GpuColumn.POWER, GpuColumn.SM_CLOCK]))


@pytest.mark.parametrize("name", sorted(collector_entry_points()))
def test_a_shipped_collector_that_loses_a_column_is_refused(load, name):
    shipped = load_collector(name)
    for known in shipped.provides:
        without = [one for one in shipped.columns if (one.scope, one.name) != (known.scope, known)]
        assert len(without) == len(shipped.columns) - 1
        with pytest.raises(ConfigError, match=f"It provides {known} "):
            load(replace(shipped, columns=without))


@pytest.mark.parametrize("package", ["aggregator", "analysis", "session", "exporters"])
def test_no_column_of_a_collector_is_a_bare_string_in_the_core(package):
    # Keys of documents that happen to be called like a column of a serving engine are no columns.
    documents = PACKAGE / "analysis" / "serving"
    columns = {
        one.name
        for name in collector_entry_points()
        for one in load_collector(name).columns
        if "_" in one.name and one.scope is not Scope.SERVER
    }
    assert "link_up" in columns
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {node.value}"
        for path in sorted((PACKAGE / package).rglob("*.py"))
        if documents not in path.parents
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in columns
    ]
    assert found == []

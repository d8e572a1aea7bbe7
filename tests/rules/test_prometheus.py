"""The embedded engine beside a real Prometheus and promtool: same series, same answers, same alerts."""

import math
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from rules.expressions import STEP_MS, STEPS, Expressions, Samples, series

from perfd.metrics.series import SeriesKey
from perfd.rules import RuleEngine, SeriesStore, load_rules
from perfd.rules.files.rules_loader import read_rules
from perfd.rules.promql.compiler import compile_query
from perfd.rules.promql.series_keys import EvaluationError, describe
from perfd.rules.rule_model import alert_series
from perfd.rules.series_store import STALE
from perfd.rules.unit_tests.series_notation import parse_series, parse_values
from tests.support.prometheus import PrometheusServer, QueryResult, prometheus_server

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not (shutil.which("promtool") and shutil.which("prometheus")) and not os.environ.get("CI"),
        reason="prometheus and promtool are not installed (Debian package `prometheus`)",
    ),
]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
START_MS = 1_700_000_000_000
EXPRESSIONS_A_SEED = 150


@dataclass(frozen=True)
class Both:
    """The same series in a server and in a store."""

    server: PrometheusServer
    store: SeriesStore
    times: list[int] = field(default_factory=list)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    data = series(START_MS)
    with prometheus_server(tmp_path_factory.mktemp("prometheus")) as server:
        server.write(data)
        yield Both(server, stored(data), sorted({time for samples in data.values() for time, _ in samples}))


def stored(data: dict[SeriesKey, Samples]) -> SeriesStore:
    rows: dict[int, dict[SeriesKey, float]] = {}
    for key, samples in data.items():
        for time_ms, value in samples:
            rows.setdefault(time_ms, {})[key] = STALE if value is None else value
    store = SeriesStore()
    for time_ms in sorted(rows):
        store.append_samples(time_ms / 1000, rows[time_ms])
    return store


def evaluated(store: SeriesStore, text: str, time_ms: int) -> QueryResult:
    try:
        return QueryResult(samples=dict(compile_query(text).evaluate(store, time_ms).samples()))
    except EvaluationError as error:
        return QueryResult(samples={}, error=str(error))


def same(one: QueryResult, other: QueryResult) -> bool:
    return (
        (one.error is None) == (other.error is None)
        and one.samples.keys() == other.samples.keys()
        and all(close(value, other.samples[key]) for key, value in one.samples.items())
    )


def close(one: float, other: float) -> bool:
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize("seed", [4, 5, 7, 11])
def test_random_expressions_have_the_same_results(both: Both, seed: int) -> None:
    chance = random.Random(seed)
    expressions = Expressions(seed)
    answered = 0
    for _ in range(EXPRESSIONS_A_SEED):
        text = expressions.vector(chance.choice([1, 1, 2, 3]))
        for time_ms in times(both, chance):
            expected = both.server.query(text, time_ms / 1000)
            got = evaluated(both.store, text, time_ms)
            assert same(got, expected), f"{text} at {time_ms}: {got} and not {expected}"
            answered += bool(expected.samples)
    # Most of the work must be about values, or this proves nothing.
    assert answered > EXPRESSIONS_A_SEED


def times(both: Both, chance: random.Random) -> list[int]:
    """Any instant, one at a sample, and one at which a sample is just still good or just no longer."""
    sample = chance.choice(both.times)
    return [
        START_MS + chance.randrange(0, STEP_MS * (STEPS + 25)),
        sample,
        sample + chance.choice([300_000, 300_001, 60_000, -60_000]),
    ]


@pytest.mark.parametrize("path", sorted((ROOT / "rules").glob("*.yaml")), ids=lambda path: path.stem)
def test_promtool_accepts_each_file_that_ships(path: Path) -> None:
    found = subprocess.run(
        ["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert f"SUCCESS: {read_rules(path).rules} rules found" in found.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "rules").glob("*.yaml")), ids=lambda path: path.stem)
def test_promtool_passes_the_unit_tests_of_each_file_that_ships(path: Path) -> None:
    promtool_passes(HERE / path.name)


def promtool_passes(path: Path) -> None:
    found = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr


STATE_RULES = {
    "groups": [
        {
            "name": "states",
            "rules": [
                {"record": "busy:mean", "expr": "avg by (node) (busy)"},
                {
                    "alert": "Held",
                    "expr": "busy > 60",
                    "for": "2m",
                    "labels": {"severity": "s{{ $labels.gpu }}", "site": "{{ $labels.node }}-x"},
                    "annotations": {"summary": "{{ $labels.gpu }}: {{ $value | humanize }}"},
                },
                {"alert": "Kept", "expr": "busy:mean > 50", "keep_firing_for": "3m", "for": "30s"},
                {"alert": "Both", "expr": "busy > 70 and on (node) busy:mean > 45", "keep_firing_for": "90s"},
                {"record": "alerts:count", "expr": "count by (alertstate) (ALERTS)"},
                {"alert": "Many", "expr": 'alerts:count{alertstate="firing"} >= 2'},
                {"alert": "Gone", "expr": 'absent(busy{node="a", gpu="0"})', "for": "1m"},
            ],
        }
    ]
}
CHECKED = ("ALERTS", "ALERTS_FOR_STATE", "busy:mean", "alerts:count")


@pytest.mark.parametrize("seed", range(6))
def test_alerts_are_in_the_same_states_at_each_instant(tmp_path: Path, seed: int) -> None:
    """What our engine says of random series is written as a unit test, which promtool must pass."""
    rules = tmp_path / "states.yaml"
    rules.write_text(yaml.safe_dump(STATE_RULES))
    inputs = random_inputs(random.Random(seed))
    checks, annotations = expectations(rules, inputs, steps=40)
    document = {
        "rule_files": ["states.yaml"],
        "evaluation_interval": "30s",
        "tests": [
            {
                "interval": "30s",
                "input_series": [{"series": name, "values": values} for name, values in inputs.items()],
                "promql_expr_test": checks,
                "alert_rule_test": annotations,
            }
        ],
    }
    test = tmp_path / "test.yaml"
    test.write_text(yaml.safe_dump(document))
    promtool_passes(test)
    states = {
        sample["labels"].split('alertstate="')[1].split('"')[0]
        for check in checks
        for sample in check["exp_samples"]
        if "alertstate" in sample["labels"]
    }
    assert states >= {"pending", "firing"}


def random_inputs(chance: random.Random) -> dict[str, str]:
    """Values in quarters: their means are exact, as promtool compares digit by digit."""
    inputs = {}
    for node in "ab":
        for gpu in "01":
            words = []
            value = chance.uniform(20, 90)
            for _ in range(40):
                value = min(100.0, max(0.0, value + chance.gauss(0, 15)))
                words.append(chance.choices([f"{round(value * 4) / 4}", "_", "stale"], [90, 6, 4])[0])
            inputs[f'busy{{node="{node}", gpu="{gpu}"}}'] = " ".join(words)
    return inputs


def expectations(rules: Path, inputs: dict[str, str], steps: int) -> tuple[list[dict], list[dict]]:
    engine = RuleEngine(load_rules([rules]))
    store = SeriesStore()
    values = {parse_series(name): parse_values(text) for name, text in inputs.items()}
    checks, annotations = [], []
    for step in range(steps):
        row = {key: column[step] for key, column in values.items() if column[step] is not None}
        if row:
            store.append_samples(step * 30, row)
        evaluation = engine.evaluate(store, step * 30)
        assert not evaluation.failures
        # What the evaluation says and what it recorded of itself are the same.
        reported = {key for alert in evaluation.alerts for key, _ in alert_series(alert)}
        kept = {
            key
            for name in CHECKED[:2]
            for key, _ in compile_query(name).evaluate(store, step * 30_000).samples()
        }
        assert reported == kept
        for name in CHECKED:
            samples = compile_query(name).evaluate(store, step * 30_000).samples()
            checks.append(
                {
                    "expr": name,
                    "eval_time": f"{step * 30}s",
                    "exp_samples": [{"labels": describe(key), "value": value} for key, value in samples],
                }
            )
        firing = [alert for alert in evaluation.alerts if alert.name == "Held" and alert.state == "firing"]
        annotations.append(
            {
                "eval_time": f"{step * 30}s",
                "alertname": "Held",
                "exp_alerts": [
                    {"exp_labels": dict(alert.labels), "exp_annotations": dict(alert.annotations)}
                    for alert in firing
                ],
            }
        )
    return checks, annotations

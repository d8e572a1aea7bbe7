"""Series with all the troubles that series have, and random expressions over them."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from perfd.metrics.series import SeriesKey

Samples = list[tuple[int, float | None]]
"""Milliseconds and value; None is the end of the series."""

STEP_MS = 15_000
STEPS = 80


def series(start_ms: int, seed: int = 7) -> Mapping[SeriesKey, Samples]:
    """Gauges, counters with resets, gaps, ends, NaN and infinities, at slightly uneven times."""
    chance = random.Random(seed)
    found: dict[SeriesKey, Samples] = {}
    for node in ("a", "b"):
        for gpu in ("0", "1", "2"):
            labels = {"node": node, "gpu": gpu, "job": "train" if gpu != "2" else "other"}
            found[SeriesKey.of("gauge", labels)] = _gauge(start_ms, chance)
            found[SeriesKey.of("events_total", labels)] = _counter(start_ms, chance)
        found[SeriesKey.of("limit", {"node": node})] = _gauge(start_ms, chance)
        found[SeriesKey.of("info", {"node": node, "rack": f"r-{node}", "empty": ""})] = [
            (start_ms + STEP_MS * i, 1.0) for i in range(STEPS)
        ]
    found[SeriesKey.of("steady", {"job": "train"})] = [(start_ms + STEP_MS * i, 3.0) for i in range(STEPS)]
    return found


def _times(start_ms: int, chance: random.Random) -> list[int]:
    offset = chance.randrange(0, 3000)
    return [start_ms + STEP_MS * i + offset + chance.randrange(0, 400) for i in range(STEPS)]


def _gauge(start_ms: int, chance: random.Random) -> Samples:
    samples: Samples = []
    value = chance.uniform(-5, 50)
    for time_ms in _times(start_ms, chance):
        value += chance.gauss(0, 3)
        luck = chance.random()
        if luck < 0.03:
            samples.append((time_ms, None))
        elif luck < 0.05:
            samples.append((time_ms, chance.choice([math.nan, math.inf, -math.inf])))
        elif luck < 0.9:
            samples.append((time_ms, value))
    return samples


def _counter(start_ms: int, chance: random.Random) -> Samples:
    samples: Samples = []
    value = 0.0
    for time_ms in _times(start_ms, chance)[chance.randrange(0, 10) :]:
        value = 0.0 if chance.random() < 0.05 else value + chance.choice([0, 0, 1, 2, 7.5])
        if chance.random() < 0.9:
            samples.append((time_ms, value))
    return samples


class Expressions:
    """Makes well-typed expressions of the subset, reproducibly."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def vector(self, depth: int) -> str:
        """An expression that gives a vector."""
        if depth <= 0:
            return self._selector()
        return self._chance.choice(
            [self._selector, self._range, self._aggregation, self._function, self._binary, self._set]
        )(depth)

    def _pick(self, *choices: str) -> str:
        return self._chance.choice(choices)

    def _selector(self, _: int = 0) -> str:
        return (
            self._pick("gauge", "gauge", "events_total", "limit", "info", "steady", "nothing")
            + self._matchers()
            + self._offset()
        )

    def _matchers(self) -> str:
        return self._pick(
            "",
            "",
            "",
            '{node="a"}',
            '{gpu!="1"}',
            '{gpu=~"0|2"}',
            '{job!~"tr.*"}',
            '{gpu=""}',
            '{rack=~".+"}',
            '{node=~"a|b",gpu=~"[0-1]"}',
            "{}",
            '{gpu=~"^0$"}',
        )

    def _offset(self) -> str:
        return self._pick("", "", "", "", " offset 1m", " offset 7m", " offset -30s")

    def _range(self, _: int = 0) -> str:
        metric = self._pick("gauge", "events_total", "events_total", "limit", "steady", "nothing")
        window = self._pick("14s", "1m", "90s", "5m", "12m")
        selector = f"{metric}{self._matchers()}[{window}]{self._offset()}"
        name = self._pick(
            "rate",
            "rate",
            "increase",
            "increase",
            "irate",
            "delta",
            "idelta",
            "deriv",
            "changes",
            "resets",
            "avg_over_time",
            "sum_over_time",
            "min_over_time",
            "max_over_time",
            "count_over_time",
            "stddev_over_time",
            "stdvar_over_time",
            "last_over_time",
            "present_over_time",
            "absent_over_time",
            "quantile_over_time",
        )
        if name == "quantile_over_time":
            return f"{name}({self._pick('0', '0.5', '0.9', '1', '1.5', '-1', 'NaN')}, {selector})"
        return f"{name}({selector})"

    def _aggregation(self, depth: int) -> str:
        grouping = self._pick(
            "",
            "by (node)",
            "by (gpu, job)",
            "without (gpu)",
            "by ()",
            "without (node, rack)",
            "by (__name__, node)",
        )
        name = self._pick(
            "sum", "avg", "min", "max", "count", "stddev", "stdvar", "group", "topk", "bottomk", "quantile"
        )
        if name in {"topk", "bottomk"}:
            # Of values that are not equal: which of two equals is taken is not defined.
            distinct = self._pick("gauge", "limit offset 1m", "avg_over_time(gauge[3m])")
            return f"{name} {grouping} ({self._pick('1', '2', '0', '100')}, {distinct})"
        inner = self.vector(depth - 1)
        if name == "quantile":
            return f"quantile {grouping} ({self._pick('0.5', '0.99', '2', '-0.1')}, {inner})"
        return f"{name} {grouping} ({inner})"

    def _function(self, depth: int) -> str:
        inner = self.vector(depth - 1)
        simple = self._pick(
            "abs", "ceil", "floor", "round", "sqrt", "ln", "exp", "log2", "log10", "sgn", "sort"
        )
        return self._pick(
            *[f"{simple}({inner})"] * 6,
            f"round({inner}, 0.25)",
            f"clamp({inner}, -3, 20)",
            f"clamp({inner}, 5, 1)",
            f"clamp_min({inner}, 4)",
            f"clamp_max({inner}, 4)",
            f"-{inner}",
            f"-({inner})",
            f"absent({inner})",
            f"(timestamp({inner}) - 1.7e9)",
            f"vector(scalar({inner}))",
            f"sort_desc({inner})",
            f'label_replace({inner}, "gpu", "n${{1}}", "gpu", "([01])")',
            f'label_replace({inner}, "where", "$1-$2", "node", "(.)(.*)")',
            f'label_join({inner}, "all", "/", "node", "gpu", "rack")',
        )

    def _binary(self, depth: int) -> str:
        operator = self._pick(
            "+", "-", "*", "/", "%", "^", "==", "!=", ">", "<", ">=", "<=", "> bool", "== bool", "<= bool"
        )
        number = (
            "2"
            if operator == "^"
            else self._pick(
                "2", "0", "-1.5", "(time() - 1.7e9)", "scalar(steady)", "(3 - 1)", "NaN", "Inf", "1e3", "0x10"
            )
        )
        kind = self._chance.random()
        if kind < 0.25:
            return f"({self.vector(depth - 1)}) {operator} {number}"
        if kind < 0.4:
            return f"{number} {operator} ({self.vector(depth - 1)})"
        matching = self._pick(
            "",
            "",
            "on (node)",
            "on (node, gpu)",
            "ignoring (gpu, job)",
            "ignoring (job)",
            "on ()",
            "on (node) group_left ()",
            "on (node) group_left (rack)",
            "on (node) group_right (rack)",
            "ignoring (gpu, job, rack) group_left ()",
            "on (node, gpu) group_left (job)",
        )
        return f"({self.vector(depth - 1)}) {operator} {matching} ({self.vector(depth - 1)})"

    def _set(self, depth: int) -> str:
        matching = self._pick("", "on (node)", "on (node, gpu)", "ignoring (job, gpu)", "on ()")
        operator = self._pick("and", "or", "unless")
        return f"({self.vector(depth - 1)}) {operator} {matching} ({self.vector(depth - 1)})"

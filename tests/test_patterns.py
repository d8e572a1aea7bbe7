"""Every regular expression of the package takes steps in proportion to its input, counted and not timed."""

import dataclasses
import importlib
import pkgutil
import re
from pathlib import Path

import perfd_collectors
import pytest
from perfd_collectors.training_log.formats.pattern_cost import growth

import perfd

_LINEAR_UP_TO = 2.5
"""A text of twice the length takes twice the steps; four times as many are quadratic."""
_OWN_INPUT = {
    "perfd.rules.templates": "the operator's own rules files, at most as long as a template",
    "perfd.testing.collector_contract": "names that a collector's author tests",
}


def _in(value, depth=0):
    if isinstance(value, re.Pattern):
        yield value
    elif depth < 3 and isinstance(value, (list, tuple, set, frozenset)):
        for one in value:
            yield from _in(one, depth + 1)
    elif depth < 3 and isinstance(value, dict):
        for one in value.values():
            yield from _in(one, depth + 1)
    elif depth < 3 and dataclasses.is_dataclass(value) and not isinstance(value, type):
        for one in dataclasses.fields(value):
            yield from _in(getattr(value, one.name), depth + 1)


def _anywhere(module, name):
    """Whether a pattern is searched for, and not only matched at a given place."""
    source = Path(module.__file__).read_text(encoding="utf-8")
    searched = re.search(rf"\b{name}\.(search|finditer|findall|subn?|split)\b", source)
    return searched is not None or re.search(rf"\b{name}\.(match|fullmatch)\b", source) is None


def _patterns():
    seen = set()
    for package in (perfd_collectors, perfd):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.endswith("__main__") or ".lib" in found.name:
                continue
            module = importlib.import_module(found.name)
            for name, value in vars(module).items():
                for pattern in _in(value) if not name.startswith("__") else ():
                    if pattern not in seen and found.name not in _OWN_INPUT:
                        seen.add(pattern)
                        yield pytest.param(
                            pattern, _anywhere(module, name), id=f"{found.name}.{name}-{len(seen)}"
                        )


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "anywhere"), list(_patterns()))
def test_a_pattern_takes_steps_in_proportion_to_its_input(pattern, anywhere):
    factor, text = growth(pattern, anywhere=anywhere)
    assert factor < _LINEAR_UP_TO, f"{factor:.1f} times the steps for twice of {text}"


@pytest.mark.parametrize(
    "pattern", [r"(?:a+)+b", r"\s*x", r"iteration\s*(=?)\s*(\d+)", r"a.*b.*c", r"(\w+)=x", r"(a|a)*b"]
)
def test_the_count_sees_what_is_quadratic_or_worse(pattern):
    factor, _ = growth(re.compile(pattern), anywhere=True)
    assert factor > _LINEAR_UP_TO


@pytest.mark.parametrize("pattern", [r"a\d{1,15}b", r"\bx[^y]*y", r"(?<!\w)(\w+)=x", r"^a(?:, a)*$"])
def test_the_count_lets_through_what_is_linear(pattern):
    factor, _ = growth(re.compile(pattern), anywhere=True)
    assert factor < _LINEAR_UP_TO

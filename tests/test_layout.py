"""The source tree: one name per module and per public class, and no folder or module too large to read."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from tests.conftest import LONG_S, ONE_AT_A_TIME

ROOT = Path(__file__).parents[1]
TREES = {"perfd": ROOT / "perfd", "perfd_collectors": ROOT / "collectors" / "perfd_collectors"}

# A module name may repeat only where it names the same role in each place.
ROLES = {
    "__init__": "the face of a package",
    "self_metrics": "what the agent, or the aggregator, reports about itself",
    "collector": "the collector of its package",
    "columns": "the columns that the collector of its package fills",
    "replay": "the collector of its package, played from a recording",
    "metrics": "the /metrics page of one serving engine",
    "server_info": "what one serving engine says about itself",
    "log_lines": "the log of one serving engine",
}
MODULES_PER_FOLDER = 16
LINES_PER_MODULE = 400


def modules(tree: Path) -> list[Path]:
    found = [path for path in tree.rglob("*.py") if not path.stem.endswith("_pb2")]
    assert len(found) > 50, f"{tree} is not the source tree"
    return found


@pytest.mark.parametrize("name", TREES)
def test_a_module_name_stands_for_one_thing(name):
    places = defaultdict(list)
    for path in modules(TREES[name]):
        # `perfd.cli.commands` has one module per command, named after it.
        if path.stem not in ROLES and path.parent.name != "commands":
            places[path.stem].append(str(path.relative_to(ROOT)))
    assert {stem: found for stem, found in places.items() if len(found) > 1} == {}


def test_a_public_class_name_stands_for_one_thing():
    places = defaultdict(list)
    for tree in TREES.values():
        for path in modules(tree):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("name", TREES)
def test_a_folder_can_be_scanned_at_a_glance(name):
    counts = defaultdict(int)
    for path in modules(TREES[name]):
        if path.stem != "__init__" and path.parent.name != "commands":
            counts[str(path.parent.relative_to(ROOT))] += 1
    assert {folder: count for folder, count in counts.items() if count > MODULES_PER_FOLDER} == {}


@pytest.mark.parametrize("name", TREES)
def test_a_module_can_be_read_in_one_sitting(name):
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules(TREES[name])}
    long = {str(path.relative_to(ROOT)): count for path, count in lines.items() if count > LINES_PER_MODULE}
    assert long == {}


@pytest.mark.parametrize("name", TREES)
def test_a_package_says_in_its_first_line_what_it_is(name):
    for path in modules(TREES[name]):
        if path.stem == "__init__":
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
            assert docstring and docstring.splitlines()[0].endswith("."), path  # noqa: PT018


UNITS = {"_DAY_S", "_HOUR_S", "_BYTE_BITS"}


def is_number(node):
    """Whether an expression is made of numbers, and of names of such."""
    parts = list(ast.walk(node))
    return any(isinstance(part, ast.Constant) for part in parts) and all(
        isinstance(part, (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Tuple, ast.Name, ast.Load))
        or (isinstance(part, ast.Constant) and type(part.value) in {int, float})
        for part in parts
    )


@pytest.mark.parametrize("name", TREES)
def test_a_number_says_what_it_is(name):
    """In a docstring below it or below the numbers that follow at once, or in a comment above."""
    silent = []
    for path in modules(TREES[name]):
        lines = path.read_text(encoding="utf-8").splitlines()
        said, below = False, 0
        for node in reversed(ast.parse("\n".join(lines)).body):
            if isinstance(node, ast.Assign) and is_number(node.value):
                said = said and node.end_lineno + 1 == below
                commented = "#" in lines[node.lineno - 1] or lines[node.lineno - 2].startswith("#")
                constant = ast.unparse(node.targets[0])
                if not (said or commented or constant in UNITS):
                    silent.append(f"{path.relative_to(ROOT)}:{node.lineno} {constant}")
            else:
                said = isinstance(node, ast.Expr)
            below = node.lineno
    assert silent == [], "\n".join(silent)


def test_every_file_that_is_known_to_take_long_exists():
    assert {name for name in LONG_S if not (ROOT / name).is_file()} == set(ONE_AT_A_TIME)

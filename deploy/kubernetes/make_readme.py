"""Writes the chart's README: its values, their defaults and the comments above them in values.yaml.

python deploy/kubernetes/make_readme.py [--check]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

CHART = Path(__file__).parent / "perfd"
README = CHART / "README.md"
_HEAD = """# perfd

{description} Chart {version}, perfd {app}, Kubernetes `{kubernetes}`.

    helm install perfd deploy/kubernetes/perfd --namespace monitoring --create-namespace

[docs/deploy-kubernetes.md](../../../docs/deploy-kubernetes.md) explains how to use it.

## Values

| key | type | default | description |
|---|---|---|---|
"""


def rows(text: str) -> Iterator[tuple[str, str, str, str]]:
    """Key, type, default and description of each value of a values file, in its order."""
    node = yaml.compose(text, yaml.SafeLoader)
    if isinstance(node, yaml.MappingNode):
        yield from _rows(node, text.splitlines(), "")


def _rows(node: yaml.MappingNode, lines: Sequence[str], path: str) -> Iterator[tuple[str, str, str, str]]:
    for key, value in node.value:
        name = f"{path}.{key.value}".lstrip(".")
        described = _comment_above(lines, key.start_mark.line)
        if isinstance(value, yaml.MappingNode) and value.value and not value.flow_style:
            if described:
                yield name, "object", "", described
            yield from _rows(value, lines, name)
            continue
        default = yaml.SafeLoader("").construct_document(value)
        yield name, _type_of(default), f"`{json.dumps(default)}`", described


def _comment_above(lines: Sequence[str], line: int) -> str:
    """The comment that ends right above a line, as one paragraph."""
    first = line
    while first > 0 and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    # The comment at the top of the file is about the file.
    if first == 0:
        return ""
    return " ".join(text.strip().lstrip("#").strip() for text in lines[first:line])


def _type_of(default: object) -> str:
    names = {bool: "bool", int: "int", str: "string", list: "list", dict: "object", type(None): "null"}
    return names[type(default)]


def readme() -> str:
    """The whole text."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    head = _HEAD.format(
        version=chart["version"],
        app=chart["appVersion"],
        description=chart["description"],
        kubernetes=chart["kubeVersion"],
    )
    values = (CHART / "values.yaml").read_text(encoding="utf-8")
    cells = ([cell.replace("|", "\\|") for cell in row] for row in rows(values))
    return head + "".join(f"| {' | '.join(row)} |\n" for row in cells)


def main(arguments: Sequence[str]) -> int:
    """Write the file, or report that it would change."""
    text = readme()
    if list(arguments) == ["--check"]:
        stale = not README.exists() or README.read_text(encoding="utf-8") != text
        if stale:
            print(f"{README.name} is stale: run {Path(__file__).name}.")  # noqa: T201  (a script)
        return int(stale)
    README.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

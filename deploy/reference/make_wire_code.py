"""Writes the code generated from the .proto files.

    python deploy/reference/make_wire_code.py [--check]

`--check` writes nothing and fails when a file is not what it would be.

Needs `grpcio-tools` in the pinned version of the development dependencies: others generate other code.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from perfd.errors import PerfdError

_ROOT = Path(__file__).resolve().parents[2]
_OUTPUTS = {"python": "_pb2.py", "pyi": "_pb2.pyi"}
"""What protoc writes, by the name of its plugin."""
_PROTOS = (
    Path("perfd/wire/v1/telemetry.proto"),
    Path("perfd/trace/readers/xplane/xplane.proto"),
    Path("perfd/capture/jax/profiler_service.proto"),
    Path("collectors/perfd_collectors/pod_resources/pod_resources.proto"),
    Path("collectors/perfd_collectors/training_log/metric_files/metric_files.proto"),
)
_GENERATED = tuple(proto.with_name(proto.stem + ending) for proto in _PROTOS for ending in _OUTPUTS.values())


def generate(target: Path) -> None:
    """Write the generated modules below `target`; raises `PerfdError` when that is not possible."""
    try:
        from grpc_tools import protoc  # noqa: PLC0415  (a development dependency, absent on a node)
    except ImportError as error:
        raise PerfdError("grpcio-tools is missing: install the development dependencies.") from error
    outputs = [f"--{kind}_out={target}" for kind in _OUTPUTS]
    for proto in _PROTOS:
        # The root is the import path, so that the generated import is `perfd.wire.v1`.
        status = protoc.main(["protoc", f"-I{_ROOT}", *outputs, str(_ROOT / proto)])
        if status != 0:
            raise PerfdError(f"protoc failed on {proto}; see its message above.")


def drifted() -> list[Path]:
    """Checked-in modules that differ from the generated ones, relative to the root."""
    with tempfile.TemporaryDirectory() as directory:
        generate(Path(directory))
        return [
            path
            for path in _GENERATED
            if not (_ROOT / path).exists()
            or (_ROOT / path).read_bytes() != (Path(directory) / path).read_bytes()
        ]


def main(arguments: Sequence[str]) -> int:
    """Regenerate, or with `--check` return 1 and list outdated modules."""
    if list(arguments) not in ([], ["--check"]):
        sys.stderr.write("usage: make_wire_code.py [--check]\n")
        return 2
    try:
        if not arguments:
            generate(_ROOT)
            return 0
        stale = drifted()
    except PerfdError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for path in stale:
        sys.stderr.write(f"{path} does not match its .proto file; run `make proto`.\n")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

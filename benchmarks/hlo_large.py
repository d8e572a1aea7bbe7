"""Time and memory to read HLO of a million instructions, and a profile of JAX with as many operations.

    python -m benchmarks.hlo_large [--instructions 1000000] [--json]

The module is one of products, sums, all-reduces and copies in a row, as text for `perfd roofline --hlo`. The
profile has four GPUs that run operations of such a module, and the module itself beside them, as XLA's
profiler writes it, for `perfd analyze`. Each is read and reported by a process of its own, whose peak of
resident memory the kernel reports.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from perfd.formatting import data_size
from tests.support import xplane_hlo as hlo

SCHEMA = "perfd.bench.hlo_large/1"
_CHILD = """
import re, sys, time
from pathlib import Path
from perfd.cli import main
code = main(sys.argv[1:])
peak = re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())
print("\\nused", int(peak[1]) * 1024, time.process_time())
sys.exit(code)
"""
_DEVICES = 4
_KINDS = ("dot", "add", "all-reduce", "copy")
_OPERATION_US = 20.0


def measure(instructions: int) -> dict[str, Any]:
    """Seconds of a process and its peak memory, for the text and for the profile."""
    result: dict[str, Any] = {"schema": SCHEMA, "instructions": instructions}
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "module.hlo.txt")
        with text.open("w", encoding="utf-8") as file:
            file.writelines(_text(instructions))
        result["hlo"] = _run(text, ["roofline", "--hlo", str(text), "--gpu", "H100", "--json"])
        text.unlink()
        profile = Path(folder, "host.xplane.pb")
        profile.write_bytes(_profile(instructions))
        result["xplane"] = _run(profile, ["analyze", str(profile), "--json"])
    return result


def _run(path: Path, arguments: Sequence[str]) -> dict[str, Any]:
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, *arguments], capture_output=True, text=True, check=True
    )
    seconds = time.perf_counter() - begin
    _, peak, cpu = done.stdout.splitlines()[-1].split()
    return {
        "size_bytes": path.stat().st_size,
        "seconds": seconds,
        "cpu_seconds": float(cpu),
        "peak_bytes": int(peak),
    }


def _text(instructions: int) -> Iterator[str]:
    """Lines of a module of one computation."""
    yield "HloModule jit_step, is_scheduled=true, num_partitions=4\n\n"
    yield "%sum (a: bf16[], b: bf16[]) -> bf16[] {\n  %a = bf16[] parameter(0)\n  %b = bf16[] parameter(1)\n"
    yield "  ROOT %s = bf16[] add(%a, %b)\n}\n\n"
    yield "ENTRY %main (p: bf16[512,512]) -> bf16[512,512] {\n  %p = bf16[512,512]{1,0} parameter(0)\n"
    last = "p"
    for number in range(instructions - 1):
        kind = _KINDS[number % len(_KINDS)]
        operands = f"%{last}, %p" if kind in {"dot", "add"} else f"%{last}"
        more = {
            "dot": ", lhs_contracting_dims={1}, rhs_contracting_dims={0}",
            "all-reduce": ", channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%sum",
        }.get(kind, "")
        root = "ROOT " if number == instructions - 2 else ""
        last = f"{kind}.{number}"
        yield (
            f"  {root}%{last} = bf16[512,512]{{1,0}} {kind}({operands}){more},"
            f' metadata={{op_name="jit(step)/layer_{number // 8}/{kind}"}}\n'
        )
    yield "}\n"


def _profile(instructions: int) -> bytes:
    names = [f"{_KINDS[number % len(_KINDS)]}.{number}" for number in range(instructions)]
    module = hlo.module(
        "jit_step", [hlo.instruction(name, name.partition(".")[0], hlo.mesh((4,), [0])) for name in names]
    )
    each = instructions // _DEVICES
    runs = [
        hlo.Run(hlo=name, start_us=_OPERATION_US * at, end_us=_OPERATION_US * (at + 0.9))
        for at, name in enumerate(names[:each])
    ]
    return hlo.Profile(devices=[runs] * _DEVICES, modules=[module]).space()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what each took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--instructions", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    result = measure(args.instructions)
    if args.json:
        print(json.dumps(result))
        return 0
    for kind in ("hlo", "xplane"):
        one = result[kind]
        sizes = f"{data_size(one['size_bytes'])}, {data_size(one['peak_bytes'])} of memory"
        print(
            f"{kind:7} {args.instructions:,} instructions, {sizes}: {one['seconds']:.1f} s,"
            f" {one['cpu_seconds']:.1f} s of CPU"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""What `perfd roofline --hlo FILE` shows of a whole module."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from perfd.analysis.flops.gpu_peak_lookup import GpuPeak
from perfd.errors import PerfdError
from perfd.formatting import UNKNOWN, data_size, duration, flops, percent
from perfd.trace.roofline import HloCost, HloModule, hlo_costs, read_module

_ROWS = 20
_MAX_BYTES = 1 << 30


class ModuleRoofline:
    """A module's operations under the roofline of one GPU."""

    def __init__(self, module: HloModule, gpu: GpuPeak, time_s: float | None) -> None:
        if gpu.memory_bytes_per_s is None:
            raise PerfdError(
                f"The table of peaks has no memory bandwidth of {gpu.name}; add a row with --peaks."
            )
        self._module, self._gpu, self._time_s = module, gpu, time_s
        self._bandwidth = gpu.memory_bytes_per_s
        self._link = gpu.nvlink_bytes_per_s / 2 if gpu.nvlink_bytes_per_s else None
        rows = [(cost, self._minimum_s(cost)) for cost in hlo_costs(module)]
        self._rows = sorted(rows, key=lambda row: -row[1])
        self._compute_s = sum(least for cost, least in rows if not cost.message_bytes)
        self._communication_s = sum(least for cost, least in rows if cost.message_bytes)

    def document(self) -> dict[str, Any]:
        """For --json."""
        return {
            "module": {
                "name": self._module.name,
                "gpu": self._gpu.name,
                "compute_minimum_s": self._compute_s,
                "communication_minimum_s": self._communication_s,
                "flops": sum(cost.flops * cost.count for cost, _ in self._rows),
                "traffic_bytes": sum(cost.traffic_bytes * cost.count for cost, _ in self._rows),
                "time_s": self._time_s,
                "attainable_ratio": self._ratio(),
                "operations": [asdict(cost) | {"minimum_s": least} for cost, least in self._rows],
            }
        }

    def shown(self) -> Sequence[Table | Text]:
        """For the terminal: the sum, then what takes longest."""
        hidden, exposed = max(self._compute_s, self._communication_s), self._compute_s + self._communication_s
        text = Text(
            f"{self._module.name} on {self._gpu.name}: at least {duration(hidden)} per run", style="bold"
        )
        text.append(
            f"\nComputing takes at least {duration(self._compute_s)},"
            f" communication {duration(self._communication_s)}:"
            f" {duration(exposed)} if nothing overlaps.",
            style="not bold default",
        )
        if self._time_s is not None:
            text.append(
                f"\nIt took {duration(self._time_s)}: {percent(self._ratio())} of what is attainable with all"
                " communication hidden.",
                style="not bold default",
            )
        layouts = [cost for cost, _ in self._rows if cost.note == "changes the layout"]
        if layouts:
            moved = sum(cost.traffic_bytes * cost.count for cost in layouts)
            text.append(
                f"\n{len(layouts)} copies only change a layout and move {data_size(moved)}: let XLA"
                " choose layouts (`Layout.AUTO` of jax.experimental.layout), or store arrays in that layout.",
                style="not bold default",
            )
        return (text, self._table())

    def _ratio(self) -> float | None:
        hidden = max(self._compute_s, self._communication_s)
        return hidden / self._time_s if self._time_s else None

    def _minimum_s(self, cost: HloCost) -> float:
        # Without a peak of that precision the bytes are the bound.
        peak = self._gpu.flops.get(cost.precision, math.inf)
        return cost.minimum_s(peak, self._bandwidth, self._link)

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for at, name in enumerate(("operation", "kind", "runs", "work", "bytes", "least", "limit", "note")):
            table.add_column(name, justify="left" if at in {0, 1, 6, 7} else "right")
        for cost, least in self._rows[:_ROWS]:
            table.add_row(
                Text(cost.name),
                Text(cost.operation[:24]),
                str(cost.count),
                flops(cost.flops) if cost.flops else UNKNOWN,
                data_size(cost.message_bytes or cost.traffic_bytes),
                duration(least),
                self._side(cost),
                Text(cost.note),
            )
        return table

    def _side(self, cost: HloCost) -> str:
        if cost.message_bytes:
            return f"links, {cost.group_size} devices" if cost.group_size else "links"
        peak = self._gpu.flops.get(cost.precision, math.inf)
        return cost.precision if cost.flops / peak > cost.traffic_bytes / self._bandwidth else "memory"


def module_file(text: str) -> HloModule | None:
    """The module of a file, packed or not; None where the text is not the name of one.

    Raises `PerfdError` if the file cannot be read or is not a module.
    """
    path = Path(text) if text.strip() and "\n" not in text and "=" not in text else None
    if path is None:
        return None
    try:
        data = path.read_bytes()
        if data.startswith(b"\x1f\x8b"):
            with gzip.open(path) as file:
                data = file.read(_MAX_BYTES)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise PerfdError(f"{text}: cannot be read: {error}.") from error
    return read_module(data.decode("utf-8", errors="replace"))

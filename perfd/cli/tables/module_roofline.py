"""What `perfd roofline --hlo FILE` shows of a whole module."""

from __future__ import annotations

import gzip
import io
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rich.text import Text

from perfd.analysis.flops.gpu_peak_lookup import GpuPeak
from perfd.cli.terminal_table import TerminalTable
from perfd.errors import PerfdError, reason_of
from perfd.formatting import UNKNOWN, data_size, duration, flops, percent
from perfd.report.render.operation_graph_svg import GraphNode, graph_svg
from perfd.sandbox.named_files import read_bounded, too_large
from perfd.trace.roofline import (
    LATENCY_RATIO,
    LAYOUT_CHANGE,
    HloCost,
    HloModule,
    hlo_costs,
    layout_copies,
    neighbors,
    read_fragment,
    read_module,
    shape_words,
    sharded_products,
)
from perfd.trace.roofline.hlo_measured import MeasuredOperations

_ROWS = 20
"""The longest operations; the JSON has all."""
_MOST_SENTENCES = 5
"""Most sentences of one kind, the longest operations first."""
_OF_COST = tuple(one.name for one in fields(HloCost))
_VECTOR = "fp32"
"""The precision of work outside the matrix units."""
_TEXT_COLUMNS = frozenset({"operation", "kind", "limit", "note"})
_MAX_BYTES = 1 << 30
"""Of a file, and of what it unpacks to: it is all read into memory."""
_EXPECTED = "an HLO dump"


class ModuleRoofline:
    """A module's operations under the roofline of one GPU."""

    def __init__(
        self,
        module: HloModule,
        gpu: GpuPeak,
        time_s: float | None,
        measured: MeasuredOperations | None = None,
    ) -> None:
        if gpu.memory_bytes_per_s is None:
            raise PerfdError(
                f"The table of peaks has no memory bandwidth of {gpu.name}; add a row with --peaks."
            )
        self._module, self._gpu = module, gpu
        self._measured = measured or MeasuredOperations()
        self._time_s = time_s or self._measured.step_s
        self._bandwidth = gpu.memory_bytes_per_s
        self._link = gpu.nvlink_bytes_per_s / 2 if gpu.nvlink_bytes_per_s else None
        rows = [(cost, self._minimum_s(cost)) for cost in hlo_costs(module)]
        self._rows = sorted(rows, key=lambda row: -row[1])
        self._compute_s = sum(least for cost, least in rows if not cost.message_bytes)
        self._communication_s = sum(least for cost, least in rows if cost.message_bytes)
        self._copies = layout_copies(module)
        self._sharded = sharded_products(module, {cost.name: cost.group_size for cost, _ in rows})

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
                "other_modules_s": dict(self._measured.others_s),
                "attainable_ratio": self._ratio(),
                "matrix_unit_ratio": self._matrix_ratio(),
                "layout_copies": [asdict(copy) for copy in self._copies],
                "sharded_products": [asdict(product) for product in self._sharded],
                "operations": [
                    {name: getattr(cost, name) for name in _OF_COST}
                    | {"minimum_s": least, "measured_s": self._measured.times_s.get(cost.name)}
                    for cost, least in self._rows
                ],
            }
        }

    def shown(self) -> Sequence[TerminalTable | Text]:
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
        if others := self._measured.others_s:
            longest = sorted(others, key=lambda name: -others[name])[:_MOST_SENTENCES]
            said = ", ".join(f"{name} {duration(others[name])}" for name in longest)
            text.append(f"\nOther modules of the step: {said}.", style="not bold default")
        for sentence in self._findings():
            text.append(f"\n{sentence}", style="not bold default")
        return (text, self._table())

    def _findings(self) -> Iterator[str]:
        matrix = self._matrix_ratio()
        if matrix is not None:
            yield f"The matrix units (MXU, tensor cores) reach {percent(matrix)} of their peak in that time."
        layouts = [(cost, least) for cost, least in self._rows if cost.note == LAYOUT_CHANGE]
        if layouts:
            moved = sum(cost.traffic_bytes * cost.count for cost, _ in layouts)
            share = sum(least for _, least in layouts) / (self._compute_s or 1.0)
            yield (
                f"{len(layouts)} copies only change a layout and move {data_size(moved)}, {percent(share)} of"
                " the least compute time: let XLA choose layouts (`in_shardings=` with `Layout.AUTO` of"
                " jax.experimental.layout), or store arrays in the layout that their readers need."
            )
            for copy in self._copies[:_MOST_SENTENCES]:
                readers = ", ".join(copy.readers[:2]) or "the result"
                change = f"{copy.before} of {copy.source} to {copy.after} for {readers}"
                yield f"  {copy.name}: {copy.shape} from {change}"
        for product in self._sharded[:_MOST_SENTENCES]:
            yield product.words
        ratio = self._ratio()
        if ratio is not None and ratio < LATENCY_RATIO:
            shown = duration(self._communication_s)
            yield (
                f"Far from attainable: besides overlap ({shown} of communication), look for unneeded sums"
                " over devices (jax.lax.with_sharding_constraint overrides XLA's choice), layout copies, and"
                " operations that take far longer than their least time."
            )

    def _ratio(self) -> float | None:
        hidden = max(self._compute_s, self._communication_s)
        return hidden / self._time_s if self._time_s else None

    def _matrix_ratio(self) -> float | None:
        """Arithmetic of matrix products over the peak, in the measured time."""
        if not self._time_s:
            return None
        busy = sum(
            cost.count * cost.flops / peak
            for cost, _ in self._rows
            if cost.precision != _VECTOR and (peak := self._gpu.peak_flops_per_s(cost.precision))
        )
        return busy / self._time_s

    def _minimum_s(self, cost: HloCost) -> float:
        # Without a peak of that precision the bytes are the bound.
        peak = self._gpu.peak_flops_per_s(cost.precision) or math.inf
        return cost.minimum_s(peak, self._bandwidth, self._link)

    def _table(self) -> TerminalTable:
        table = TerminalTable()
        measured = self._measured.times_s
        columns = [
            "operation",
            "kind",
            "runs",
            "work",
            "bytes",
            "least",
            *(["took"] if measured else []),
            "limit",
            "note",
        ]
        for name in columns:
            table.add_column(name, justify="left" if name in _TEXT_COLUMNS else "right")
        for cost, least in sorted(self._rows, key=lambda row: -measured.get(row[0].name, row[1]))[:_ROWS]:
            table.add_row(
                Text(cost.name),
                Text(cost.operation[:24]),
                str(cost.count),
                flops(cost.flops) if cost.flops else UNKNOWN,
                data_size(cost.message_bytes or cost.traffic_bytes),
                duration(least),
                *([duration(measured.get(cost.name))] if measured else []),
                self._side(cost),
                Text(cost.note),
            )
        return table

    def _side(self, cost: HloCost) -> str:
        if cost.message_bytes:
            return f"links, {cost.group_size} devices" if cost.group_size else "links"
        peak = self._gpu.peak_flops_per_s(cost.precision) or math.inf
        return cost.precision if cost.flops / peak > cost.traffic_bytes / self._bandwidth else "memory"


def module_file(text: str) -> tuple[HloModule, MeasuredOperations] | None:
    """The module of a file, packed or not, or of lines of HLO, with the times that these have.

    None where the text is one line and not the name of a file. Raises `PerfdError` if the file cannot be read
    or has no HLO.
    """
    if "\n" not in text.strip():
        if "=" in text or not text.strip():
            return _collective(text)
        text = _read(Path(text))
    if text.lstrip().startswith("HloModule"):
        return read_module(text), MeasuredOperations()
    module, times_s = read_fragment(text)
    return module, MeasuredOperations(times_s=times_s, step_s=sum(times_s.values()) or None)


def _collective(line: str) -> tuple[HloModule, MeasuredOperations] | None:
    """One line that communicates, whose limit is the link; other lines go under the roofline themselves."""
    try:
        module, _ = read_fragment(line)
    except PerfdError:
        return None
    sends = any(cost.message_bytes for cost in hlo_costs(module))
    return (module, MeasuredOperations()) if sends else None


def _read(path: Path) -> str:
    try:
        data = read_bounded(path, _MAX_BYTES, _EXPECTED)
        if data.startswith(b"\x1f\x8b"):
            with gzip.open(io.BytesIO(data)) as packed:
                data = packed.read(_MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise PerfdError(f"{path}: cannot be read: {reason_of(error)}.") from error
    if len(data) > _MAX_BYTES:
        raise too_large(path, _MAX_BYTES, _EXPECTED)
    return data.decode("utf-8", errors="replace")


def module_graph(module: HloModule, name: str) -> str:
    """What an operation reads and what reads it, as SVG; raises `PerfdError` if it is not there."""
    found = next((one for one in module.computations.values() if name.lstrip("%") in one), None)
    if found is None:
        raise PerfdError(f"The module has no operation {name}: --json lists them.")
    levels = neighbors(found, name.lstrip("%"))
    nodes = [
        GraphNode(
            name=one,
            label=f"{one} ({found[one].operation})",
            detail=", ".join(shape_words(shape) for shape in found[one].outputs),
            level=level,
            chosen=level == 0,
        )
        for one, level in levels.items()
    ]
    edges = [
        (source, one)
        for one in levels
        for source, _ in found[one].operands
        if source in levels and source != one
    ]
    return graph_svg(nodes, edges, f"{name} in {module.name}")

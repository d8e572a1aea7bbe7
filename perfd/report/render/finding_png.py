"""A small PNG for notifications that shows a job's step and the cost of its findings, with a caption.

The picture has no text: `FindingPicture.caption` describes it, also for people who cannot see it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfd.analysis.findings import limits_job
from perfd.formatting import duration, percent

if TYPE_CHECKING:  # Reports of traces do not wait for the live analysis to load.
    from perfd.analysis.diagnosis import JobSummary

_Image = NDArray[np.uint8]
_Color = tuple[int, int, int]

_WIDTH, _BAR, _COST, _RANKS, _GAP = 600, 40, 12, 60, 8
"""Pixels."""
_MOST_COSTS = 4
"""Bars of findings that fit into the picture."""
_MOST_RANKS = 64
"""Bars of ranks that can still be distinguished in the picture."""
# Colors of the page's light theme (perfd/web/static/style.css).
_COLORS: dict[str, _Color] = {
    "forward": (0x2F, 0x6F, 0xDE),
    "backward": (0x11, 0x7A, 0x72),
    "communication": (0xA8, 0x5A, 0x00),
    "optimizer": (0x7A, 0x4F, 0xD0),
    "outside timers": (0x6A, 0x71, 0x7C),
}
_REST: _Color = (0xA9, 0xB0, 0xBA)
_BAD: _Color = (0xB3, 0x26, 0x1E)
_PAPER: _Color = (0xFF, 0xFF, 0xFF)


@dataclass(frozen=True, slots=True)
class FindingPicture:
    """A PNG and what it shows."""

    png: bytes
    caption: str


def finding_picture(job: JobSummary) -> FindingPicture | None:
    """A step, the cost of findings in red, and tensor activity by rank; None if nothing is known."""
    parts = _parts(job)
    costs = [
        found
        for found in (job.bottleneck, *job.others)
        if limits_job(found.kind) and found.gain_ratio and np.isfinite(found.gain_ratio)
    ][:_MOST_COSTS]
    if not parts and not costs:
        return None
    rows, sentences = [], []
    if parts:
        rows.append(_bar([(_COLORS.get(name, _REST), ratio) for name, ratio in parts], _BAR))
        shares = ", ".join(f"{name} {percent(ratio)}" for name, ratio in parts)
        sentences.append(f"A step of {duration(job.step_time_s.median)}, from the left: {shares}.")
    for found in costs:
        rows.append(_bar([(_BAD, min(found.gain_ratio or 0.0, 1.0))], _COST))
        names = f" ({found.culprit_names})" if found.culprits else ""
        sentences.append(f"Red: {found.kind.short_name}{names} costs {percent(found.gain_ratio)} of a step.")
    active = {gpu.rank: gpu.tensor_active_ratio for gpu in job.gpus if gpu.rank is not None}
    known = {
        rank: value for rank, value in sorted(active.items()) if value is not None and np.isfinite(value)
    }
    if 1 < len(known) <= _MOST_RANKS:
        blamed = {who.id for found in costs for who in found.culprits if who.kind == "rank"}
        rows.append(_columns([(_BAD if rank in blamed else _REST, value) for rank, value in known.items()]))
        sentences.append(
            f"Columns: activity of the tensor cores of ranks {min(known)} to {max(known)},"
            f" the highest {percent(max(known.values()))}."
        )
    return FindingPicture(png=_png(_stacked(rows)), caption=" ".join(sentences))


def _parts(job: JobSummary) -> list[tuple[str, float]]:
    """Parts of a step with their shares, as the page draws them."""
    breakdown = job.breakdown
    exposed = job.communication.exposed_ratio
    measured = (
        ("forward", breakdown.forward_ratio),
        ("backward", breakdown.backward_ratio),
        ("communication", job.communication.share_ratio if exposed is None else exposed),
        ("optimizer", job.optimizer.share_ratio),
        ("outside timers", breakdown.unattributed_ratio),
    )
    parts = [
        (name, ratio) for name, ratio in measured if ratio is not None and np.isfinite(ratio) and ratio > 0
    ]
    rest = 1 - sum(ratio for _, ratio in parts)
    return [*parts, ("other", rest)] if parts and rest > 0.02 else parts


def _bar(parts: Sequence[tuple[_Color, float]], height: int) -> _Image:
    image = _paper(height)
    scale = max(1.0, sum(ratio for _, ratio in parts))
    begin = 0.0
    for color, ratio in parts:
        end = begin + ratio / scale * _WIDTH
        image[:, round(begin) : max(round(end) - 1, round(begin) + 1)] = color
        begin = end
    return image


def _columns(values: Sequence[tuple[_Color, float]]) -> _Image:
    image = _paper(_RANKS)
    highest = max((value for _, value in values), default=0.0) or 1.0
    width = _WIDTH / len(values)
    for at, (color, value) in enumerate(values):
        top = _RANKS - max(1, round(min(max(value / highest, 0.0), 1.0) * _RANKS))
        image[top:, round(at * width) : max(round((at + 1) * width) - 2, round(at * width) + 1)] = color
    return image


def _stacked(rows: Sequence[_Image]) -> _Image:
    gap = _paper(_GAP)
    return np.concatenate([part for row in rows for part in (gap, row)] + [gap])


def _paper(height: int) -> _Image:
    return np.full((height, _WIDTH, 3), _PAPER, dtype=np.uint8)


def _png(image: _Image) -> bytes:
    """PNG (ISO/IEC 15948) of (height, width, RGB): no filter, one data chunk."""
    height, width, _ = image.shape
    lines = np.zeros((height, 1 + 3 * width), dtype=np.uint8)
    lines[:, 1:] = image.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )

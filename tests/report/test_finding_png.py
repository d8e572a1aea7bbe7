"""The picture in a notification: its decoded pixels and its caption."""

import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from exporters.rounds import job_round

from perfd.analysis.diagnosis.job_summary import GpuSummary
from perfd.analysis.findings import Culprit, Finding, Kind
from perfd.analysis.steps import StepBreakdown
from perfd.report.render.finding_png import finding_picture

BLUE, RED = (0x2F, 0x6F, 0xDE), (0xB3, 0x26, 0x1E)


def job(**changes):
    found = Finding(
        kind=Kind.STRAGGLER, confidence=0.9, gain_ratio=0.25, culprits=[Culprit(kind="rank", id=1)]
    )
    known = {
        "findings": [found],
        "breakdown": StepBreakdown(forward_ratio=0.5, backward_ratio=0.4),
        "gpus": [GpuSummary(node="a", gpu=str(rank), rank=rank, tensor_active_ratio=0.2 * (rank + 1))
                 for rank in range(2)],
    }  # fmt: skip
    return replace(job_round(7).summary, **(known | changes))


def pixels(png):
    """The image decoded by the PNG standard alone: chunks with checksums, rows without a filter."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        data = png[at + 8 : at + 8 + size]
        assert struct.unpack(">I", png[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + data)
        chunks[kind], at = data, at + 12 + size
    width, height, depth, color, *_ = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, color, list(chunks)) == (8, 2, [b"IHDR", b"IDAT", b"IEND"])
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), dtype=np.uint8).reshape(height, 1 + 3 * width)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 3)


def test_lengths_are_the_shares():
    picture = finding_picture(job())
    image = pixels(picture.png)

    (bar,) = {tuple(row) for row in (image == BLUE).all(axis=2).sum(axis=1)[:, None].tolist()} - {(0,)}
    assert bar[0] / image.shape[1] == pytest.approx(0.5, abs=0.005)
    red = (image == RED).all(axis=2).sum(axis=1)
    assert red[red > 0][0] / image.shape[1] == pytest.approx(0.25, abs=0.005)
    # The culprit's column, at the right: twice as high as its peer's.
    assert (image[-40] == RED).all(axis=1)[-10:-4].all()
    assert "forward 50.0%, backward 40.0%, other 10.0%" in picture.caption
    assert "Red: straggler (rank 1) costs 25.0% of a step." in picture.caption


@pytest.mark.parametrize("ratio", [float("nan"), float("inf"), 3.0, -1.0])
def test_no_value_breaks_the_picture(ratio):
    strange = job(breakdown=StepBreakdown(forward_ratio=ratio, backward_ratio=0.4))
    assert pixels(finding_picture(strange).png).shape[1] == 600


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_no_value_of_a_finding_or_gpu_breaks_the_picture(value):
    found = Finding(kind=Kind.STRAGGLER, confidence=0.9, gain_ratio=value)
    gpus = [
        GpuSummary(node="a", gpu=str(rank), rank=rank, tensor_active_ratio=one)
        for rank, one in enumerate([0.4, value, 0.8])
    ]
    picture = finding_picture(job(findings=[found], gpus=gpus))
    assert pixels(picture.png).shape[1] == 600
    assert "the highest 80.0%" in picture.caption


def test_a_job_of_which_nothing_is_known_has_none():
    unknown = Finding(kind=Kind.UNKNOWN, confidence=0.0)
    assert finding_picture(job(findings=[unknown], breakdown=StepBreakdown(), gpus=[])) is None

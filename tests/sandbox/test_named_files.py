"""Files that are too large to read, and pipes that would block."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfd.cli import main
from perfd.errors import ConfigError, PerfdError
from perfd.gpu_peaks import load_peaks
from perfd.report.comparison import read_summary
from perfd.sandbox.named_files import read_bounded, refuse_pipe, require_bounded
from perfd.trace.export import write_perfetto
from perfd.trace.roofline import read_ncu

_DEVICE = Path("/dev/zero")


def test_a_file_of_exactly_the_bound_is_read_and_one_byte_more_is_not(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")

    assert read_bounded(path, 5, "a number") == b"12345"
    with pytest.raises(PerfdError, match=r"file: it is larger than 4 B; is it a number\?"):
        read_bounded(path, 4, "a number")
    require_bounded(path, 5, "a number")
    with pytest.raises(PerfdError, match="is it a number"):
        require_bounded(path, 4, "a number")


def test_a_summary_that_never_ends_is_one_sentence(monkeypatch):
    monkeypatch.setattr("perfd.report.comparison.summary_files._MAX_BYTES", 1000)
    with pytest.raises(PerfdError, match=r"/dev/zero: it is larger than 1\.0 kB; is it a job summary\?"):
        read_summary(_DEVICE)


def test_peaks_that_never_end_are_one_sentence(monkeypatch):
    monkeypatch.setattr("perfd.config.yaml_source._MAX_BYTES", 1000)
    with pytest.raises(ConfigError, match=r"/dev/zero:1:1: it is larger than 1\.0 kB"):
        load_peaks(_DEVICE)


def test_line_ends_of_windows_do_not_change_settings(tmp_path):
    path = tmp_path / "peaks.yaml"
    path.write_bytes(
        b"gpus:\r\n  - name: One\r\n    match: [one]\r\n    flops: {bf16: 1.0e+12}\r\n"
        b'    source: x\r\n    date: "2026-01-01"\r\n'
    )

    assert load_peaks(path).own[0].name == "One"


def test_a_report_of_nsight_compute_is_bounded_and_no_device(tmp_path, monkeypatch):
    path = tmp_path / "gemm.csv"
    path.write_bytes(b"0" * 1001)
    monkeypatch.setattr("perfd.trace.roofline.ncu_report._MAX_BYTES", 1000)

    with pytest.raises(PerfdError, match=r"gemm\.csv: it is larger than 1\.0 kB"):
        read_ncu(path)
    with pytest.raises(PerfdError, match="/dev/zero: this is a pipe or a device"):
        read_ncu(_DEVICE)


def test_output_into_a_named_pipe_is_refused_instead_of_waiting_for_a_reader(tmp_path, capsys):
    pipe = tmp_path / "out.html"
    os.mkfifo(pipe)

    with pytest.raises(PerfdError, match="this is a named pipe; name a file to write"):
        write_perfetto([], pipe)
    assert main(["roofline", "--matmul", "64x64x64", "--output", str(pipe)]) == 2
    assert "this is a named pipe" in capsys.readouterr().err
    refuse_pipe(tmp_path / "new.html")

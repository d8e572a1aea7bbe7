"""A redacted export: nothing secret in its bytes, everything that an analysis reads still there."""

import gzip
import os
import re
import shutil
import sqlite3
import stat
import sys
from contextlib import closing
from pathlib import Path

import pytest
from capture.conftest import request

from perfd.capture.nsys.report_contents import kernels_by_process
from perfd.capture.redact.redaction import redacted_copy
from perfd.cli import main
from perfd.errors import CaptureError
from perfd.model import CaptureState
from perfd.sandbox import confined_call

SECRET = "hunter2-4e1243bd22c66e76c2ba9eddc1f91394"
SHARED = os.environ.get("PERFD_SHARED")
EVERY_PLACE = """
    CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
    CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
    CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
    CREATE TABLE TARGET_INFO_SYSTEM_ENV
        (globalVid INT, devStateName TEXT, name TEXT, nameEnum INT, value TEXT);
    CREATE TABLE PROCESSES (globalPid INT, pid INT, name TEXT);
    CREATE TABLE ThreadNames (nameId INT, priority INT, globalTid INT);
    CREATE TABLE ProcessStreams (globalPid INT, filenameId INT, contentId INT);
    CREATE TABLE ANALYSIS_FILE (id INT, filename TEXT, contentId INT, globalPid INT);
    CREATE TABLE DIAGNOSTIC_EVENT (timestamp INT, text TEXT, globalPid INT);
    CREATE TABLE A_TABLE_OF_THE_FUTURE (anything TEXT);
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, globalPid INT, shortName INT);
    CREATE TABLE NVTX_EVENTS (start INT, end INT, textId INT, text TEXT, globalTid INT,
        jsonTextId INT, jsonText TEXT, binaryData TEXT);
    INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'forward'), (3, 'printed {s}'), (4, 'worker'), (5, '{s}');
    INSERT INTO META_DATA_CAPTURE VALUES
        ('PROCESS_0:ENVIRONMENT', 'TOKEN={s}'), ('PROCESS_0:ARGUMENTS', '--token {s}'),
        ('RUN_DURATION_MS', '7');
    INSERT INTO META_DATA_EXPORT VALUES
        ('EXPORT_SCHEMA_VERSION', '3.20.3'), ('EXPORT_USER', '{s}'), ('EXPORT_PARAM_INPUT_FILE', '/home/{s}');
    INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES
        (1, '', 'DeviceEnvironment', 1, 'TOKEN={s}'), (1, '', 'Hostname', 2, '{s}'),
        (1, '', 'CpuCores', 3, '8');
    INSERT INTO PROCESSES VALUES (16777216, 1, '/home/{s}/python'), (33554432, 2, '{s}');
    INSERT INTO ThreadNames VALUES (4, 0, 16777217), (5, 0, 33554433);
    INSERT INTO ProcessStreams VALUES (16777216, 5, 3);
    INSERT INTO ANALYSIS_FILE VALUES (1, 'stdout', 3, 16777216);
    INSERT INTO DIAGNOSTIC_EVENT VALUES (1, 'started {s}', 16777216);
    INSERT INTO A_TABLE_OF_THE_FUTURE VALUES ('{s}');
    INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (0, 5, 16777216, 1);
    INSERT INTO NVTX_EVENTS VALUES (0, 9, 2, NULL, 16777217, 5, '{s}', '{s}');
"""


@pytest.fixture
def export(tmp_path):
    path = tmp_path / "export.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(EVERY_PLACE.replace("{s}", SECRET))
    return path


def rows(path, query):
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


def test_a_secret_in_any_place_of_the_export_is_not_in_the_bytes_of_the_copy(export, tmp_path):
    assert SECRET.encode() in export.read_bytes()
    redacted_copy(export, tmp_path / "copy.sqlite")
    assert SECRET.encode() not in (tmp_path / "copy.sqlite").read_bytes()
    assert stat.S_IMODE((tmp_path / "copy.sqlite").stat().st_mode) == 0o600
    assert SECRET.encode() in export.read_bytes(), "the original stays as it was"


def test_what_an_analysis_reads_is_still_there(export, tmp_path):
    copy = tmp_path / "copy.sqlite"
    redacted_copy(export, copy)
    kernels = "SELECT value, globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName"
    assert rows(copy, kernels) == [("gemm", 16777216)]
    assert rows(copy, "SELECT value FROM NVTX_EVENTS JOIN StringIds ON id = textId") == [("forward",)]
    assert rows(copy, "SELECT * FROM PROCESSES") == [(16777216, 1, None)]
    assert rows(copy, "SELECT value FROM ThreadNames JOIN StringIds ON id = nameId") == [("worker",)]
    assert rows(copy, "SELECT name FROM META_DATA_EXPORT") == [("EXPORT_SCHEMA_VERSION",)]
    assert rows(copy, "SELECT name FROM TARGET_INFO_SYSTEM_ENV") == [("CpuCores",)]


def test_a_capture_of_a_job_with_a_secret_in_its_environment_is_redacted(node, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN", SECRET)
    node.launch()
    node.executor().handle(request())
    done = node.until_state(CaptureState.DONE)
    (export,) = [file.path for file in done.files if file.path.endswith(".sqlite")]
    copy = tmp_path / "copy.sqlite"
    assert SECRET.encode() in Path(export).read_bytes()
    assert main(["capture", "redact", export, str(copy)]) == 0
    assert SECRET.encode() not in copy.read_bytes()
    assert rows(copy, "SELECT count(*) > 0 FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(1,)]


@pytest.mark.parametrize("content", [b"", b"not a database, but long enough to look at" * 100])
def test_what_is_no_export_is_refused_and_leaves_nothing(tmp_path, content):
    (tmp_path / "x.sqlite").write_bytes(content)
    with pytest.raises(CaptureError, match="export of nsys"):
        redacted_copy(tmp_path / "x.sqlite", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


FAILS = """
import os, sys
import perfd.capture.redact.redaction as redaction
from perfd.sandbox import confined_call

def fail(*_):
    {failure}

redaction.redact = fail
sys.exit(confined_call.main())
"""


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (f"raise KeyError('{SECRET}')", r"cannot be redacted: unexpected content \(KeyError\)\."),
        (
            "__import__('ctypes').string_at(0)",
            r"cannot be redacted: signal 11 ended the process; is there enough memory\?",
        ),
        (
            f"raise BaseException('{SECRET}')",
            r"cannot be redacted: its process ended with 1; the log has the details\.",
        ),
    ],
)
def test_a_redaction_that_fails_gives_one_sentence_without_content(
    export, tmp_path, monkeypatch, failure, reason
):
    command = (sys.executable, "-c", FAILS.format(failure=failure))
    monkeypatch.setattr(confined_call, "_PROCESS", command)
    with pytest.raises(CaptureError) as error:
        redacted_copy(export, tmp_path / "copy")
    assert re.fullmatch(f"{export} {reason}", str(error.value))
    assert not (tmp_path / "copy").exists()


def test_an_existing_file_is_never_overwritten(export, tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(CaptureError, match="File exists"):
        redacted_copy(export, tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "mine"
    with pytest.raises(CaptureError, match="No such file"):
        redacted_copy(tmp_path / "nosuch.sqlite", tmp_path / "copy")


@pytest.mark.skipif(SHARED is None, reason="PERFD_SHARED does not name the shared directory")
def test_every_kernel_and_range_of_a_real_export_keeps_its_name(tmp_path):
    real = tmp_path / "real.sqlite"
    with gzip.open(Path(SHARED) / "traces" / "nsys-pp2dp2.sqlite.gz") as packed, real.open("wb") as file:
        shutil.copyfileobj(packed, file)
    kernels = kernels_by_process(real)
    assert len(kernels) == 4, "four ranks"
    assert sum(kernels.values()) == rows(real, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL")[0][0]
    redacted_copy(real, tmp_path / "copy.sqlite")
    for table, name in (
        ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId"),
        ("NVTX_EVENTS", "textId"),
    ):
        query = (
            f"SELECT count(*), count(value), count(DISTINCT value), sum(end - start) "
            f"FROM {table} LEFT JOIN StringIds ON id = {name}"
        )
        assert rows(tmp_path / "copy.sqlite", query) == rows(real, query)

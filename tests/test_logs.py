from __future__ import annotations

import io
import json
import logging

import pytest

from perfd import logs


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.mark.parametrize("logger", ["perfd.agent", "perfd_collectors.nccl"])
def test_facts_follow_the_message_as_key_and_value(stream: io.StringIO, logger: str) -> None:
    logs.configure("info", stream=stream)
    logging.getLogger(logger).warning("It is full.", extra={"path": "/a b", "batches": 3})
    assert stream.getvalue().endswith('warning: It is full. path="/a b" batches=3\n')


def test_a_line_of_json_holds_the_same(stream: io.StringIO) -> None:
    logs.configure("info", json_lines=True, stream=stream)
    try:
        int("odd")
    except ValueError:
        logging.getLogger("perfd.agent").exception("It broke.", extra={"collector": "nvml"})
    line = json.loads(stream.getvalue())
    assert (line["level"], line["logger"], line["message"]) == ("error", "perfd.agent", "It broke.")
    assert line["collector"] == "nvml"
    assert line["exception"].endswith("'odd'")


def test_less_important_messages_are_left_out(stream: io.StringIO) -> None:
    logs.configure("warning", stream=stream)
    logging.getLogger("perfd.agent").info("All is well.")
    assert stream.getvalue() == ""


def test_configuring_twice_does_not_log_twice(stream: io.StringIO) -> None:
    logs.configure("info", stream=stream)
    logs.configure("info", stream=stream)
    logging.getLogger("perfd.agent").info("Once.")
    assert stream.getvalue().count("Once.") == 1

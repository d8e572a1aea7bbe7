"""Event files, read back by TensorBoard itself."""

import errno
import os
from contextlib import ExitStack, closing

import pytest
from exporters.rounds import job_round
from exporters.support import alert, context
from hypothesis import given as prop
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from perfd.config import TensorBoardConfig
from perfd.errors import ConfigError
from perfd.exporters.exporter import Round
from perfd.exporters.safe_names import plain_name
from perfd.exporters.tensorboard.event_file import scalars_event, text_event, version_event
from perfd.exporters.tensorboard.tensorboard_exporter import TensorBoardExporter


@pytest.fixture
def exporter():
    """Makes exporters, which are closed at the end."""
    with ExitStack() as made:

        def make(folder, given=None, **options):
            config = TensorBoardConfig(directory=str(folder), **options)
            return made.enter_context(closing(TensorBoardExporter(config, given or context())))

        yield make


def read(folder):
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def at(time_s, *jobs, **options):
    return Round(time_unix_s=time_s, jobs=jobs, **options)


def test_tensorboard_reads_each_step_once_at_its_place(exporter, tmp_path):
    tested = exporter(tmp_path)
    for time_s, step, mfu in ((100.0, 1, 0.25), (101.0, 1, 0.25), (102.0, 5, 0.5)):
        tested.export(at(time_s, job_round(step, mfu_ratio=mfu, loss=2.0, learning_rate=3e-4)))
    # What was written is readable before the exporter is closed.
    found = read(tmp_path / "llm" / "attempt-1")
    assert [(one.wall_time, one.step, one.value) for one in found.Scalars("perfd/mfu_ratio")] == [
        (100.0, 1, 0.25),
        (102.0, 5, 0.5),
    ]
    assert [one.value for one in found.Scalars("perfd/loss")] == [2.0, 2.0]
    assert [one.value for one in found.Scalars("perfd/learning_rate")] == pytest.approx([3e-4, 3e-4])
    assert "perfd/tokens_per_s" not in found.Tags()["scalars"]


def test_an_alert_is_a_text_at_its_step(exporter, tmp_path):
    others = (alert(perfd_job="other"), alert("X", perfd_job="llm", resolved=1.0))
    exporter(tmp_path).export(at(1.0, job_round(7), changes=[alert(perfd_job="llm"), *others]))
    [event] = read(tmp_path / "llm" / "attempt-1").Tensors("perfd/alerts")
    assert event.step == 7
    assert event.tensor_proto.string_val[0] == b"**Slow**"


def test_each_start_of_a_job_is_a_run_of_its_own_and_a_restart_of_perfd_continues_it(exporter, tmp_path):
    for attempt, step in ((1, 10), (2, 9), (2, 11)):
        tested = exporter(tmp_path)
        tested.export(at(float(step), job_round(step, attempt=attempt)))
        tested.close()
    assert sorted(path.name for path in (tmp_path / "llm").iterdir()) == ["attempt-1", "attempt-2"]
    steps = [one.step for one in read(tmp_path / "llm" / "attempt-2").Scalars("perfd/step_time_s")]
    assert steps == [9, 11]


def test_a_job_cannot_write_outside_the_directory(exporter, tmp_path):
    root = tmp_path / "logs"
    tested = exporter(root)
    for name in ("../../escape", "/etc", "..", "", "a/b", "ü"):
        tested.export(at(1.0, job_round(1, name=name)))
    assert len(list(root.iterdir())) == 6
    assert list(tmp_path.iterdir()) == [root]


def test_jobs_beyond_the_bound_are_counted_and_an_ended_one_makes_room(exporter, tmp_path):
    given = context()
    tested = exporter(tmp_path, given, max_jobs=1)
    tested.export(at(1.0, job_round(1), job_round(1, name="next")))
    assert given.tally.lost == 1
    ended = job_round(2, ended=True)
    tested.export(at(2.0, ended))
    tested.export(at(3.0, ended, job_round(3, name="next")))
    assert (given.tally.sent, given.tally.lost) == (3, 1)
    # As does one that the aggregator forgot.
    tested.export(at(4.0, job_round(1, name="third")))
    tested.export(at(5.0, job_round(2, name="third")))
    assert (given.tally.sent, given.tally.lost) == (4, 2)


def test_after_a_full_disk_a_new_file_begins_and_what_came_before_is_readable(exporter, tmp_path):
    given = context()
    tested = exporter(tmp_path, given)
    tested.export(at(1.0, job_round(1)))
    real = tested._jobs["llm"].file
    tested._jobs["llm"].file = _Full(real)
    with pytest.raises(OSError, match="No space"):
        tested.export(at(2.0, job_round(2)))
    tested.export(at(3.0, job_round(3)))
    steps = [one.step for one in read(tmp_path / "llm" / "attempt-1").Scalars("perfd/step_time_s")]
    assert steps[-1] == 3
    assert (given.tally.sent, given.tally.lost) == (2, 1)


class _Full:
    """A file on a disk that takes half of what is written."""

    def __init__(self, file):
        self.file = file

    def write(self, data):
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self):
        self.file.close()


@prop(
    st.dictionaries(st.text(min_size=1, max_size=20), st.floats(allow_nan=False), max_size=5),
    st.integers(min_value=0, max_value=2**40),
)
def test_whatever_is_written_tensorboard_reads(tmp_path_factory, scalars, step):
    folder = tmp_path_factory.mktemp("events")
    tags = {tag.encode("utf-8", "replace").decode(): value for tag, value in scalars.items()}
    path = folder / "events.out.tfevents.1.x"
    path.write_bytes(
        version_event(1.0) + scalars_event(2.0, step, tags) + text_event(3.0, step, "perfd/alerts", "é")
    )
    found = read(folder)
    assert set(found.Tags()["scalars"]) == set(tags)
    assert {found.Scalars(tag)[0].step for tag in tags} <= {step}
    assert found.Tensors("perfd/alerts")[0].tensor_proto.string_val[0] == "é".encode()


@prop(st.text(max_size=300))
def test_names_are_plain_and_stay_apart(name):
    plain = plain_name(name)
    assert 0 < len(plain) <= 128
    assert plain.isascii()
    assert "/" not in plain
    assert not plain.startswith(".")
    assert plain_name(name + "x") != plain


@pytest.mark.parametrize("directory", ["/proc/nowhere", "/dev/null/x"])
def test_a_directory_that_cannot_be_used_is_reported_at_the_start(exporter, directory):
    with pytest.raises(ConfigError, match=directory):
        exporter(directory)

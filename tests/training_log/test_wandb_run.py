"""Which run of W&B a job writes: in its output, and in its run file."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from perfd_collectors.training_log.log_parser import LogParser, new_job
from perfd_collectors.training_log.metric_files import MetricFileParser, metric_file_reader
from perfd_collectors.training_log.metric_files import metric_files_pb2 as pb

from tests.support.wandb_server import WandbServer

RUN = "https://wandb.ai/team/proj/runs/2v1jf4us"
SINCE = "wandb: \N{ROCKET} View run at "
AT_END = "wandb: \N{ROCKET} View run quiet-sun-7 at: "


def of_log(*lines: str) -> str | None:
    job = new_job("j")
    LogParser(job).feed("".join(f"{line}\n" for line in lines).encode())
    return job.out.description.wandb_run


def of_file(
    stream: str, *, entity: str = "team", project: str = "proj", before: str | None = None
) -> str | None:
    data = pb.RunRecord(run=pb.Run(run_id="2v1jf4us", entity=entity, project=project)).SerializeToString()
    piece = (zlib.crc32(b"\x01" + data)).to_bytes(4, "little") + len(data).to_bytes(2, "little") + b"\x01"
    job, reader = new_job("j"), metric_file_reader(stream)
    job.out.describe(wandb_run=before)
    assert reader is not None
    MetricFileParser(job, stream, reader).feed(b":W&B\x67\xbe\x00" + piece + data, 1)
    return job.out.description.wandb_run


@pytest.mark.parametrize(
    ("line", "run"),
    [
        (SINCE + RUN, RUN),
        (AT_END + RUN, RUN),
        (f"\x1b[34m\x1b[1mwandb\x1b[0m: \N{ROCKET} View run at \x1b[34m\x1b[4m{RUN}\x1b[0m", RUN),
        (f"[default0]:{SINCE}{RUN}", RUN),
        (f"{SINCE}http://10.0.0.7:8080/me/p/runs/a-b.c", "http://10.0.0.7:8080/me/p/runs/a-b.c"),
        (f"View run at {RUN}", None),
        (f"{SINCE}{RUN} and more", None),
        (f"{SINCE}https://user@wandb.ai/team/proj/runs/x", None),
        (f"{SINCE}javascript:alert(1)//team/proj/runs/x", None),
        (f"{SINCE}https://wandb.ai/team/proj/runs/x?y=<script>", None),
        ("wandb: View project at https://wandb.ai/team/proj", None),
    ],
)
def test_a_run_is_named_by_the_line_of_its_client(line: str, run: str | None) -> None:
    assert of_log(line) == run


def test_a_restarted_job_has_its_newest_run() -> None:
    assert of_log(SINCE + RUN, AT_END + RUN, SINCE + RUN.replace("2v1", "3w2")) == RUN.replace("2v1", "3w2")


@pytest.mark.parametrize(
    ("folder", "names", "run"),
    [
        ("wandb/run-20261124_235010-2v1jf4us", {}, "team/proj/runs/2v1jf4us"),
        ("wandb/run-20261124_235010-2v1jf4us", {"entity": ""}, "proj/runs/2v1jf4us"),
        ("wandb/run-20261124_235010-2v1jf4us", {"before": RUN}, RUN),
        ("wandb/run-20261124_235010-2v1jf4us", {"before": f"{RUN}x"}, "team/proj/runs/2v1jf4us"),
        ("wandb/run-20261124_235010-2v1jf4us", {"project": "a/b"}, None),
        ("wandb/offline-run-20261124_235010-2v1jf4us", {}, None),
    ],
)
def test_a_run_file_names_its_run_unless_no_server_has_it(
    folder: str, names: dict[str, str], run: str | None
) -> None:
    assert of_file(f"/w/{folder}/run-2v1jf4us.wandb", **names) == run


ONLINE = """
import sys, wandb
run = wandb.init(project="proj", dir=sys.argv[1])
run.log({"loss": 1.0})
run.finish()
"""


@pytest.mark.slow
def test_the_real_client_names_its_run_in_its_output_and_in_its_file(tmp_path: Path) -> None:
    with WandbServer() as server:
        names = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "a" * 40, "HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", ONLINE, str(tmp_path)],
            env={**os.environ, **names},
            check=True,
            capture_output=True,
            text=True,
            timeout=300,
        )
        url = server.url
    (path,) = tmp_path.glob("wandb/run-*/run-*.wandb")
    run_id = path.stem.removeprefix("run-")
    assert of_log(*done.stderr.splitlines()) == f"{url}/me/proj/runs/{run_id}"
    job, reader = new_job("j"), metric_file_reader(str(path))
    assert reader is not None
    MetricFileParser(job, str(path), reader).feed(path.read_bytes(), 1)
    assert job.out.description.wandb_run == f"proj/runs/{run_id}"

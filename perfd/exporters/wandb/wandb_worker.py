"""The process that holds runs of W&B: `python -m perfd.exporters.wandb.wandb_worker FD`.

No other module imports `wandb`. The process ends when its socket does; by then W&B has written or
uploaded everything, or `finish_timeout` is over.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from math import ceil
from pathlib import Path
from typing import Any

import msgspec
import wandb

from perfd.config import WandbConfig
from perfd.exporters.http_post import read_secret
from perfd.exporters.safe_names import plain_name
from perfd.exporters.wandb.wandb_messages import (
    CloseRun,
    LogNumbers,
    OpenRun,
    SaveReport,
    SendAlert,
    WorkerPipe,
    WorkerReply,
    WorkerRequest,
)
from perfd.exporters.wandb.wandb_process import END_WITHIN_S

FINISH_WITHIN_S = 6.0
"""Time for W&B's uploads at the end of a run; the rest stays on disk, for `wandb sync`."""
_KEY = "exporters.wandb"
_MAX_TEXT = 120
"""Characters of a name or group, which W&B limits to 128."""


class WorkerRuns:
    """Applies messages to the runs of jobs."""

    def __init__(self) -> None:
        self._runs: dict[str, Any] = {}
        self._closing: dict[str, threading.Thread] = {}

    def handle(self, request: WorkerRequest) -> None:
        """Apply it; raises whatever W&B raises."""
        match request.message:
            case OpenRun() as message:
                if (closing := self._closing.pop(request.job, None)) is not None:
                    # W&B refuses to open a run that it still finishes.
                    closing.join(FINISH_WITHIN_S)
                self._runs[request.job] = _opened(request.job, message)
            case LogNumbers() as message:
                self._runs[request.job].log(message.row)
            case SendAlert() as message:
                self._runs[request.job].alert(
                    title=message.title, text=message.text, level=message.level, wait_duration=0
                )
            case SaveReport() as message:
                _report(self._runs[request.job], message)
            case CloseRun():
                # Uploads must not keep the other jobs waiting.
                thread = threading.Thread(target=self._runs.pop(request.job).finish, daemon=True)
                self._closing = {job: one for job, one in self._closing.items() if one.is_alive()}
                self._closing[request.job] = thread
                thread.start()


def main() -> None:
    """Serve the socket whose number is the first argument until its other end closes it."""
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        serve(WorkerPipe(connection), WorkerRuns().handle)
        # In case the parent has died and cannot kill it: SIGALRM ends a process that does not handle it.
        signal.alarm(ceil(END_WITHIN_S))
        # Threads of W&B that ask for the network's state do not expect the end of all runs at once.
        threading.excepthook = lambda _: None
        # Ends all runs, and waits until W&B's own process has written everything.
        wandb.teardown()


def serve(line: WorkerPipe, handle: Callable[[WorkerRequest], None]) -> None:
    """Answer every message until there are no more."""
    while (data := line.receive()) is not None:
        try:
            handle(msgspec.json.decode(data, type=WorkerRequest))
        except Exception as error:  # noqa: BLE001  W&B raises more kinds than it documents; each is answered.
            line.send(WorkerReply(error=str(error) or type(error).__name__))
        else:
            line.send(WorkerReply())


def init_arguments(job: str, config: WandbConfig, labels: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of `wandb.init`."""
    same = config.run == "same"
    shared = same and config.mode == "online"
    settings: dict[str, Any] = {
        "console": "off",
        "disable_git": True,
        "save_code": False,
        "silent": True,
        "init_timeout": config.timeout_s,
        "finish_timeout": min(config.timeout_s, FINISH_WITHIN_S),
        # A killed process leaves complete data on disk except for the last second.
        "x_transaction_log_flush_interval": 1.0,
        "x_disable_stats": True,
        "x_disable_meta": True,
        "x_disable_machine_info": True,
    }
    if shared:
        # Two processes write to the job's run: W&B's shared mode, with the job as primary.
        settings |= {
            "mode": "shared",
            "x_primary": False,
            "x_label": "perfd",
            "x_update_finish_state": False,
        }
    else:
        settings["mode"] = config.mode
    if config.base_url is not None:
        settings["base_url"] = config.base_url
    if config.api_key_file is not None:
        settings["api_key"] = read_secret(config.api_key_file, f"{_KEY}.api_key_file")
    elif config.api_key_variable is not None:
        settings["api_key"] = os.environ[config.api_key_variable]
    name = run_id(job, config)
    return {
        "project": config.project,
        "entity": config.entity,
        "id": name if same else f"{name}-perfd",
        "name": None if same else f"{job[:_MAX_TEXT]} perfd",
        "group": None if same or config.group is None else config.group.format(job=job)[:_MAX_TEXT],
        "job_type": None if same else "perfd",
        "tags": None if same else config.tags,
        "config": None if same or not labels else {"perfd": dict(labels)},
        "resume": None if shared else "allow",
        "dir": config.directory,
        "reinit": "create_new",
        "settings": wandb.Settings(**settings),
    }


def run_id(job: str, config: WandbConfig) -> str:
    """The id of the job's own run; characters that W&B refuses are replaced, and a hash added."""
    return plain_name(config.run_id.format(job=job))


def _opened(job: str, message: OpenRun) -> Any:  # noqa: ANN401  `wandb` is not typed.
    run = wandb.init(**init_arguments(job, message.config, message.labels))
    # The training step is a separate axis: `step=` belongs to the job, and must never go back.
    run.define_metric("perfd/step")
    run.define_metric("perfd/*", step_metric="perfd/step")
    return run


def _report(run: Any, report: SaveReport) -> None:  # noqa: ANN401  `wandb` is not typed.
    run.summary.update(report.numbers)
    artifact = wandb.Artifact(f"perfd-{run.id}", type="perfd-report")
    for name, content in report.files.items():
        path = Path(run.dir) / name
        path.write_text(content, encoding="utf-8")
        # Immutable: the file is uploaded in place, also by a later `wandb sync`, and never copied.
        artifact.add_file(str(path), name=name, policy="immutable", skip_cache=True)
    run.log_artifact(artifact)


if __name__ == "__main__":
    main()

"""A run of the real `wandb` package; the only module that imports it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from perfd.config import WandbConfig
from perfd.exporters.contract import AlertUpdate
from perfd.exporters.post import read_secret

REPORT = "perfd-summary.json"
_KEY = "exporters.wandb"
_LEVELS = {"critical": "ERROR", "warning": "WARN"}


class WandbRun:
    """Writes to one open run."""

    def __init__(self, run: wandb.Run) -> None:
        self._run = run
        # The training step is an axis of its own: `step=` belongs to the job, and must never go back.
        run.define_metric("perfd/step")
        run.define_metric("perfd/*", step_metric="perfd/step")

    def log(self, row: Mapping[str, float]) -> None:
        """Add one row of history."""
        self._run.log(dict(row))

    def alert(self, alert: AlertUpdate) -> None:
        """Send an alert."""
        level = _LEVELS.get(alert.labels.get("severity", ""), "INFO")
        text = alert.annotations.get("description") or alert.annotations.get("summary") or alert.name
        self._run.alert(title=alert.name, text=text, level=level, wait_duration=0)

    def report(self, summary: Mapping[str, float], document: bytes) -> None:
        """Set the run's summary and keep the report as its file."""
        self._run.summary.update(dict(summary))
        folder = Path(self._run.dir)
        (folder / REPORT).write_bytes(document)
        self._run.save(str(folder / REPORT), base_path=str(folder), policy="now")

    def finish(self) -> None:
        """Upload what is left."""
        self._run.finish()


def open_run(job: str, config: WandbConfig) -> WandbRun:
    """Open the run of a job; raises `OSError` when W&B does not answer or refuses."""
    try:
        run = wandb.init(**init_arguments(job, config))
    except (wandb.Error, TimeoutError) as error:
        raise OSError(str(error)) from error
    return WandbRun(run)


def init_arguments(job: str, config: WandbConfig) -> dict[str, Any]:
    """What `wandb.init` is called with."""
    same = config.run == "same"
    shared = same and config.mode == "online"
    settings: dict[str, Any] = {
        "console": "off",
        "disable_git": True,
        "save_code": False,
        "silent": True,
        "init_timeout": config.timeout_s,
        "x_disable_stats": True,
        "x_disable_meta": True,
        "x_disable_machine_info": True,
    }
    if shared:
        # Two processes write to the job's run: W&B's shared mode, of which the job is the primary.
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
    name = run_id(job, config)
    return {
        "project": config.project,
        "entity": config.entity,
        "id": name if same else f"{name}-perfd",
        "name": None if same else f"{job} perfd",
        "group": None if same or config.group is None else config.group.format(job=job),
        "job_type": None if same else "perfd",
        "resume": None if shared else "allow",
        "dir": config.directory,
        "reinit": "create_new",
        "settings": wandb.Settings(**settings),
    }


def run_id(job: str, config: WandbConfig) -> str:
    """The id of the job's own run; characters that W&B does not take are replaced, and a hash added."""
    wanted = config.run_id.format(job=job)
    plain = re.sub(r"[^A-Za-z0-9_.-]", "-", wanted)[:100]
    if plain == wanted and plain:
        return plain
    return f"{plain}-{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"

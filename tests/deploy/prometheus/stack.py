"""perfd's own processes, and what ships for Prometheus and Alertmanager put around them, all on loopback."""

import re
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from tests.support.services import Service, alertmanager, free_port, prometheus

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy" / "prometheus"
PERFD = Path(sys.executable).with_name("perfd")
LOG = ROOT / "perfd" / "data" / "recordings" / "pp4_few" / "node0" / "stdout.log"
JOB = "pretrain"
STEPS = 18


class Stack:
    """An aggregator, an agent that follows a job's log, Prometheus and Alertmanager; a context manager."""

    def __init__(self, folder, alertmanager_token="swordfish"):
        self.folder = folder
        self.alertmanager_token = alertmanager_token
        self._services = ExitStack()

    def __enter__(self):
        with ExitStack() as undo:
            self._start(undo)
            self._services = undo.pop_all()
        return self

    def __exit__(self, *_):
        self._services.close()

    def _start(self, stack):
        self.token = self.folder / "right-token"
        self.token.write_text("swordfish\n")
        # Alertmanager's own; its file says so.
        (self.folder / "perfd-token").write_text(self.alertmanager_token + "\n")
        grpc = f"127.0.0.1:{free_port()}"
        # The cluster's Prometheus is the only rule engine.
        config = f"rules: {{builtin: false}}\nwebhook: {{token_file: {self.token}}}\n"
        self.aggregator = stack.enter_context(aggregator(self.folder, grpc, config))
        self.agent = stack.enter_context(agent(self.folder, grpc))
        replaced = {"127.0.0.1:9460": f"127.0.0.1:{self.aggregator.port}"}
        self.alertmanager = stack.enter_context(
            alertmanager(self.folder, shipped("alertmanager.yaml", replaced))
        )
        shutil.copytree(ROOT / "rules", self.folder / "rules")
        (self.folder / "fleet.yaml").write_text(shipped("fleet.yaml", {": 30s": ": 250ms"}))
        (self.folder / "targets").mkdir()
        replaced["127.0.0.1:9093"] = f"127.0.0.1:{self.alertmanager.port}"
        # As often as the issue asks, where the shipped file says each five seconds.
        replaced[": 5s"] = ": 250ms"
        self.prometheus = stack.enter_context(prometheus(self.folder, shipped("prometheus.yaml", replaced)))

    def query(self, expression):
        """An instant query of Prometheus: labels and value of each series."""
        found = self.prometheus.get("/api/v1/query", query=expression)["data"]["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def captures(self):
        """What the aggregator says of captures."""
        return self.aggregator.get("/api/v1/captures")["captures"]


def aggregator(folder, grpc, config):
    """`perfd aggregator` with rounds as frequent as the issue asks."""
    path = folder / "aggregator.yaml"
    path.write_text(f"listen: {grpc}\nround_interval_s: 0.25\n{config}")
    return Service(
        lambda port: [PERFD, "aggregator", "--config", path, "--http", f"127.0.0.1:{port}"],
        ready="/api/v1/readyz",
        folder=folder,
    )


def agent(folder, grpc):
    """`perfd agent` that follows the log of a job that runs, with many steps to go: its end is left out."""
    log = folder / "train.log"
    lines = LOG.read_text().splitlines(keepends=True)[:-40]
    # With one step left, as recorded, a capture would be refused: it would not be over before the job is.
    log.write_text(re.sub(rf"(train_iters \.+ |iteration +\d+/) *{STEPS}\b", r"\g<1> 100000", "".join(lines)))
    path = folder / "agent.yaml"

    def command(port):
        path.write_text(
            f"node: n1\njob: {JOB}\nlisten: 127.0.0.1:{port}\n"
            f"uplink: {{address: '{grpc}', batch_interval_s: 0.25}}\n"
            f"spool: {{directory: {folder}/spool}}\n"
            f"collectors: {{training_log: {{options: {{paths: [{log}]}}}}}}\n"
        )
        return [PERFD, "agent", "--config", path]

    return Service(command, ready="/metrics", folder=folder)


def shipped(name, replaced):
    """A file of deploy/prometheus with other addresses."""
    text = (DEPLOY / name).read_text()
    for before, after in replaced.items():
        assert before in text, f"{name} no longer has {before}"
        text = text.replace(before, after)
    return text


def until(condition, *, within_s=90.0):
    """What a condition gives once it is true; an assertion fails when it never is."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.05)
    return found

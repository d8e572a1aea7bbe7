"""What all tests share: golden files, how hypothesis runs, signals, and a log that no test has configured."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from perfd.process_memory import tune_malloc
from tests.support.examples import ALL, examples

# An example, and what makes it, may take as long as a loaded machine makes them take.
# Continuous integration draws the same examples for the same tests; new ones come from every other run.
settings.register_profile(
    "perfd",
    settings(),
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
    database=None if "CI" in os.environ else settings().database,
)
settings.load_profile("perfd")


# What a shell, a job or a cluster says to what runs in it is not for what is tested here.
_OF_THE_CALLER = re.compile(
    r"(PERFD|SLURM|SLURMD|OMPI|PMI|TORCHELASTIC|NCCL|NSYS|KINETO)_.*|(LOCAL_)?RANK|WORLD_SIZE|MASTER_ADDR|COLUMNS|LINES|(NO|FORCE)_COLOR"
)
_OF_THE_TESTS = {
    ALL,
    "PERFD_SERVICES",
    "PERFD_SHARED",
    "PERFD_TORCH_PYTHON",
    "PERFD_COMPOSER_PYTHON",
    "PERFD_DEEPSPEED_PYTHON",
    "PERFD_VLLM_PYTHON",
    "PERFD_SLURM_JOBS",
}
for name in filter(_OF_THE_CALLER.fullmatch, os.environ.keys() - _OF_THE_TESTS):
    del os.environ[name]
os.environ |= {"no_proxy": "127.0.0.1,localhost", "NO_PROXY": "127.0.0.1,localhost"}
os.umask(0o022)

# Tests start hundreds of programs. Without compiled files each compiles what it imports: half of its time.
# They are beside their sources, where users who may not write there and other environments find them, too.
sys.dont_write_bytecode = False
os.environ["PYTHONDONTWRITEBYTECODE"] = ""

# As an aggregator does: else work on arrays spends a sixth of its time on pages that glibc has given back.
tune_malloc()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing")


def pytest_configure() -> None:
    # `nohup`, and a shell that starts something in the background, have it ignore signals, and so would each
    # program that a test interrupts. They do not inherit a handler.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


# Fixtures that a machine can have only once, and the tests that use them: the image store and SLURM.
ONE_AT_A_TIME = {
    "image": ("tests/deploy/test_image.py", "tests/deploy/kubernetes/"),
    "cluster": ("tests/deploy/test_slurm",),
}

# Seconds that the tests of a file take, or of all files of a service, where that is more than one per test:
# measured on 2 busy cores. Only the order counts.
LONG_S = {
    "cluster": 604,
    "image": 525,
    "tests/deploy/test_packaging.py": 334,
    "tests/headlines/test_headlines.py": 300,
    "tests/training_log/test_properties.py": 281,
    "tests/exporters/test_mlflow_real.py": 272,
    "tests/session/launchers/test_launchers.py": 252,
    "tests/capture/test_kineto_torch.py": 210,
    "tests/web/test_accessibility.py": 188,
    "tests/session/test_run.py": 178,
    "tests/faults/test_offline.py": 170,
    "tests/headlines/test_altered.py": 160,
    "tests/jetstream/test_postgres_away.py": 146,
    "tests/exporters/test_wandb_real.py": 142,
    "tests/faults/test_simulated.py": 140,
    "tests/headlines/test_lasting_faults.py": 135,
    "tests/deploy/test_release_files.py": 130,
    "tests/hook/test_frameworks.py": 127,
    "tests/capture/test_kineto.py": 121,
    "tests/capture/test_executor.py": 121,
    "tests/session/test_replay.py": 115,
    "tests/jetstream/test_kills.py": 114,
    "tests/jetstream/test_bad_input.py": 94,
    "tests/nccl/test_restarted_agent.py": 90,
    "tests/history/test_postgres.py": 89,
    "tests/trace/test_profiled_memory.py": 88,
    "tests/rules/test_prometheus.py": 87,
    "tests/faults/test_chaos.py": 86,
    "tests/jetstream/test_group_chaos.py": 85,
    "tests/history/test_contract.py": 84,
    "tests/jetstream/test_lost_messages.py": 79,
    "tests/web/test_findings_page.py": 79,
    "tests/cli/test_ending.py": 71,
    "tests/deploy/test_alert_path.py": 64,
    "tests/history/test_kills.py": 64,
    "tests/jetstream/test_rolling_upgrade.py": 60,
    "tests/aggregator/test_node_memory.py": 60,
    "tests/nccl/test_installation.py": 59,
    "tests/web/test_page_costs.py": 56,
    "tests/jetstream/test_group.py": 56,
    "tests/jetstream/test_real_server.py": 54,
    "tests/aggregator/test_large_fleet.py": 52,
    "tests/web/test_chromium.py": 49,
    "tests/capture/test_jax.py": 43,
    "tests/analysis/test_options_of_packages.py": 42,
    "tests/aggregator/test_fleet_traffic.py": 41,
    "tests/cli/test_trace_progress.py": 41,
    "tests/capture/test_profile_steps_example.py": 41,
    "tests/aggregator/test_batch_intervals.py": 40,
    "tests/doctor/test_streams.py": 39,
    "tests/jetstream/test_gateway.py": 38,
    "tests/jetstream/test_leases.py": 32,
    "tests/jetstream/test_gateway_identity.py": 30,
    "tests/jetstream/test_direct_reading.py": 28,
    "tests/objects/test_real_server.py": 28,
    "tests/session/test_hold.py": 26,
    "tests/capture/test_end_to_end.py": 25,
    "tests/software/test_collector.py": 24,
    "tests/trace/test_perfetto.py": 24,
    "tests/capture/test_jax_real.py": 23,
    "tests/aggregator/test_steps_of_long_jobs.py": 22,
    "tests/capture/test_signals.py": 22,
    "tests/web/test_compare_page.py": 21,
    "tests/mcp_server/test_server.py": 20,
}


class _FilesOfOneService(LoadFileScheduling):
    """Runs all tests of a file in one process, and all files that use one of these fixtures in one, too.

    The longest come first: begun last, they would run while the other processes have nothing left.
    """

    def _assign_work_unit(self, node: Any) -> None:
        longest = max(self.workqueue, key=lambda files: LONG_S.get(files, len(self.workqueue[files])))
        self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        return next((name for name, files in ONE_AT_A_TIME.items() if nodeid.startswith(files)), "") or str(
            super()._split_scope(nodeid)
        )

    def _reschedule(self, node: Any) -> None:
        # When two processes crash at once, the second replacement has no tests yet: KeyError in xdist 3.8.
        if node in self.registered_collections:
            super()._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    # Not by `xdist_group`: with pytest 9.2, xdist 3.8 ignores it (pytest-xdist issue 1386).
    return _FilesOfOneService(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    # What is collected lasts: looking for garbage in it all the time took an eighth, and a quarter if cold.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.nodeid.startswith("tests/deploy/"):
            continue
        for name in ONE_AT_A_TIME.keys() & set(getattr(item, "fixturenames", ())):
            if not item.nodeid.startswith(ONE_AT_A_TIME[name]):
                raise pytest.UsageError(f"{item.nodeid} uses {name}: add its file to ONE_AT_A_TIME")


@pytest.fixture(autouse=True)
def _a_log_that_nobody_configured() -> None:
    """Verbs that an earlier test or fixture ran in this process have said where perfd logs."""
    for name in ("perfd", "perfd_collectors"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate = True


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compare a text with a golden file, or write the file if the tests run with `--update-golden`."""

    def check(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} does not exist: run with --update-golden and read what it writes"
        assert text == path.read_text(encoding="utf-8")

    return check

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from nccl.driver import DRIVER, FLAGS, PLUGIN


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the plugin and the driver."""
    directory = tmp_path_factory.mktemp("plugin")
    subprocess.run(["make", "-s", "-C", PLUGIN, f"OUT={directory}"], check=True)
    subprocess.run(["gcc", *FLAGS, DRIVER, "-o", directory / "driver", "-ldl", "-rdynamic"], check=True)
    return directory

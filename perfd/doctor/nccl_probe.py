"""NCCL's settings on a node: variables of the environment and of its configuration files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from perfd.doctor.node_facts import NcclSetting

_MOST_BYTES = 1 << 20
"""How much of nccl.conf is read, which has a few lines."""
_ACTIVE = "4:"
"""A port's state `4: ACTIVE` in /sys/class/infiniband/DEVICE/ports/N/state."""


def probe_nccl_settings(environment: Mapping[str, str], root: Path) -> dict[str, NcclSetting]:
    """As NCCL reads them: the environment comes before ~/.nccl.conf, and that before /etc/nccl.conf.

    `NCCL_CONF_FILE` replaces the file of the user. (Source: NCCL's documentation, "Environment Variables".)
    """
    home = environment.get("HOME", "")
    own = environment.get("NCCL_CONF_FILE") or (f"{home}/.nccl.conf" if home else "")
    found: dict[str, NcclSetting] = {}
    for name in filter(None, ("/etc/nccl.conf", own)):
        found |= _settings_of(root / name.lstrip("/"), name)
    found |= {
        name: NcclSetting(value, "the environment")
        for name, value in environment.items()
        if name.startswith("NCCL_")
    }
    return found


def _settings_of(path: Path, name: str) -> dict[str, NcclSetting]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_MOST_BYTES)
    except OSError:
        return {}
    pairs = (line.split("#", 1)[0].partition("=") for line in text.splitlines())
    return {key.strip(): NcclSetting(value.strip(), name) for key, equals, value in pairs if equals}


def active_infiniband(folder: Path) -> list[str]:
    """Devices below /sys/class/infiniband that have a port in use."""
    return sorted({state.parts[-4] for state in folder.glob("*/ports/*/state") if _is_active(state)})


def _is_active(state: Path) -> bool:
    try:
        return state.read_text().startswith(_ACTIVE)
    except OSError:
        return False

"""Labels that an operator adds to all exported series and alerts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from perfd.errors import ConfigError

_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


def check_external_labels(labels: Mapping[str, str], *, key: str) -> dict[str, str]:
    """The labels without empty ones; raises `ConfigError` for a name that Prometheus would refuse."""
    wrong = sorted(name for name in labels if not _NAME.fullmatch(name))
    if wrong:
        raise ConfigError(
            f"{key}.external_labels: {wrong[0]!r} is not a label name; use letters, digits and "
            "underscores, and neither a digit nor two underscores at the start."
        )
    return {name: value for name, value in labels.items() if value}

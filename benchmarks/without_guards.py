"""`python -m benchmarks.without_guards aggregator ...` is `perfd aggregator ...` that trusts everyone.

Records are taken without a look at their sizes and counts, and batches acknowledged when they are applied,
not when they are on disk. For `benchmarks.guard_costs` only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from perfd.aggregator.ingest.ingest import Ingest
from perfd.cli import main
from perfd.wire import agent_messages, convert


def _unbounded(values: Any, _: object) -> Any:  # noqa: ANN401  (of any record)
    return values


def _keep_at_once(
    ingest: Any,  # noqa: ANN401  (its private parts)
    agent: Any,  # noqa: ANN401
    sequence: int,
    statements: list[Any],
    stored: Callable[[], None],
    _unix_ns: int,
) -> None:
    agent.stored_sequence = max(agent.stored_sequence, sequence)
    ingest._history.submit(statements, lambda: None)  # noqa: SLF001
    stored()


if __name__ == "__main__":
    convert._bounded = convert.bounded_entries = _unbounded  # noqa: SLF001
    convert._MAX_TEXT_CHARS = sys.maxsize  # noqa: SLF001
    agent_messages.check_record_count = lambda _: None
    Ingest._keep = _keep_at_once  # type: ignore[method-assign]  # noqa: SLF001
    sys.exit(main())

"""What of a capture may leave its node, and the folder that it is put into.

Only copies leave that hold nothing of the job's environment, arguments and output and nothing of other
processes. What cannot be rewritten so (.nsys-rep, .qdstrm, pickles, what servers wrote) stays where it is,
unless the operator says otherwise.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfd.capture.identity import check_capture_id, slug
from perfd.capture.redact import redact
from perfd.capture.redact_json import redact_stacks, redact_trace
from perfd.errors import CaptureError
from perfd.model import CaptureFile

_REDACTIONS: Mapping[str, Callable[[Path, Path], None]] = {
    ".sqlite": redact,
    ".stacks.json": redact_stacks,
    ".trace.json": redact_trace,
}


def redacted_copy(source: Path, target: Path) -> None:
    """Write a copy that may leave the node, mode 0600; the original stays as it is.

    Raises `CaptureError` when that is not possible, and leaves nothing then.
    """
    redaction = _redaction(source)
    if redaction is None:
        kinds = ", ".join(_REDACTIONS)
        raise CaptureError(f"{source} cannot be redacted and must not leave the node; {kinds} can.")
    if not source.is_file():
        raise CaptureError(f"There is no file {source}.")
    _write(target, lambda: redaction(source, target))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """A folder that others read too, as one of a cluster's file systems."""

    directory: Path
    node: str
    """Stands before the name of each file, since the ranks of all nodes come together in one folder."""
    unredacted: bool = False
    """Whether files that cannot be redacted go there too, with all secrets in them."""

    def share(self, capture_id: str, files: Sequence[CaptureFile]) -> tuple[list[CaptureFile], str]:
        """Put copies of a capture's files there: those that are new, and why others are not."""
        folder = self.directory / check_capture_id(capture_id)
        shared: list[CaptureFile] = []
        problems: list[str] = []
        for source in [Path(file.path) for file in files]:
            target = folder / f"{slug(self.node)}-{source.name}"
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                if self._put(source, target):
                    shared.append(CaptureFile(path=str(target), size_bytes=target.stat().st_size))
            except CaptureError as error:
                problems.append(f"Not shared: {error}")
            except OSError as error:
                problems.append(f"Not shared: {target}: {error.strerror}.")
        return shared, " ".join(dict.fromkeys(problems))

    def _put(self, source: Path, target: Path) -> bool:
        """Whether the file may go there; it is there then, once for all outcomes that name it."""
        if target.exists():
            return True
        if _redaction(source) is not None:
            redacted_copy(source, target)
        elif self.unredacted:
            _write(target, lambda: shutil.copyfile(source, target))
        else:
            return False
        return True


def _redaction(source: Path) -> Callable[[Path, Path], None] | None:
    return next((how for suffix, how in _REDACTIONS.items() if source.name.endswith(suffix)), None)


def _write(target: Path, write: Callable[[], object]) -> None:
    """Let a new private file be written; it is gone when that fails."""
    try:
        target.touch(mode=0o600, exist_ok=False)
    except OSError as error:
        raise CaptureError(f"Cannot make {target}: {error.strerror}.") from error
    try:
        write()
    except BaseException:
        target.unlink()
        raise

"""What an agent may say about a capture: of its own ranks, and of files in the capture's folder only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

from perfd.capture.object_keys import is_of_node
from perfd.capture.policy.capture_record import Capture
from perfd.capture.selection import slug
from perfd.errors import RefusedError
from perfd.model import CaptureFilesRemoved, CaptureStatus


def is_folder_of(folder: PurePath, capture_id: str) -> bool:
    """Whether agents may name it as the folder of a capture."""
    return folder.is_absolute() and ".." not in folder.parts and folder.name == capture_id


def checked_status(capture: Capture | None, node: str, status: CaptureStatus) -> CaptureStatus:
    """The status, without files that are not in the capture's folder; raises `RefusedError` for a stranger's.

    The status of a capture that is forgotten is not checked: nothing follows from it.
    """
    if capture is None:
        return status
    ranks = {who.rank for who in capture.participants if who.node == node}
    if not ranks:
        raise RefusedError("A node that is not part of the capture answered it.")
    foreign = {who.rank for who in capture.participants if who.node != node and who.rank is not None}
    if foreign & set(status.ranks) - ranks:
        raise RefusedError("A node answered a capture for ranks of another node.")
    files = tuple(
        file for file in status.files if is_folder_of(PurePath(file.path).parent, status.capture_id)
    )
    return status if len(files) == len(status.files) else replace(status, files=files)


def check_upload(capture: Capture | None, node: str, key: str | None) -> None:
    """Raises `RefusedError` unless the node may have uploaded the file at `key`, below our own URL.

    A reader would get a link to a file of another node or capture. Elsewhere than where the aggregator reads
    (`key` is None), there is no link.
    """
    if capture is None:
        return
    if node not in {who.node for who in capture.participants}:
        raise RefusedError("A node that is not part of the capture uploaded a file.")
    if key is not None and not is_of_node(key, capture.object_folder, capture.capture_id, node):
        raise RefusedError("A node named a stored file that is not its own.")


def check_removed(capture: Capture | None, node: str, gone: CaptureFilesRemoved) -> None:
    """Raises `RefusedError` unless the files are the node's, or copies in the folder of all nodes."""
    if capture is None:
        return
    nodes = {who.node for who in capture.participants}
    copies = tuple(f"{slug(one)}-" for one in nodes)
    if node not in nodes and not all(PurePath(path).name.startswith(copies) for path in gone.paths):
        raise RefusedError("A node said that files of another node were removed.")

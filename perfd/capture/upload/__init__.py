"""Uploads captured files from a node to object storage, and tries again until they are there."""

from perfd.capture.upload.pending_uploads import UploadQueue
from perfd.capture.upload.uploader import Uploader

__all__ = ["UploadQueue", "Uploader"]

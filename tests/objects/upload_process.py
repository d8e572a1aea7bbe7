"""An agent's uploads in a process that a test can kill; its arguments are directory, endpoint and keys."""

import sys
import threading
from pathlib import Path

from perfd.capture.upload import Uploader, UploadQueue
from perfd.clock import SystemClock
from perfd.config import ObjectStorageConfig
from perfd.net import ObjectStorage

directory, endpoint, keys = sys.argv[1:]
config = ObjectStorageConfig(url="s3://traces/perfd", endpoint=endpoint, credentials_file=keys)
Uploader(
    ObjectStorage(config, key="capture.object_storage"),
    UploadQueue(Path(directory), "n1"),
    clock=SystemClock(),
    report=lambda upload: print(upload.url or upload.reason, flush=True),  # noqa: T201
    unredacted=True,
    first_wait_s=0.01,
).start()
threading.Event().wait()

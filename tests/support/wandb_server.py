"""A server that the real `wandb` client takes for Weights & Biases, and a reader of the files it leaves.

The server knows the few GraphQL operations that the client needs to open or resume a run, to stream
history, to alert and to store an artifact. It remembers what it was told, and can be told to misbehave.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import struct
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Self

_BLOCK_BYTES, _HEADER_BYTES = 32768, 7


@dataclass(slots=True)
class StoredRun:
    """What the server was told of one run."""

    run_id: str
    project: str = ""
    group: str = ""
    job_type: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    opened: int = 0
    """How often a client opened it; more than once is a resume, or a second writer."""
    exit_codes: list[int] = field(default_factory=list)
    alerts: list[dict[str, Any]] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    """The API keys with which it was written."""


@dataclass(slots=True)
class StoredArtifact:
    """What the server was told of one artifact; without files until it is committed."""

    name: str
    kind: str
    run_id: str
    files: dict[str, bytes] = field(default_factory=dict)


class WandbServer:
    """Runs from entry to exit of a `with` block, on loopback.

    `status` other than 200 is what every request is answered with; while `hang` is set, none is answered.
    """

    def __init__(self) -> None:
        self.runs: dict[str, StoredRun] = {}
        self.artifacts: list[StoredArtifact] = []
        self.files: dict[str, bytes] = {}
        """What was uploaded, by name."""
        self.operations: list[str] = []
        self.status = 200
        self.hang = False
        self._lock = threading.Lock()
        self._released = threading.Event()

    def __enter__(self) -> Self:
        handler = type("_BoundHandler", (_Handler,), {"store": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """For `base_url`."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def wait_if_hanging(self) -> bool:
        """Whether the request is never to be answered; comes back at the server's end."""
        if self.hang:
            self._released.wait()
        return self.hang

    def graphql(self, query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one operation."""
        found = re.search(r"(?:query|mutation)\s+(\w+)", query)
        operation = found.group(1) if found else ""
        with self._lock:
            self.operations.append(operation)
            answer = getattr(self, f"_{_snake(operation)}", None)
            return answer(variables) if answer else {}

    def stream(self, run_id: str, body: Mapping[str, Any], key: str) -> None:
        """Lines of history and summary of a run."""
        with self._lock:
            run = self.runs.setdefault(run_id, StoredRun(run_id))
            run.keys.add(key)
            for name, content in (body.get("files") or {}).items():
                lines = [json.loads(line) for line in content.get("content", ())]
                if name == "wandb-history.jsonl":
                    run.rows.extend(lines)
                elif name == "wandb-summary.json" and lines:
                    run.summary = lines[-1]
            if body.get("complete"):
                run.exit_codes.append(body.get("exitcode") or 0)

    def upload(self, name: str, body: bytes) -> None:
        """A file."""
        with self._lock:
            self.files[name] = body

    def _viewer(self, _: Mapping[str, Any]) -> dict[str, Any]:
        viewer = {"id": "u1", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}
        return {"viewer": viewer, "serverInfo": None}

    def _server_features_query(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"serverInfo": {"features": []}}

    def _run_resume_status(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        run = self.runs.get(variables["name"])
        bucket = None if run is None else _resumable(run)
        return {"model": {"id": "p1", "name": "p", "entity": {"id": "e1", "name": "me"}, "bucket": bucket}}

    def _upsert_bucket(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        run = self.runs.setdefault(variables["name"], StoredRun(variables["name"]))
        inserted = not run.opened
        run.opened += 1
        run.project = variables.get("project") or run.project
        run.group = variables.get("groupName") or run.group
        run.job_type = variables.get("jobType") or run.job_type
        run.tags = variables.get("tags") or run.tags
        run.config |= json.loads(variables.get("config") or "{}")
        bucket = {
            "id": run.run_id,
            "name": run.run_id,
            "displayName": variables.get("displayName") or run.run_id,
            "description": "",
            "config": "{}",
            "sweepName": None,
            "historyLineCount": len(run.rows),
            "project": {"id": "p1", "name": run.project, "entity": {"id": "e1", "name": "me"}},
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}

    def _create_run_files(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in variables["files"]]
        return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}

    def _artifact_type(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"project": None}

    def _create_artifact(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        asked = variables["input"]
        number = len(self.artifacts)
        self.artifacts.append(
            StoredArtifact(
                asked["artifactCollectionName"], asked["artifactTypeName"], asked.get("runName") or ""
            )
        )
        sequence = {"latestArtifact": None}
        return {
            "createArtifact": {
                "artifact": {"id": str(number), "state": "PENDING", "artifactSequence": sequence}
            }
        }

    def _create_artifact_files(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        nodes: list[dict[str, Any]] = [
            {
                "storagePath": f"stored/{asked['name']}",
                "uploadUrl": f"{self.url}/upload/{asked['name']}",
                "uploadHeaders": [],
                "uploadMultipartUrls": None,
                "artifact": {"id": asked["artifactID"]},
            }
            for asked in variables["input"]["artifactFiles"]
        ]
        return {"createArtifactFiles": {"files": {"edges": [{"node": node} for node in nodes]}}}

    def _create_artifact_manifest(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        return {"createArtifactManifest": self._manifest(variables["artifactID"])}

    def _update_artifact_manifest(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        return {"updateArtifactManifest": self._manifest(variables["artifactManifestID"])}

    def _manifest(self, artifact_id: str) -> dict[str, Any]:
        file = {"id": artifact_id, "uploadUrl": f"{self.url}/upload/manifest.json", "uploadHeaders": []}
        return {"artifactManifest": {"id": artifact_id, "file": file}}

    def _commit_artifact(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        artifact = self.artifacts[int(variables["artifactID"])]
        manifest = json.loads(self.files["manifest.json"])
        artifact.files = {name: self.files[name] for name in manifest["contents"]}
        return {"commitArtifact": {"artifact": {"id": variables["artifactID"], "digest": "d"}}}

    def _notify_scriptable_run_alert(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        self.runs[variables["runName"]].alerts.append(dict(variables))
        return {"notifyScriptableRunAlert": {"success": True}}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    store: ClassVar[WandbServer]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._body()
        self._answer({})

    def do_PUT(self) -> None:
        body = self._body()
        if self.store.status == 200 and not self.store.hang:
            self.store.upload(self.path.removeprefix("/upload/"), body)
        self._answer({})

    def do_POST(self) -> None:
        body = self._body()
        if self.store.status != 200 or self.store.wait_if_hanging():
            self._answer({})
        elif self.path.startswith("/graphql"):
            asked = json.loads(body)
            self._answer({"data": self.store.graphql(asked["query"], asked.get("variables") or {})})
        elif self.path.startswith("/files/"):
            # /files/ENTITY/PROJECT/RUN/file_stream
            _, _, given = self.headers.get("Authorization", "").partition("Basic ")
            _, _, key = base64.b64decode(given).decode().partition(":")
            self.store.stream(self.path.split("/")[4], json.loads(body), key)
            self._answer({"exitcode": None, "limits": {}})
        else:
            self._answer({})

    def log_message(self, *_: object) -> None:
        """Silent."""

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _answer(self, document: Mapping[str, Any]) -> None:
        if self.store.wait_if_hanging():
            return
        data = json.dumps(document).encode()
        self.send_response(self.store.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def read_records(path: Path) -> Iterator[bytes]:
    """The records of a `.wandb` file, protobufs of `wandb_internal.Record`: a log in LevelDB's format.

    https://github.com/google/leveldb/blob/main/doc/log_format.md, behind a header of seven bytes.
    """
    data = path.read_bytes()
    if data[:4] != b":W&B":
        raise ValueError(f"{path} is not a .wandb file.")
    position, parts = _HEADER_BYTES, b""
    while position + _HEADER_BYTES <= len(data):
        left = _BLOCK_BYTES - position % _BLOCK_BYTES
        if left < _HEADER_BYTES:
            position += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, position)
        parts += data[position + _HEADER_BYTES : position + _HEADER_BYTES + size]
        position += _HEADER_BYTES + size
        # 1: whole, 2: first, 3: middle, 4: last.
        if kind in {1, 4}:
            yield parts
            parts = b""


def _resumable(run: StoredRun) -> dict[str, Any]:
    return {
        "name": run.run_id,
        "historyLineCount": len(run.rows),
        "logLineCount": 0,
        "eventsLineCount": 0,
        "historyTail": json.dumps([json.dumps(row) for row in run.rows[-1:]]),
        "eventsTail": "[]",
        "summaryMetrics": json.dumps(run.summary),
        "config": "{}",
        "tags": [],
        "wandbConfig": '{"t": 1}',
    }


def _snake(name: str) -> str:
    return re.sub(r"(?<=.)([A-Z])", r"_\1", name).lower()

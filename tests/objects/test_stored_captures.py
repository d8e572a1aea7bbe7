"""Captures whose files are in object storage: their report, their links, and who gets them."""

import gzip
import hashlib
import json
import urllib.error
import urllib.request

import pytest
from exporters.support import until
from objects.object_server import (
    ACCESS_KEY,
    NEEDS_SERVER,
    SECRET_KEY,
    credentials,
    faulty,
    opened,
)

from perfd.aggregator.aggregator import Aggregator
from perfd.capture.capture_routes import StartBody
from perfd.config import (
    AggregatorConfig,
    CaptureProfile,
    HistoryConfig,
    ObjectReadingConfig,
    ObjectStorageConfig,
)
from perfd.model import (
    CaptureFile,
    CaptureFileUpload,
    CaptureRequest,
    CaptureState,
    CaptureStatus,
    CaptureTool,
    JobOrigin,
    RankPlacement,
    TrainingStep,
)
from perfd.net import ObjectStorage
from tests.support.fake_agent import FakeAgent
from tests.support.traces import COMPUTE, Op, kineto, write_json

pytestmark = [pytest.mark.system, pytest.mark.timeout(900), NEEDS_SERVER]

WITHIN_S = 600.0
"""Reports are made at the lowest priority."""
TRACE = kineto([Op(COMPUTE, 0, 60)], steps={1: (0, 100)})
KEY = "gpu1/team/llm/1/c1/rank-0/node=node0/rank0.trace.json"


@pytest.fixture
def bucket(server, tmp_path):
    keys = str(credentials(tmp_path / "credentials"))
    # A prefix for each test, because they share one server.
    return {"url": f"s3://traces/{tmp_path.name}", "endpoint": server.url, "credentials_file": keys}


@pytest.fixture
def running(bucket, tmp_path):
    started = []

    def start(**changes):
        config = AggregatorConfig(
            listen="127.0.0.1:0",
            http_listen="127.0.0.1:0",
            history=HistoryConfig(path=str(tmp_path / "history.sqlite")),
            capture_profiles={"default": CaptureProfile(tool="kineto")},
            object_storage=ObjectReadingConfig(**{**bucket, **changes.pop("storage", {})}),
            **changes,
        )
        started.append(Aggregator(config, manual=True))
        started[-1].start()
        return started[-1]

    yield start
    for one in started:
        one.stop()


def captured(aggregator, agent, path, *, upload=True):
    """Let an agent capture, which leaves one file on a node that the aggregator cannot read."""
    agent.hello(tools=(CaptureTool.KINETO,))
    agent.send(
        JobOrigin(job="llm", cluster="gpu1", namespace="team"),
        TrainingStep(job="llm", step=1, step_time_s=1.0),
        RankPlacement(job="llm", rank=0, gpu=0),
    )
    aggregator.tick()
    aggregator.start_capture(StartBody(job="llm", id="c1"))
    while not isinstance(request := agent.receive(), CaptureRequest):
        pass
    assert request.object_folder == "gpu1/team/llm/1"
    file = CaptureFile(path=path, size_bytes=1000, upload=upload)
    agent.say(
        CaptureStatus(capture_id="c1", state=CaptureState.DONE, time_unix_ns=1, ranks=(0,), files=(file,))
    )
    until(lambda: aggregator.captures()[0]["state"] == "done")


PATH = "/var/lib/perfd/captures/c1/rank0.trace.json"


def stored(bucket, tmp_path, key=KEY, document=TRACE):
    """What an agent says once it stored a trace there."""
    trace = write_json(tmp_path / "rank0.trace.json", document)
    storage = ObjectStorage(ObjectStorageConfig(**bucket), key="capture.object_storage")
    storage.put(key, trace)
    return CaptureFileUpload(
        capture_id="c1",
        path=PATH,
        url=storage.url_of(key),
        size_bytes=trace.stat().st_size,
        sha256=hashlib.sha256(trace.read_bytes()).hexdigest(),
        time_unix_ns=2,
    )


def asked(aggregator, path, token=None, *, follow=True):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"http://{aggregator.http_address}{path}", headers=headers)
    opener = urllib.request.build_opener() if follow else urllib.request.build_opener(_Stay)
    try:
        with opener.open(request, timeout=60) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


def file_of(aggregator):
    return aggregator.captures()[0]["ranks"][0]["files"][0]


def test_traces_of_object_storage_get_a_report_there_and_it_outlives_the_aggregator(
    bucket, running, tmp_path
):
    aggregator = running()
    with FakeAgent(aggregator.grpc_address) as agent:
        captured(aggregator, agent, PATH)
        assert file_of(aggregator)["upload"]["state"] == "waiting"
        failed = CaptureFileUpload(capture_id="c1", path=PATH, reason="The bucket is full.", time_unix_ns=1)
        agent.send(failed)
        assert (file_of(aggregator)["upload"]["state"], file_of(aggregator)["upload"]["reason"]) == (
            "failed",
            "The bucket is full.",
        )
        agent.send(stored(bucket, tmp_path))
        # Late and repeated, as after a restart of the agent.
        agent.send(failed)
        assert file_of(aggregator)["upload"]["state"] == "stored"
    until(
        lambda: (aggregator.captures()[0]["report"] or {}).get("perfetto_path") is not None, within_s=WITHIN_S
    )
    report = aggregator.captures()[0]["report"]
    folder = f"{bucket['url']}/gpu1/team/llm/1/c1/report"
    assert report["path"] == f"{folder}/perfd.report.html"
    assert report["perfetto_path"] == f"{folder}/perfd.perfetto-trace.gz"
    assert report["words"].startswith("The host may limit this job.")
    aggregator.stop()
    again = running()
    status, body, _ = asked(again, "/reports/captures/c1")
    assert (status, b"The host may limit this job" in body) == (200, True)
    assert json.loads(asked(again, "/api/v1/traces/c1")[1])["schema"] == "perfd.trace/2"
    status, body, headers = asked(again, "/api/v1/traces/c1/perfetto")
    assert b"GPU stream" in gzip.decompress(body)
    assert "c1.perfetto-trace.gz" in headers["Content-Disposition"]
    for path in (report["path"], report["perfetto_path"]):
        name = path.partition("/c1/")[2]
        assert asked(again, f"/api/v1/captures/c1/files/{name}")[0] == 200
    assert again.captures()[0]["report"] == report


def test_a_link_is_for_readers_and_a_short_time_and_nothing_else_knows_it(bucket, running, tmp_path):
    token = tmp_path / "token"
    token.write_text("read-me")
    aggregator = running(http_read_token_file=str(token), storage={"link_lifetime_s": 60.0})
    with FakeAgent(aggregator.grpc_address) as agent:
        captured(aggregator, agent, PATH)
        agent.send(stored(bucket, tmp_path))
    link = file_of(aggregator)["upload"]["link"]
    assert link == "/api/v1/captures/c1/files/rank-0/node%3Dnode0/rank0.trace.json"
    assert asked(aggregator, link)[0] == 401
    status, _, headers = asked(aggregator, link, "read-me", follow=False)
    assert (status, headers["Cache-Control"]) == (302, "no-store")
    assert "X-Amz-Expires=60" in headers["Location"]
    assert json.loads(opened(headers["Location"])[0]) == TRACE
    answer = json.loads(asked(aggregator, f"{link}?link=1", "read-me")[1])
    assert answer["lifetime_s"] == 60.0
    assert json.loads(opened(answer["url"])[0]) == TRACE
    for name in ("rank-0/node%3Dnode-2/rank0.trace.json", "..%2F..%2Fc2/x", "", "report/perfd.report.htm"):
        status, body, _ = asked(aggregator, f"/api/v1/captures/c1/files/{name}", "read-me")
        assert status == 404, body
    shown = json.dumps(aggregator.captures()).encode()
    shown += asked(aggregator, "/metrics", "read-me")[1]
    aggregator.stop()
    shown += b"".join(path.read_bytes() for path in tmp_path.glob("history.sqlite*"))
    for secret in (SECRET_KEY, ACCESS_KEY, "X-Amz-Signature"):
        assert secret.encode() not in shown


def test_a_node_cannot_give_readers_a_link_to_a_file_of_another_node_or_job(bucket, running, tmp_path):
    aggregator = running()
    with FakeAgent(aggregator.grpc_address) as agent:
        captured(aggregator, agent, PATH)
        for key in (
            KEY.replace("node0", "node2"),
            KEY.replace("team", "other"),
            KEY.replace("c1", "c2"),
            "gpu1/team/llm/1/c1/report/perfd.report.html",
        ):
            agent.send(stored(bucket, tmp_path, key))
            assert file_of(aggregator)["upload"]["state"] == "waiting", key


def test_a_trace_that_is_not_what_its_node_uploaded_gets_no_report(bucket, running, tmp_path):
    aggregator = running()
    with FakeAgent(aggregator.grpc_address) as agent:
        captured(aggregator, agent, PATH)
        said = stored(bucket, tmp_path)
        changed = write_json(tmp_path / "changed.json", TRACE)
        changed.write_bytes(changed.read_bytes().replace(b"60", b"61", 1))
        ObjectStorage(ObjectStorageConfig(**bucket), key="capture.object_storage").put(KEY, changed)
        agent.send(said)
    until(lambda: aggregator.captures()[0]["report"] is not None, within_s=WITHIN_S)
    report = aggregator.captures()[0]["report"]
    assert report["path"] is None
    assert "has changed since its node uploaded it: no report is made." in report["words"]


def test_traces_that_are_too_large_are_not_fetched(bucket, running, tmp_path):
    aggregator = running(storage={"report_max_bytes": 10})
    with FakeAgent(aggregator.grpc_address) as agent:
        captured(aggregator, agent, PATH)
        agent.send(stored(bucket, tmp_path))
    until(lambda: aggregator.captures()[0]["report"] is not None, within_s=WITHIN_S)
    assert "more than object_storage.report_max_bytes" in aggregator.captures()[0]["report"]["words"]


def test_a_real_agent_uploads_what_a_rule_captured_once_the_bucket_takes_it(
    node,
    make_system,
    server,
    bucket,
):
    system = make_system(ranks="all")
    aggregator = system.aggregator()
    with faulty(server.url) as proxy:
        proxy.fault = "full"
        agent = system.agent(object_storage=ObjectStorageConfig(**{**bucket, "endpoint": proxy.url}))

        def uploads(capture):
            return [
                file["upload"]
                for who in capture["ranks"]
                for file in who["files"]
                if file["path"].endswith(".sqlite")
            ]

        failed = system.until(
            aggregator,
            lambda found: uploads(found) and all(one["state"] == "failed" for one in uploads(found)),
        )
        assert "the bucket is full: raise its quota" in uploads(failed)[0]["reason"]
        proxy.release()
        capture = system.until(
            aggregator,
            lambda found: uploads(found) and all(one["state"] == "stored" for one in uploads(found)),
        )
        agent.stop()
    unredacted = [
        file for who in capture["ranks"] for file in who["files"] if file["path"].endswith(".nsys-rep")
    ]
    assert unredacted
    assert all(file["upload"] is None for file in unredacted), "what cannot be redacted stays on its node"
    storage = ObjectStorage(ObjectStorageConfig(**bucket), key="object_storage")
    for one in uploads(capture):
        content = storage.read(storage.key_of(one["url"]), one["size_bytes"])
        assert hashlib.sha256(content).hexdigest() == one["sha256"]


def test_the_page_of_a_capture_has_the_link_and_says_why_there_is_none(
    bucket,
    running,
    tmp_path,
    tab,
):
    aggregator = running()
    page = f"http://{aggregator.http_address}/jobs/llm/captures/c1"
    with FakeAgent(aggregator.grpc_address) as agent:
        captured(aggregator, agent, PATH)
        reason = "The bucket is full: raise its quota."
        agent.send(CaptureFileUpload(capture_id="c1", path=PATH, reason=reason, time_unix_ns=1))
        tab.open(page, "document.querySelector('#ranks .state.failed')")
        assert f"not uploaded {reason}" in tab.text("#ranks")
        agent.send(stored(bucket, tmp_path))
        tab.open(page, "document.querySelector('#ranks a.stored')")
    link = tab.run("document.querySelector('#ranks a.stored').href")
    assert json.loads(opened(link)[0]) == TRACE

"""Any member of a group answers for all jobs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from perfd.aggregator import Aggregator
from perfd.aggregator.group.group_pages import GroupPages
from perfd.aggregator.group.partition_config import check_group, group_hosts, partition_config
from perfd.aggregator.group.peers import FORWARDED, Peers
from perfd.aggregator.group.sharing import GroupView, Holder
from perfd.aggregator.partition import Partition
from perfd.aggregator.web_api.fleet_pages import fleet_page, with_stored
from perfd.aggregator.web_api.html_pages import html_response
from perfd.cli import main
from perfd.config import AggregatorConfig, HistoryConfig, NatsGroupConfig, NatsListenConfig, RulesConfig
from perfd.errors import ConfigError, PerfdError
from perfd.model import TrainingStep
from perfd.net import Handler, HttpServer, Request, Response, route_of
from perfd.web.live_updates import Live
from perfd.wire.subjects import partition_of
from tests.support.page_server import fleet_row

PARTITIONS = 3
AWAY = "http://away"
JOB_OF_0 = next(name for name in map(str, range(99)) if partition_of(name, PARTITIONS) == 0)
JOB_OF_1 = next(name for name in map(str, range(99)) if partition_of(name, PARTITIONS) == 1)
GROUP = AggregatorConfig(
    history=HistoryConfig(path="/somewhere/history.sqlite"),
    nats=NatsListenConfig(servers=["nats://127.0.0.1:4222"], group=NatsGroupConfig()),
)


class FakePeers:
    """Holds partition 1; nothing answers at `AWAY`."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(
        self, address: str, request: Request, query: Mapping[str, str], holds: Callable[[], bool]
    ) -> Response:
        assert holds()
        if address == AWAY:
            raise PerfdError("It does not answer.")
        self.asked.append(f"{request.path} {query['partition']}")
        handler, _ = route_of(PARTITION[1], request.path)
        assert handler is not None
        return handler(request)


def document(number: int) -> dict[str, Any]:
    return {
        "schema": "perfd.jobs/2",
        "jobs": [{"name": f"job{number}"}],
        "alerts": [{"name": f"alert{number}"}],
        "count": 1,
        "agents": [
            {"agent_id": "both", "node": "n0", "connected": number == 1, "silent_s": 9.0 - number},
            {"agent_id": f"only{number}", "node": f"n{number}", "connected": True, "silent_s": 0.0},
        ],
    }


def answer(number: int) -> Handler:
    return lambda _request: Response(body=json.dumps(document(number)).encode())


def partition(number: int) -> dict[str, Handler]:
    """The handlers of a partition with three jobs, every second of all."""
    names = [f"job{at}" for at in range(number, 6, 2)]
    fleet = {"jobs": [fleet_row(name) for name in names], "alerts": []}

    def jobs(request: Request) -> Response:
        asked = {name: text for name, text in request.query.items() if name != "job"}
        found = [row["name"] for row in fleet_page(fleet, asked)["jobs"]]
        wanted = request.query.get("job")
        if wanted is None and MOVED in found:
            found.remove(MOVED)
        entries = [{"name": name, "of": number} for name in found if wanted in {None, name}]
        return Response(body=json.dumps({"schema": "perfd.jobs/2", "jobs": entries}).encode())

    same = ("/api/v1/agents", "/api/v1/alerts", "/api/v1/jobs/", "/metrics", "/reports/pictures/")
    return {
        **dict.fromkeys(same, answer(number)),
        "/api/v1/fleet": lambda _: Response(body=json.dumps(fleet).encode()),
        "/api/v1/jobs": jobs,
        "/api/v1/status": lambda _: Response(body=b"{}"),
    }


MOVED = "job3"
"""It is in its partition's rows, and no longer where they said when the entries are asked for."""
PARTITION = {number: partition(number) for number in (0, 1)}


def pages(holders: Mapping[int, str] | None = None) -> tuple[GroupPages, FakePeers]:
    """Pages of an aggregator that holds partition 0; a peer holds 1, and the holder of 2 does not answer."""
    holders = {0: "http://here", 1: "http://peer", 2: AWAY} if holders is None else holders
    view = GroupView(
        connected=True,
        members={"here": "http://here:9460"},
        holders={n: Holder(member=at, address=at, epoch=n + 1) for n, at in holders.items()},
    )
    peers = FakePeers()
    own = PARTITION[0]
    return GroupPages(lambda: view, lambda n: own if n == 0 else None, peers, PARTITIONS, Live()), peers  # type: ignore[arg-type]


def get(found: GroupPages, path: str, headers: Mapping[str, str] | None = None, **query: str) -> Response:
    handler, rest = route_of(found.routes(), path)
    assert handler is not None
    return handler(Request(method="GET", path=path, rest=rest, query=query, headers=headers or {}))


def test_lists_have_the_jobs_of_all_partitions_and_say_which_are_missing() -> None:
    found = json.loads(get(pages()[0], "/api/v1/jobs").body)
    assert [job["name"] for job in found["jobs"]] == [f"job{at}" for at in range(6)]
    assert found["missing_partitions"] == [2]


@pytest.mark.parametrize("offset", range(7))
@pytest.mark.parametrize("down", ["", "1"])
def test_a_page_of_jobs_is_one_of_all_partitions(offset: int, down: str) -> None:
    asked = {"sort": "name", "down": down, "offset": str(offset), "limit": "2"}
    found = json.loads(get(pages()[0], "/api/v1/jobs", **asked).body)
    order = [f"job{at}" for at in range(6)][:: -1 if down else 1]
    assert [job["name"] for job in found["jobs"]] == order[offset : offset + 2]
    assert found["page"] == {"offset": offset, "limit": 2, "matched": 6, "total": 6}


def ended(number: int) -> dict[str, Handler]:
    """A partition with a job in memory, and in history every second of six; `job9` is in both histories."""
    fleet = {
        "jobs": [fleet_row(f"here{number}", state="ended", ended=True)],
        "alerts": [],
        "agents": {"count": 0, "connected": 0},
        "servers": {"count": 0, "up": 0},
        "stored": True,
    }
    of_history = [
        {"name": f"job{at}", "silent_s": float(at), "of": number}
        for at in (*range(number, 6, 2), 9 + number / 2)
    ]
    of_history[-1]["name"] = "job9"

    def stored(words: Sequence[str], *, offset: int, limit: int) -> tuple[list[Any], int]:
        found = [row for row in of_history if all(word in row["name"] for word in words)]
        return found[offset : offset + limit], len(found)

    def page(request: Request) -> Response:
        if not request.query:
            return Response(body=json.dumps(fleet).encode())
        return Response(
            body=json.dumps(with_stored(fleet_page(fleet, request.query), request.query, stored)).encode()
        )

    return {"/api/v1/fleet": page, "/api/v1/jobs": page}


@pytest.mark.parametrize("path", ["/api/v1/fleet", "/api/v1/jobs"])
def test_ended_jobs_of_all_histories_follow_those_in_memory(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (0, 1):
        monkeypatch.setitem(PARTITION, number, ended(number))
    found = pages()[0]
    every = ["here0", "here1", *(f"job{at}" for at in range(6)), "job9"]
    for offset in range(len(every)):
        page = json.loads(get(found, path, state="ended", offset=str(offset), limit="3").body)
        assert [row["name"] for row in page["jobs"]] == every[offset : offset + 3]
        assert page["missing_partitions"] == [2]
    whole = json.loads(get(found, path, state="ended").body)
    assert [row["name"] for row in whole["jobs"]] == every
    assert whole["page"]["matched"] == len(every)
    assert whole["jobs"][-1]["of"] == 0
    some = json.loads(get(found, path, state="ended", q="job3").body)
    assert [row["name"] for row in some["jobs"]] == ["job3"]
    assert [row["name"] for row in json.loads(get(found, path).body)["jobs"]] == ["here0", "here1"]


def test_a_job_is_found_by_name_in_its_partition() -> None:
    found = json.loads(get(pages()[0], "/api/v1/jobs", job="job1").body)
    assert found["jobs"] == [{"name": "job1", "of": 1}]


def test_a_node_with_jobs_of_two_partitions_is_one_agent() -> None:
    agents = json.loads(get(pages()[0], "/api/v1/agents").body)["agents"]
    assert [(agent["agent_id"], agent["connected"]) for agent in agents] == [
        ("both", True),
        ("only0", True),
        ("only1", True),
    ]


def test_a_job_is_asked_of_the_aggregator_that_has_its_partition() -> None:
    found, peers = pages()
    assert json.loads(get(found, f"/api/v1/jobs/{JOB_OF_0}").body) == document(0)
    assert peers.asked == []
    assert json.loads(get(found, f"/api/v1/jobs/{JOB_OF_1}/steps").body) == document(1)
    assert get(found, f"/reports/pictures/{JOB_OF_1}.png").status == 200
    assert peers.asked == [f"/api/v1/jobs/{JOB_OF_1}/steps 1", f"/reports/pictures/{JOB_OF_1}.png 1"]


def test_a_request_that_was_sent_on_is_not_sent_on_again() -> None:
    found, peers = pages()
    assert get(found, "/api/v1/jobs", {FORWARDED: "1"}, partition="1").status == 503
    assert peers.asked == []


def test_a_partition_without_an_aggregator_is_an_error_that_passes() -> None:
    found, _ = pages({0: "http://here"})
    assert get(found, "/metrics", partition="1").status == 503
    assert get(found, "/metrics", partition="3").status == 400
    assert get(found, "/metrics").status == 404
    assert json.loads(get(found, "/metrics", partition="0").body) == document(0)
    assert "partitions 1, 2" in json.loads(get(found, "/api/v1/status").body)["history_problem"]


@pytest.mark.parametrize("path", ["/api/v1/captures", "/api/v1/silences"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"labels": 1}',
        b"[" * 100_000,
        b'{"job": "\\ud800", "labels": {"job": "\\ud800"}}',
    ],
)
def test_a_body_that_names_no_job_is_refused(path: str, body: bytes) -> None:
    handler, rest = route_of(pages()[0].routes(), path)
    assert handler is not None
    assert handler(Request(method="POST", path=path, rest=rest, query={}, body=body)).status == 400


def test_a_limit_is_that_of_alerts_as_without_a_group() -> None:
    found = pages()[0]
    assert get(found, "/api/v1/jobs", limit="none").status == 400
    alerts = json.loads(get(found, "/api/v1/alerts", limit="1").body)
    assert (alerts["alerts"], alerts["count"]) == ([{"name": "alert0"}], 2)


def test_a_report_of_another_aggregator_can_run_nothing_either() -> None:
    sent = html_response(b"<p>A job</p>")
    server = HttpServer("127.0.0.1:0", {"/reports/jobs/": lambda _: sent})
    try:
        request = Request(method="GET", path="/reports/jobs/a", rest="a", query={})
        found = Peers(30.0, None).ask(f"http://{server.address}", request, {}, lambda: True)
    finally:
        server.close()
    assert found.body == sent.body
    assert found.headers == {name.lower(): value for name, value in sent.headers.items()}


def test_a_paused_holder_is_not_waited_for_once_another_one_has_its_partition() -> None:
    asked, moved = threading.Event(), threading.Event()

    def paused(_: Request) -> Response:
        asked.set()
        moved.wait(60.0)
        return Response(body=b"old")

    old = HttpServer("127.0.0.1:0", {"/api/v1/alerts": paused})
    new = HttpServer("127.0.0.1:0", {"/api/v1/alerts": lambda _: Response(body=b"new")})
    holders = [
        Holder(member=name, address=f"http://{one.address}", epoch=n)
        for n, (name, one) in enumerate([("old", old), ("new", new)])
    ]
    found = GroupPages(
        lambda: GroupView(holders={0: holders[asked.is_set()]}),
        lambda _: None,
        Peers(60.0, None),
        PARTITIONS,
        Live(),
    )
    try:
        assert get(found, "/api/v1/alerts", partition="0").body == b"new"
    finally:
        moved.set()
        old.close()
        new.close()
        found.close()


def test_prometheus_finds_each_partition() -> None:
    targets = json.loads(get(pages()[0], "/api/v1/http_sd").body)
    assert targets[1] == {
        "targets": ["peer"],
        "labels": {
            "__scheme__": "http",
            "__metrics_path__": "/metrics",
            "__param_partition": "1",
            "perfd_partition": "1",
        },
    }


def test_status_lists_who_has_which_partition(capsys: pytest.CaptureFixture[str]) -> None:
    found, _ = pages({0: "here", 2: "here"})
    server = HttpServer("127.0.0.1:0", found.routes())
    try:
        assert main(["status", "--cluster", "--aggregator", server.address]) == 1
        shown = capsys.readouterr().out
        assert "0, 2" in shown
        assert "Partitions without an aggregator now: 1." in shown
        assert main(["status", "--cluster", "--json", "--aggregator", server.address]) == 1
        assert json.loads(capsys.readouterr().out)["schema"] == "perfd.group/1"
    finally:
        server.close()


def test_status_names_the_server_of_a_stream_that_brings_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = {"history_problem": None, "jobs_problem": None, "stream_problem": "Restart server s1."}
    monkeypatch.setitem(PARTITION[0], "/api/v1/status", lambda _: Response(body=json.dumps(problem).encode()))
    found, _ = pages({0: "here", 1: "peer", 2: AWAY})
    server = HttpServer("127.0.0.1:0", found.routes())
    try:
        assert main(["status", "--cluster", "--aggregator", server.address]) == 0
        assert "Restart server s1." in capsys.readouterr().out
    finally:
        server.close()


def test_status_says_that_an_aggregator_is_not_in_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    server = HttpServer("127.0.0.1:0", {})
    try:
        assert main(["status", "--cluster", "--aggregator", server.address]) == 2
        assert "is not in a group: its configuration has no nats.group" in capsys.readouterr().err
    finally:
        server.close()


def test_a_group_serves_every_path_of_an_aggregator() -> None:
    one = Aggregator(
        AggregatorConfig(listen="127.0.0.1:0", http_listen=None, rules=RulesConfig(builtin=False)),
        manual=True,
    )
    one.start()
    try:
        assert one.handlers.keys() <= pages()[0].routes().keys()
    finally:
        one.stop()


def test_partitions_export_under_their_own_names() -> None:
    config = partition_config(GROUP, 3)
    assert (config.http_listen, config.health_listen) == (None, None)
    assert config.exporters.remote_write.external_labels == {"perfd_partition": "3"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"history": HistoryConfig()}, "configure `history`"),
        ({"http_listen": None}, "configure `http_listen`"),
        ({"nats": NatsListenConfig(servers=[], group=NatsGroupConfig(partitions=0))}, "from 1 to 1024"),
        ({"nats": NatsListenConfig(servers=[], group=NatsGroupConfig(lease_s=0.9))}, "at least 1.0"),
        ({"nats": NatsListenConfig(servers=[], group=NatsGroupConfig(address="here:1"))}, "http://HOST"),
        ({"http_listen": "0.0.0.0:9460"}, "group.address: required"),
        ({"http_listen": "[::]:9460"}, "group.address: required"),
    ],
)
def test_a_group_that_cannot_work_is_refused(change: dict[str, Any], sentence: str) -> None:
    from msgspec.structs import replace  # noqa: PLC0415

    check_group(GROUP)
    with pytest.raises(ConfigError, match=sentence):
        check_group(replace(GROUP, **change))


def test_others_may_call_an_aggregator_by_its_address() -> None:
    from msgspec.structs import replace  # noqa: PLC0415

    group = NatsGroupConfig(address="https://Perfd1.example.com:9460")
    config = replace(GROUP, http_hosts=["perfd.example.com"], nats=NatsListenConfig(servers=[], group=group))
    assert group_hosts(config) == ["perfd.example.com", "perfd1.example.com"]
    assert group_hosts(GROUP) == []


def test_a_partition_takes_the_records_of_its_own_jobs() -> None:
    one = Partition(number=0, count=PARTITIONS, epoch=1, held=lambda: True, serves=lambda: True)
    own, other = TrainingStep(job=JOB_OF_0, step=1), TrainingStep(job=JOB_OF_1, step=1)
    assert one.own([own, other]) == [own]

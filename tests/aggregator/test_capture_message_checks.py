"""Who may answer a capture, and with which files."""

import json

import pytest
from aggregator.support import aggregator, step

from perfd.capture.capture_routes import StartBody
from perfd.model import (
    CaptureFile,
    CaptureFilesRemoved,
    CaptureRequest,
    CaptureState,
    CaptureStatus,
    CaptureTool,
    RankPlacement,
)
from tests.support.fake_agent import FakeAgent


class Captured:
    """A job of two nodes with a rank each, of whom a capture is asked, and a third node."""

    def __init__(self, running):
        self.running = running
        self.agents = [FakeAgent(running.grpc_address, node=f"n{n}", agent_id=f"a{n}") for n in range(3)]
        for rank, agent in enumerate(self.agents):
            agent.hello(tools=[CaptureTool.PY_SPY])
            agent.send(step(1) if rank == 0 else RankPlacement(job=f"other{rank}", rank=0, pid=1))
            if rank < 2:
                agent.send(RankPlacement(job="llm", rank=rank, gpu=0, pid=rank + 1))
        running.tick()
        running.start_capture(StartBody(job="llm", profile="hang", id="c1"))
        for agent in self.agents[:2]:
            assert isinstance(agent.receive(), CaptureRequest)

    def answers(self, node, *ranks, files=(), state=CaptureState.DONE):
        said = [CaptureFile(path=path, size_bytes=1) for path in files]
        agent = self.agents[node]
        agent.say(CaptureStatus(capture_id="c1", state=state, time_unix_ns=1, ranks=ranks, files=said))
        agent.send(RankPlacement(job=f"other{node}", rank=0, pid=9))

    def ranks(self):
        (capture,) = [one for one in self.running.captures() if one["id"] == "c1"]
        return {
            one["rank"]: (one["node"], one["state"], [f["path"] for f in one["files"]])
            for one in capture["ranks"]
        }

    def refused(self):
        return self.running.state.audit.counts().get("capture", 0)


@pytest.fixture
def captured(tmp_path):
    with aggregator(audit_file=str(tmp_path / "audit.jsonl")) as running:
        made = Captured(running)
        yield made
        for agent in made.agents:
            agent.__exit__()


def test_a_node_that_was_not_asked_answers_for_nobody(captured):
    captured.answers(2, 0, files=["/x/c1/rank0.json"])
    captured.answers(2, 7)
    assert {rank: one[1] for rank, one in captured.ranks().items()} == {0: "requested", 1: "requested"}
    assert captured.refused() == 2


def test_a_node_does_not_answer_for_the_ranks_of_another_one(captured):
    captured.answers(0, 1)
    assert captured.ranks()[1][1] == "requested"
    captured.answers(0, 0)
    assert captured.ranks()[0][1] == "done"
    assert captured.refused() == 1


def test_only_files_in_the_captures_folder_are_believed(captured):
    good = "/var/lib/perfd/captures/c1/rank0.stacks.json"
    captured.answers(
        0, 0, files=["/etc/passwd", good, "/x/c1/../../etc/shadow", "c1/relative", "/x/c1/deeper/f"]
    )
    assert captured.ranks()[0] == ("n0", "done", [good])
    assert captured.refused() == 1


def test_a_node_says_nothing_of_the_removal_of_anothers_files(captured):
    path = "/var/lib/perfd/captures/c1/rank0.stacks.json"
    captured.answers(0, 0, files=[path])
    captured.answers(1, 1, state=CaptureState.REFUSED)
    gone = CaptureFilesRemoved(capture_id="c1", paths=(path,), reason="gone", time_unix_ns=1)
    captured.agents[2].send(gone)
    assert captured.refused() == 1
    assert "removed" not in json.dumps(captured.running.captures()).replace('"removed": null', "")
    captured.agents[0].send(gone)
    assert captured.refused() == 1


def test_the_audit_log_has_each_capture_from_its_beginning_to_its_end(captured, tmp_path):
    captured.answers(0, 0)
    captured.answers(1, 1)
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(line["action"], line["capture"], line["nodes"]) for line in lines] == [
        ("capture requested", "c1", "n0 n1"),
        ("capture ended", "c1", "n0 n1"),
    ]

"""An aggregator's HTTP interface made of fixed answers: the page in every state and at any size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import msgspec

from perfd.aggregator.web_api.charts import peer_matrices, rank_columns, without_ranks
from perfd.aggregator.web_api.fleet_pages import fleet_page, with_limits
from perfd.analysis.findings import Kind
from perfd.capture.capture_routes import capture_routes
from perfd.capture.policy.capture_json import to_json
from perfd.capture.policy.capture_record import Capture
from perfd.model import CaptureTool
from perfd.net.http import Handler, HttpServer, Request, Response
from perfd.web.live_updates import Live
from perfd.web.page_routes import page_routes

Json = Mapping[str, Any]
_SCHEMAS = {
    **{name: f"perfd.{name}/1" for name in ("agents", "alerts", "nodes", "ranks", "series", "status")},
    **{name: f"perfd.{name}/2" for name in ("fleet", "jobs", "servers")},
}


class StandIn:
    """Serves the page over answers that may be changed while it runs; close it in the end."""

    def __init__(self, *, viewers: int = 8) -> None:
        self.answers: dict[str, Any] = {
            "fleet": {"jobs": [], "alerts": [], "agents": _none("connected"), "servers": _none("up")},
            "jobs": {"jobs": []},
            "alerts": {"alerts": []},
            "captures": {"captures": []},
            "servers": {"servers": []},
            "agents": {"agents": []},
            "nodes": {"nodes": []},
            "status": {"unready": None, "history_problem": None},
        }
        """By path below /api/v1; an object is encoded, a `Response` is sent as it is."""
        self.live = Live(viewers=viewers, heartbeat_s=0.1)
        self.asked: list[str] = []
        """Paths below /api/v1, in the order in which they were asked for."""
        self.posted: list[tuple[str, Any, str | None]] = []
        """What was posted: path, decoded body and the header `Authorization`."""
        self._server = HttpServer("127.0.0.1:0", self._routes())
        self.url = f"http://{self._server.address}"

    def close(self) -> None:
        """Stop serving."""
        self.live.close()
        self._server.close()

    def _routes(self) -> dict[str, Handler]:
        return {
            **page_routes(lambda _: True),
            "/api/v1/events": self._connect,
            "/api/v1/": self._answer,
        }

    def _connect(self, request: Request) -> Response:
        return self.live.connect(request)

    def _answer(self, request: Request) -> Response:
        self.asked.append(request.rest)
        if request.method == "POST":
            self.posted.append((request.rest, json.loads(request.body), request.headers.get("authorization")))
        answer = self.answers.get(request.rest)
        if request.rest == "jobs" and not isinstance(answer, Response):
            jobs = [with_limits(one) if "bottleneck" in one else one for one in answer["jobs"]]
            answer = {"jobs": list(map(without_ranks, jobs)) if request.query.get("short") == "1" else jobs}
        if answer is None and request.rest.endswith(("/ranks", "/peers")):
            answer = self._of_ranks(request)
        if isinstance(answer, Response):
            return answer
        if request.rest == "alerts":
            state = request.query.get("state")
            alerts = [one for one in answer["alerts"] if state in {None, one["state"]}]
            answer = {"alerts": alerts[: int(request.query.get("limit", 10_000))], "count": len(alerts)}
        if request.method == "GET" and request.rest.startswith("captures"):
            routes = capture_routes(
                captures=lambda: self.answers["captures"]["captures"],
                start=_never,
                cancel=_never,
                link=_never,
            )
            path = "/api/v1/captures" + "/" * (request.rest != "captures")
            return routes[path](replace(request, rest=request.rest.removeprefix("captures").lstrip("/")))
        if answer is None:
            return Response(status=404, body=b'{"error": "There is no such job."}')
        if request.rest == "fleet":
            answer = fleet_page(answer, request.query)
        schema = _SCHEMAS.get(request.rest.rpartition("/")[2])
        if schema is not None:
            answer = {"schema": schema, **answer}
        return Response(body=msgspec.json.encode(answer))

    def _of_ranks(self, request: Request) -> Any:
        """What the aggregator says of a job's ranks, made of its entry; None if there is no such job."""
        jobs = self.answers["jobs"]
        name = unquote(request.rest.split("/")[1])
        known = [] if isinstance(jobs, Response) else [one for one in jobs["jobs"] if one["name"] == name]
        if not known:
            return None
        return (
            rank_columns(known[0], request.query)
            if request.rest.endswith("/ranks")
            else peer_matrices(known[0])
        )


def _never(*_: object) -> Json:
    raise AssertionError


def capture_entry(capture_id: str, **changes: Any) -> dict[str, Any]:
    """An entry of schema perfd.capture/1: an open capture of job `llama` started by hand, with `changes`."""
    capture = Capture(
        capture_id=capture_id, job="llama", tool=CaptureTool.NSYS, profile="default", requested_unix_s=1e9,
        start_unix_s=1e9, max_duration_s=30.0,
    )  # fmt: skip
    return {**to_json(capture), **changes}


def rank_entry(rank: int, state: str, **changes: Any) -> dict[str, Any]:
    """One rank of a capture."""
    times = dict.fromkeys(("armed_unix_s", "started_unix_s", "stopped_unix_s", "ended_unix_s", "whole_steps"))
    return {"rank": rank, "node": "n", "state": state, "reason": "", **times, "files": [], **changes}


def alert_entry(name: str, **changes: Any) -> dict[str, Any]:
    """An entry of schema perfd.alerts/1: a firing alert of job `llama`, with `changes`."""
    return {
        "job": "llama", "name": name, "labels": {"alertname": name, "perfd_job": "llama", "rank": "3"},
        "annotations": {"summary": "Rank 3 is slow.", "runbook_url": f"/runbooks/{name}"}, "state": "firing",
        "value": 1.7, "active_at_unix_s": 1e9, "fired_at_unix_s": 1e9 + 5, "resolved_at_unix_s": None,
        "first_step": 2, "captures": [], **changes,
    }  # fmt: skip


def _none(state: str) -> dict[str, int]:
    return {"count": 0, state: 0}


def fleet_row(name: str, **changes: Any) -> dict[str, Any]:
    """A row of schema perfd.fleet/2: a job that runs well, but for what is changed."""
    nothing = {"kind": "compute_bound", "gain_ratio": None, "culprits": [], "culprit_count": 0}
    return {
        "name": name,
        "framework": "megatron-lm",
        "parallel": {"world_size": 8, "tp": 1, "pp": 1, "dp": 8},
        "nodes": 1,
        "ended": False,
        "silent_s": 0.4,
        "step": 100,
        "train_steps": 1000,
        "step_time_s": 0.5,
        "tokens_per_s": 100_000.0,
        "mfu_ratio": 0.4,
        "communication_ratio": 0.05,
        "stall_ratio": None,
        "firing_alerts": 0,
        **changes,
        "bottleneck": _in_words(changes.get("bottleneck", nothing)),
    }


def _in_words(finding: dict[str, Any]) -> dict[str, Any]:
    """The finding with its kind in words, as the aggregator adds them."""
    kind = finding["kind"]
    words = Kind(kind) if kind in set(Kind) else None
    return {
        "name": words.short_name if words else kind,
        "sentence": words.sentence if words else kind,
        **finding,
    }


def job_entry(name: str, *, ranks: int = 8, slow: int | None = None, **changes: Any) -> dict[str, Any]:
    """An entry of schema perfd.jobs/2, whose rank `slow` holds the others up."""
    gpus = [
        {
            "node": f"node{rank // 8}",
            "gpu": str(rank % 8),
            "rank": rank,
            "sm_active_ratio": 0.72,
            # A little noise, as there always is.
            "tensor_active_ratio": 0.38 if rank == slow else 0.2 + 0.002 * (rank % 5),
            "dram_active_ratio": 0.4,
            "power_w": 650.0 if rank == slow else 570.0 + rank % 7,
        }
        for rank in range(ranks)
    ]
    kind = "compute_bound" if slow is None else "straggler"
    culprits = [] if slow is None else [{"kind": "rank", "id": str(slow)}]
    found = {"kind": kind, "certainty": "measured", "culprits": culprits, "evidence": []}
    return {
        "name": name,
        "ended": False,
        "silent_s": 0.4,
        "parallel": {"world_size": ranks},
        "steps": {"count": 100, "last": 100},
        "step_time_s": {"median": 0.5, "p95": 0.6},
        "efficiency": {"mfu_ratio": 0.4},
        "gpus": gpus,
        **changes,
        "bottleneck": _in_words(changes.get("bottleneck", found)),
    }


def node_entry(
    name: str,
    *,
    job: str = "llama",
    evidence: str = "Rank 3 is late.",
    suspect: bool = False,
    suspect_ratio: float | None = 0.5,
) -> dict[str, Any]:
    """A node of /api/v1/nodes."""
    incident = {
        "kind": "straggler", "gpu": "3", "job": job, "attempt": 1, "first_unix_s": 1e9, "last_unix_s": 1e9,
        "seen_s": 60.0, "count": 0, "lost_gpu_h": 1.5, "evidence": evidence,
    }  # fmt: skip
    command = f"scontrol update NodeName={name} State=DRAIN Reason=x"
    return {
        "node": name, "kind": "NVIDIA H200", "scheduler": "slurm", "suspect": suspect,
        "suspect_ratio": suspect_ratio, "lost_gpu_h": 1.5, "jobs": 2, "incidents": 2.0,
        "expected_incidents": 0.1, "observed_gpu_h": 100.0, "peers": 7, "gpus": [], "incident_count": 2,
        "incident_list": [incident, incident], "reason": "perfd: GPU 3: straggler x2 in 2 jobs",
        "advice": [{"scheduler": "slurm", "command": command}] if suspect else [], "drain": None,
    }  # fmt: skip


def server_entry(name: str, **changes: Any) -> dict[str, Any]:
    """An entry of schema perfd.servers/2: docs/serving.md's worked example, but for what is changed."""
    unknown = dict.fromkeys(("p50", "p90", "p99", "mean"))
    return {
        "node": "n1",
        "server": name,
        "engine": "sglang",
        "version": "0.5.9",
        "model": "meta-llama/Llama-3.3-70B-Instruct",
        "role": "both",
        "parallel": {"tp": 8, "pp": 1, "dp": 1},
        "up": True,
        "silent_s": 0.4,
        "running_requests": 200.0,
        "queued_requests": 12.0,
        "kv_cache_used_ratio": 0.71,
        "prefix_hit_ratio": 0.22,
        "generation_tokens_per_s": 15_300.0,
        "prompt_tokens_per_s": 21_000.0,
        "gpu_busy_ratio": 0.97,
        "cuda_graph_ratio": 1.0,
        "replica_imbalance_ratio": None,
        "ttft_s": {"p50": 0.31, "p90": 0.72, "p99": 1.4, "mean": 0.38},
        "tpot_s": {"p50": 0.012, "p90": 0.019, "p99": 0.045, "mean": 0.014},
        "e2e_s": unknown,
        "queue_s": unknown,
        "theory": {
            "tpot_floor_s": 0.0052,
            "tpot_theory_s": 0.0121,
            "ttft_floor_s": 0.071,
            "memory_bandwidth_used_ratio": 0.84,
        },
        "findings": [],
        **changes,
    }


VIEWS = (
    *("/", "/servers", "/agents", "/nodes", "/alerts"),
    *("/jobs/llama", "/jobs/llama/captures", "/jobs/llama/captures/c1"),
)


def everything(stand_in: StandIn) -> None:
    """An aggregator with something on every view."""
    finding = {
        "kind": "straggler", "certainty": "measured", "gain_ratio": 0.2,
        "culprits": [{"kind": "rank", "id": "3"}],
        "evidence": ["The tensor cores of rank 3 are active 1.9 times as much."], "advice": "Look.",
    }  # fmt: skip
    job = job_entry(
        "llama",
        slow=3,
        bottleneck=finding,
        breakdown={"forward_ratio": 0.3, "backward_ratio": 0.4, "unattributed_ratio": None},
        communication={"share_ratio": 0.1},
        optimizer={"share_ratio": 0.1},
        pipeline={
            "bubble_theory_ratio": 0.4,
            "stages": [{"stage": 0, "stall_ratio": 0.5}],
            "source": "timers",
        },
    )
    capture = capture_entry(
        "c1", state="refused", reason="No nsys.", ended_unix_s=1e9 + 3,
        correction={"words": "On n, this shows what is missing:", "command": "perfd doctor", "node": "n"},
        ranks=[rank_entry(0, "refused", reason="No nsys.", ended_unix_s=1e9 + 1)],
    )  # fmt: skip
    agent = {
        "agent_id": "a", "node": "n1", "connected": False, "version": "1", "batches": 1, "silent_s": 100,
        "dropped_records": 0, "clock_offset_s": 0, "capture_tools": ["nsys"],
    }  # fmt: skip
    knob = {"name": "PerfdServerQueue", "summary": "12 requests wait", "advice": "Admit more."}
    worst = {"kind": "straggler", "gain_ratio": 0.2, "culprits": [{"kind": "rank", "id": "3"}]}
    stand_in.answers["fleet"]["jobs"] = [
        fleet_row("llama", bottleneck=worst, firing_alerts=2),
        fleet_row("b", ended=True),
        fleet_row("c", silent_s=99.0),
    ]
    stand_in.answers |= {
        "jobs": {"jobs": [job]},
        "alerts": {"alerts": [alert_entry("Slow"), alert_entry("Old", state="resolved")]},
        "silences": {"available": True, "reason": None},
        "captures": {"captures": [capture]},
        "servers": {"servers": [server_entry("h:1", findings=[knob]), server_entry("h:2", up=False)]},
        "agents": {"agents": [agent, {**agent, "node": "n2", "connected": True}]},
        "nodes": {"nodes": [node_entry("n1", suspect=True), node_entry("n2")]},
        "jobs/llama/series": {
            "step": [1, 2, 3], "time_unix_s": [1, 2, 3], "step_time_s": [9, 1, 1], "mfu_ratio": [0.1] * 3,
            "step_time_max_s": [9, 1, 1], "steady": [False, True, True],
        },
    }  # fmt: skip

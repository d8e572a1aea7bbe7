"""The scheduler's lines in SGLang's log, 0.2.15 to 0.5.23, as a snapshot.

A line consists of `key: value` parts whose order and number change between releases, so they are read by
key. A decode line covers the newest 40 steps of one data-parallel rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from perfd.analysis.serving import Engine, ReplicaLoad, ServerSetup, Snapshot, from_arguments
from perfd_collectors.serving.log_text import ANSI, arguments, number, parts

_LINE = re.compile(
    r"\[(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(?:\.\d{1,9})?(?P<ranks>[^\[\]]{0,80})\] (?P<rest>.*)"
)
_OTHER_LOGGER = re.compile(r"(?:^|\s)(?P<ranks>)(?P<rest>(?:(?:Prefill|Decode) batch[ .,]|server_args=).*)")
"""Without SGLang's own time, as where its lines go through the logger of NVIDIA Dynamo."""
_BATCH = re.compile(
    r"(?P<kind>Prefill|Decode) batch(?: ?\[\d+\])?(?:\(mixed #running-req: \d+\))?[.,] ?(?P<parts>.*)"
)
_REPLICA = re.compile(r"\bDP(\d+)\b")
_ARGUMENTS = "server_args=ServerArgs("


@dataclass(slots=True)
class _Replica:
    """The newest values of one data-parallel rank."""

    running: float | None = None
    queued: float | None = None
    used: float | None = None
    tokens: float | None = None
    generation_per_s: float | None = None
    input_per_s: float | None = None
    accept_length: float | None = None
    accept_ratio: float | None = None
    graph: bool | None = None
    occupancy: float | None = None
    tflops_per_s: float | None = None
    read_gb_per_s: float | None = None


@dataclass(slots=True)
class SglangLog:
    """Parses lines in order; `snapshot` and `info` hold the resulting state."""

    info: ServerSetup | None = None
    lines: int = 0
    unrecognized: int = 0
    """Lines that look like a batch and could not be parsed."""
    _replicas: dict[str, _Replica] = field(default_factory=dict)
    _new_tokens: float = 0.0
    _cached_tokens: float = 0.0

    def line(self, text: str) -> bool:
        """Parse one line; returns whether it is SGLang's."""
        if " batch" not in text and _ARGUMENTS not in text:
            return False
        plain = ANSI.sub("", text)
        match = _LINE.search(plain) or _OTHER_LOGGER.search(plain)
        if match is None:
            return False
        start = match["rest"].find(_ARGUMENTS)
        if start >= 0:
            self.info = from_arguments(arguments(match["rest"][start + len(_ARGUMENTS) :]))
            return True
        batch = _BATCH.match(match["rest"])
        if batch is None:
            self.unrecognized += match["rest"].startswith(("Prefill batch", "Decode batch"))
            return False
        self._apply(batch["kind"], _rank(match["ranks"]), parts(batch["parts"]))
        return True

    def snapshot(self) -> Snapshot | None:
        """What the log shows of SGLang now, of all ranks; None before the first batch."""
        if not self.lines:
            return None
        replicas = list(self._replicas.values())
        prompt = self._new_tokens + self._cached_tokens
        used = [replica.used for replica in replicas if replica.used is not None]
        notes = []
        if self.unrecognized:
            notes.append(f"{self.unrecognized} lines look like batches of an unknown SGLang version.")
        return Snapshot(
            engine=Engine.SGLANG,
            version=self.info.version if self.info else None,
            model=self.info.model if self.info else None,
            replicas=tuple(
                ReplicaLoad(
                    replica=name,
                    running_requests=replica.running,
                    queued_requests=replica.queued,
                    kv_cache_used_ratio=replica.used,
                )
                for name, replica in sorted(self._replicas.items())
            ),
            running_requests=_sum([replica.running for replica in replicas]),
            queued_requests=_sum([replica.queued for replica in replicas]),
            kv_cache_used_ratio=sum(used) / len(used) if used else None,
            kv_used_tokens=_sum([replica.tokens for replica in replicas]),
            kv_total_tokens=self.info.kv_total_tokens if self.info else None,
            reported_generation_tokens_per_s=_sum([replica.generation_per_s for replica in replicas]),
            reported_prompt_tokens_per_s=_sum([replica.input_per_s for replica in replicas]),
            reported_prefix_hit_ratio=self._cached_tokens / prompt if prompt else None,
            reported_flops_per_s_per_gpu=_scaled(_mean([one.tflops_per_s for one in replicas]), 1e12),
            reported_read_bytes_per_s_per_gpu=_scaled(_mean([one.read_gb_per_s for one in replicas]), 1e9),
            spec_accept_length=_mean([replica.accept_length for replica in replicas]),
            spec_accept_ratio=_mean([replica.accept_ratio for replica in replicas]),
            cuda_graph_ratio=_mean(
                [None if replica.graph is None else float(replica.graph) for replica in replicas]
            ),
            forward_occupancy_ratio=_mean([replica.occupancy for replica in replicas]),
            reports_rates=True,
            notes=tuple(notes),
        )

    def _apply(self, kind: str, rank: str, values: Mapping[str, str]) -> None:
        running = number(values.get("#running-req"))
        if running is None:
            self.unrecognized += 1
            return
        self.lines += 1
        replica = self._replicas.setdefault(rank, _Replica())
        replica.running = running
        replica.queued = _known(number(values.get("#queue-req")), replica.queued)
        usages = [number(value) for key, value in values.items() if _is_usage(key)]
        replica.used = max((value for value in usages if value is not None), default=replica.used)
        if kind == "Prefill":
            self._new_tokens += number(values.get("#new-token")) or 0.0
            self._cached_tokens += number(values.get("#cached-token")) or 0.0
            replica.input_per_s = _known(
                number(values.get("input throughput (token/s)")), replica.input_per_s
            )
            return
        tokens = number(values.get("#token", values.get("#full token")))
        replica.tokens = _known(tokens, replica.tokens)
        replica.generation_per_s = number(values.get("gen throughput (token/s)"))
        replica.accept_length = number(values.get("accept len"))
        replica.accept_ratio = number(values.get("accept rate"))
        replica.occupancy = number(values.get("fwd occupancy"))
        replica.tflops_per_s = number(values.get("est. decode TFLOPS/s (per GPU)"))
        replica.read_gb_per_s = number(values.get("est. read BW (GB/s per GPU)"))
        graph = next((value for key, value in values.items() if key.endswith(" graph")), None)
        replica.graph = {"True": True, "False": False}.get(graph or "")


def _is_usage(key: str) -> bool:
    return key.endswith(" usage") and not key.startswith(("pre-allocated", "gpu token"))


def _rank(ranks: str) -> str:
    match = _REPLICA.search(ranks)
    return match[1] if match else ""


def _known(new: float | None, old: float | None) -> float | None:
    return old if new is None else new


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

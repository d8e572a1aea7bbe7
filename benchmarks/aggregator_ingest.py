"""What one aggregator process takes in: many agents over real gRPC, one process each side.

    python -m benchmarks.aggregator_ingest [--nodes 1000] [--jobs 10] [--seconds 20] [--history] [--json]

Each fake agent sends what an agent of a node with 8 GPUs sends each second: 8 rows of GPU
columns, one of host columns, the health of its collectors, and on one node of each job a
progress line. First as fast as it goes (batches and samples a second until every batch is
acknowledged), then at one batch a second and node (the aggregator's share of a core, with
its rounds of analysis and rules, and its resident memory). With `--history` batches are acknowledged
after their rows are on disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio

from perfd.collector_loading import load_collector
from perfd.model import (
    Batch,
    CollectorHealth,
    GpuInfo,
    Hello,
    JobDescription,
    ParallelLayout,
    RankPlacement,
    Record,
    SampleTable,
    Scope,
    TrainingStep,
    Welcome,
)
from perfd.wire.convert import decode_aggregator_message, encode_message
from perfd.wire.service import CLIENT_OPTIONS, CONNECT_METHOD

SCHEMA = "perfd.bench.ingest/1"
_GPUS = 8
_GPU_COLUMNS = [column.name for column in load_collector("nvml").columns if column.scope is Scope.GPU]
_NODE_COLUMNS = [f"host_metric{number}_bytes" for number in range(40)]
_CHANNELS = 8
_WINDOW = 16


def measure(
    nodes: int = 1000,
    jobs: int = 10,
    seconds: int = 20,
    burst: int = 20,
    *,
    history: bool = False,
    tls: bool = False,
    guards: bool = True,
) -> dict[str, Any]:
    """Throughput of a burst, then the cost of one batch a second and node; `tls` is mutual.

    Without `guards` it is the aggregator of `benchmarks.without_guards`.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        _AggregatorProcess(Path(folder), history=history, tls=tls, guards=guards) as aggregator,
    ):
        return asyncio.run(_drive(aggregator, nodes, jobs, seconds, burst))


class _AggregatorProcess:
    """`perfd aggregator` on free ports, as a process of its own."""

    def __init__(self, folder: Path, *, history: bool, tls: bool, guards: bool) -> None:
        self._folder = folder
        self._program = "perfd" if guards else "benchmarks.without_guards"
        self._config: dict[str, Any] = (
            {"history": {"path": str(folder / "history.sqlite")}} if history else {}
        )
        self.credentials: grpc.ChannelCredentials | None = None
        if tls:
            self._config["tls"] = _certificates(folder)
            self._config["agent_identity"] = {"any_node": ["*"]}
            files = (folder / name for name in ("ca.pem", "peer.key", "peer.pem"))
            self.credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", self._program, "aggregator", "--log-json"]
        config = self._folder / "aggregator.yaml"
        # JSON is YAML.
        config.write_text(json.dumps(self._config), encoding="utf-8")
        command += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--config", str(config)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        lines = (json.loads(line) for line in self._process.stderr)
        line = next(line for line in lines if "agents" in line)
        self.grpc, self.http = line["agents"], line["http"]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def values(self) -> dict[str, float]:
        """Series without labels of its page."""
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=60) as response:
            page = response.read().decode()
        rows = (line.split(" ") for line in page.splitlines() if not line.startswith("#") and "{" not in line)
        return {name: float(value) for name, value in rows}

    def cpu_s(self) -> float:
        """CPU time that the process has used."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii")
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _certificates(folder: Path) -> dict[str, str]:
    """The configuration of TLS with a certificate that both sides show, and the authority that signed it."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    peer = ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1,DNS:agent"]
    for name, more in (("ca", []), ("peer", [*peer, "-addext", "basicConstraints=CA:FALSE"])):
        files = ["-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}"]
        command = ["openssl", "req", "-x509", *key, *files, *more]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
    return {
        "certificate": str(folder / "peer.pem"),
        "key": str(folder / "peer.key"),
        "ca": str(folder / "ca.pem"),
    }


class _FakeAgent:
    """One stream; batches are shared between agents, since only the Hello names the node."""

    def __init__(self, call: grpc.aio.StreamStreamCall[bytes, bytes], number: int) -> None:
        self._call = call
        self._number = number
        self.acknowledged = 0

    async def hello(self) -> None:
        hello = Hello(
            agent_id=f"agent-{self._number}",
            node=f"node{self._number:05d}",
            perfd_version="bench",
            sent_unix_ns=time.time_ns(),
            first_sequence=1,
        )
        await self._call.write(encode_message(hello))
        assert isinstance(decode_aggregator_message(await self._call.read()), Welcome)

    async def send(self, batches: list[bytes]) -> None:
        """Send batches, at most a window ahead of what is acknowledged, until all are."""
        last = self.acknowledged + len(batches)
        sent = self.acknowledged
        for data in batches:
            while sent - self.acknowledged >= _WINDOW:
                await self._read()
            await self._call.write(data)
            sent += 1
        while self.acknowledged < last:
            await self._read()

    async def _read(self) -> None:
        message = decode_aggregator_message(await self._call.read())
        self.acknowledged = message.sequence  # type: ignore[union-attr]


async def _drive(
    aggregator: _AggregatorProcess, nodes: int, jobs: int, seconds: int, burst: int
) -> dict[str, Any]:
    options = [("grpc.use_local_subchannel_pool", 1), *CLIENT_OPTIONS]
    credentials = aggregator.credentials
    channels = [
        grpc.aio.insecure_channel(aggregator.grpc, options=options)
        if credentials is None
        else grpc.aio.secure_channel(aggregator.grpc, credentials, options=options)
        for _ in range(_CHANNELS)
    ]
    agents = [
        _FakeAgent(channels[number % _CHANNELS].stream_stream(CONNECT_METHOD)(), number)
        for number in range(nodes)
    ]
    await asyncio.gather(*(agent.hello() for agent in agents))
    firsts = [encode_message(_first_batch(number, jobs, nodes)) for number in range(nodes)]
    await asyncio.gather(*(agent.send([data]) for agent, data in zip(agents, firsts, strict=True)))

    batches = {kind: [_batch(2 + i, jobs, kind) for i in range(burst + seconds)] for kind in range(-1, jobs)}
    before, before_cpu_s, started_s = aggregator.values(), aggregator.cpu_s(), time.perf_counter()
    await asyncio.gather(*(agent.send(batches[_kind(n, jobs)][:burst]) for n, agent in enumerate(agents)))
    took_s, burst_cpu_s = time.perf_counter() - started_s, aggregator.cpu_s() - before_cpu_s
    await asyncio.sleep(2)
    after = aggregator.values()

    before_cpu_s, started_s = aggregator.cpu_s(), time.perf_counter()
    late_s = 0.0
    for second in range(seconds):
        await asyncio.gather(
            *(agent.send([batches[_kind(n, jobs)][burst + second]]) for n, agent in enumerate(agents))
        )
        ahead_s = started_s + second + 1 - time.perf_counter()
        late_s = max(late_s, -ahead_s)
        await asyncio.sleep(max(0.0, ahead_s))
    paced_s, paced_cpu_s = time.perf_counter() - started_s, aggregator.cpu_s() - before_cpu_s
    last = aggregator.values()
    for channel in channels:
        await channel.close()
    samples = last["perfd_samples_total"] - before["perfd_samples_total"]
    count = last["perfd_batches_total"] - before["perfd_batches_total"]
    rounds = last["perfd_ticks_total"] - after["perfd_ticks_total"]
    return {
        "schema": SCHEMA,
        "nodes": nodes,
        "jobs": jobs,
        "samples_per_batch": samples / count,
        "batch_bytes": len(batches[-1][0]),
        "burst_batches_per_s": nodes * burst / took_s,
        "burst_samples_per_s": nodes * burst / took_s * samples / count,
        "burst_cpu_s_per_batch": burst_cpu_s / (nodes * burst),
        "paced_cpu_ratio": paced_cpu_s / paced_s,
        "paced_late_s": late_s,
        "round_s": (last["perfd_tick_seconds_total"] - after["perfd_tick_seconds_total"]) / max(1.0, rounds),
        "rules_s": (
            last["perfd_rule_evaluation_seconds_total"] - after["perfd_rule_evaluation_seconds_total"]
        )
        / max(1.0, rounds),
        "ingest_s_per_batch": (last["perfd_ingest_seconds_total"] - before["perfd_ingest_seconds_total"])
        / count,
        "resident_bytes": last["process_resident_memory_bytes"],
        "lost_batches": last["perfd_lost_batches_total"],
    }


def _kind(node: int, jobs: int) -> int:
    """The job whose progress a node tells, -1 for none."""
    return node if node < jobs else -1


def _first_batch(number: int, jobs: int, nodes: int) -> Batch:
    job = f"job{number % jobs}"
    ranks = _GPUS * nodes // jobs
    layout = ParallelLayout(world_size=ranks, tp=8, pp=1, dp=max(1, ranks // 8))
    records: list[Record] = [
        *(GpuInfo(index=gpu, name="NVIDIA H200", memory_bytes=141 << 30) for gpu in range(_GPUS)),
        *(
            RankPlacement(job=job, rank=number // jobs * _GPUS + gpu, gpu=gpu, world_size=ranks)
            for gpu in range(_GPUS)
        ),
        JobDescription(job=job, framework="megatron-lm", parallel=layout),
    ]
    return Batch(sequence=1, sent_unix_ns=time.time_ns(), records=records)


def _batch(sequence: int, jobs: int, kind: int) -> bytes:
    now_ns = time.time_ns() + sequence * 1_000_000_000
    records: list[Record] = [
        SampleTable(
            scope=Scope.GPU,
            times_unix_ns=[now_ns] * _GPUS,
            entities=[str(gpu) for gpu in range(_GPUS)],
            columns={name: [_reading(name, gpu) for gpu in range(_GPUS)] for name in _GPU_COLUMNS},
        ),
        SampleTable(
            scope=Scope.NODE,
            times_unix_ns=[now_ns],
            entities=[""],
            columns={name: [float(sequence)] for name in _NODE_COLUMNS},
        ),
        *(
            CollectorHealth(collector=name, time_unix_ns=now_ns, duration_s=0.01, success=True)
            for name in ("nvml", "host", "ranks", "training_log")
        ),
    ]
    if 0 <= kind < jobs:
        records.append(
            TrainingStep(
                job=f"job{kind}", step=sequence, time_unix_ns=now_ns, step_time_s=1.0, tokens_per_s=1e6
            )
        )
    return encode_message(Batch(sequence=sequence, sent_unix_ns=now_ns, records=records))


def _reading(column: str, gpu: int) -> float:
    """What a healthy, busy GPU says, so that no alert fires."""
    for ending, value in (
        ("active_ratio", 0.9),
        ("ratio", 0.6),
        ("power_w", 600.0),
        ("limit_w", 700.0),
        ("celsius", 60.0),
        ("sm_clock_hz", 1.98e9),
        ("memory_clock_hz", 3.2e9),
        ("total_bytes", 1.5e11),
        ("used_bytes", 8e10),
        ("bytes_per_s", 1e10),
        ("energy_j", 1e6),
    ):
        if column.endswith(ending):
            return value * (1 + 0.001 * gpu)
    return 0.0


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--burst", type=int, default=20, help="batches of each node in the burst")
    parser.add_argument("--history", action="store_true")
    parser.add_argument("--tls", action="store_true", help="both sides show a certificate")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = measure(args.nodes, args.jobs, args.seconds, args.burst, history=args.history, tls=args.tls)
    if args.json:
        print(json.dumps(result))
        return
    print(
        f"{args.nodes} agents, {result['samples_per_batch']:.0f} values and "
        f"{result['batch_bytes']} bytes a batch\n"
        f"burst: {result['burst_batches_per_s']:,.0f} batches/s, "
        f"{result['burst_samples_per_s']:,.0f} values/s, "
        f"{result['burst_cpu_s_per_batch'] * 1e6:.0f} us of CPU a batch\n"
        f"1 Hz:  {result['paced_cpu_ratio']:.0%} of a core, a round {result['round_s'] * 1e3:.0f} ms "
        f"(rules {result['rules_s'] * 1e3:.0f} ms), {result['resident_bytes'] / 1e6:.0f} MB, "
        f"{result['lost_batches']:.0f} batches lost, at most {result['paced_late_s']:.2f} s behind"
    )


if __name__ == "__main__":
    main()

"""What the fuzzer feeds: each reader of bytes that others write, with a small corpus of perfd's own."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from google.protobuf.message import DecodeError
from perfd_collectors.model_config import model_shape
from perfd_collectors.nccl.flight_recorder.dump import FlightRecorderError, read_dump
from perfd_collectors.nccl.inspector.inspector_lines import InspectorLines, reduce_inspected
from perfd_collectors.pod_resources.gpu_devices import allocatable_gpus, dynamic_gpu_claims, gpu_allocations
from perfd_collectors.pod_resources.pod_resources_pb2 import (
    AllocatableResourcesResponse,
    ListPodResourcesResponse,
)
from perfd_collectors.serving.exposition_reader import PageReader
from perfd_collectors.serving.sglang import metrics as sglang_metrics
from perfd_collectors.serving.sglang.log_lines import SglangLog
from perfd_collectors.serving.sglang.mini import MiniSglangLog
from perfd_collectors.serving.vllm import metrics as vllm_metrics
from perfd_collectors.serving.vllm.log_lines import VllmLog
from perfd_collectors.software import driver_version, package_folders, versions
from perfd_collectors.training_log.log_parser import new_job
from perfd_collectors.training_log.metric_files import (
    MetricFileParser,
    metric_file_reader,
    metric_files_pb2,
)

from perfd.aggregator.prometheus_charts.prometheus_ranges import answered_series
from perfd.capture.redact.redaction import redact
from perfd.clock import VirtualClock
from perfd.errors import PerfdError
from perfd.exporters.http_post import PostResponse
from perfd.model import GpuAllocations
from perfd.recording import open_recording
from perfd.rules.files import load_rules
from perfd.rules.problems import TextError
from perfd.rules.promql.compiler import compile_query
from perfd.rules.promql.series_keys import EvaluationError
from perfd.session.recording.recorded_streams import installed_players, open_playback
from perfd.trace.diagnosis.trace_analysis import analyse
from perfd.trace.memory.allocation_history import replay
from perfd.trace.memory.memory_files import memory_of
from perfd.trace.memory.memory_findings import memory_findings, places
from perfd.trace.memory.memory_snapshot import snapshot_of
from perfd.trace.readers.trace_files import read_traces
from perfd.trace.readers.xplane.hlo_collectives import read_collectives
from perfd.trace.readers.xplane.xplane_reader import read_space
from perfd.trace.roofline.hlo_line import read_line
from perfd.trace.roofline.hlo_module import read_module
from perfd.trace.roofline.hlo_step import step_work
from perfd.trace.roofline.ncu_csv import read_csv
from perfd.wire.agent_messages import decode_agent_message
from perfd.wire.convert import encode_record
from tests.fuzz.capture_targets import (
    hook_datagram,
    kineto_trace,
    profiled_memory,
    read_datagram,
    read_kineto,
    read_tables,
)
from tests.fuzz.document_targets import (
    bench_results,
    configurations,
    history_files,
    nvtx_rows,
    read_bench,
    read_configuration,
    read_history,
    read_nvtx,
    read_saved_pages,
    saved_pages,
)
from tests.fuzz.evaluation_targets import (
    analyze_batch,
    batch,
    evaluation,
    nsys_export,
    queries,
    read_next_batch,
    read_nsys,
    read_segment,
    segment,
)
from tests.pod_resources import kubelet
from tests.support.whole_logs import parse_log
from tests.support.xplane import xplane_space
from tests.support.xplane_hlo import collectives_in_each_form, profile_with_hlo

_TESTS = Path(__file__).parents[1]
_ROOT = _TESTS.parent
_MOST_BYTES = 60_000
"""Of a sample: a fuzzer that copies more tries less."""
_DUMP = {
    "version": "2.4",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "pg_status": {"0": {"last_enqueued_collective": 2, "last_completed_collective": 2}},
    "entries": [
        {
            "process_group": ["0", "default_pg"],
            "collective_seq_id": 2,
            "profiling_name": "nccl:all_reduce",
            "state": "completed",
            "time_created_ns": 1,
        }
    ],
}
_INSPECTED = {
    "header": {"id": "0x7f", "rank": 2, "n_ranks": 8, "nnodes": 1},
    "metadata": {
        "inspector_output_format_version": "v4.0",
        "dump_timestamp_us": 1,
        "hostname": "h",
        "pid": 1,
    },
    "coll_perf": {"coll": "AllReduce", "coll_sn": 1, "coll_msg_size_bytes": 8, "coll_exec_time_us": 9},
}
_HLO_MODULE = """HloModule jit_step, is_scheduled=true, replica_count=2, num_partitions=4

%fused (p: bf16[8,4], q: bf16[4,8]) -> bf16[8,8] {
  %p = bf16[8,4]{1,0} parameter(0)
  %q = bf16[4,8]{1,0} parameter(1)
  ROOT %dot = bf16[8,8]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (a: bf16[8,4], b: bf16[4,8]) -> bf16[8,8] {
  %a = bf16[8,4]{1,0} parameter(0)
  %b = bf16[4,8]{1,0} parameter(1)
  %t = (s32[], bf16[8,4]{1,0}) while(%a), condition=%main, body=%fused, \
backend_config={"known_trip_count":{"n":"12"}}
  %k = bf16[8,8]{1,0} custom-call(%a, %b), custom_call_target="__cublas$lt$matmul", \
backend_config={"lhs_contracting_dimensions":["1"]}
  ROOT %f = bf16[8,8]{1,0} fusion(%a, %b), kind=kCustom, calls=%fused
}
"""
_HLO = (
    "%dot.1 = f32[8,8]{1,0} dot(f32[8,8] %a, f32[8] %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    "ROOT %add.2 = bf16[64,128]{1,0:T(8,128)} add(bf16[64,128] %p0, bf16[64,128] %p1)",
)
_QUERIES = ("sum by (job) (rate(a_total[5m])) > 0.5", 'max_over_time(b{job="x"}[1h]) and on (job) c')


@dataclass(frozen=True, slots=True)
class Target:
    """A reader, and inputs that it reads."""

    run: Callable[[bytes], object]
    """Raises nothing of its own but what `refusals` names."""
    corpus: Sequence[bytes]
    refusals: tuple[type[Exception], ...] = (PerfdError,)


def _lines(data: bytes, logs: Sequence[type[SglangLog | VllmLog | MiniSglangLog]]) -> None:
    for kind in logs:
        log = kind()
        for line in data.decode("utf-8", "replace").split("\n"):
            log.line(line)
        log.snapshot()


def _exposition(data: bytes) -> None:
    page = PageReader().read(data)
    sglang_metrics.snapshot(page)
    vllm_metrics.snapshot(page)


def _memory_of_trace(path: Path) -> None:
    for history in memory_of(path):
        memory_findings(history)
        places(history)


def _in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def run(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            path.write_bytes(data)
            read(path)

    return run


def _flight(data: bytes) -> None:
    for record in read_dump(data, job="j", rank=0, read_unix_ns=1):
        encode_record(record)


def _metric_file(name: str) -> Callable[[bytes], object]:
    def run(data: bytes) -> None:
        job, reader = new_job("j"), metric_file_reader(name)
        assert reader is not None
        parser = MetricFileParser(job, name, reader)
        # As it grows.
        for at in range(0, len(data), 1000):
            parser.feed(data[at : at + 1000], 1_700_000_000_000_000_000 + at)
        parser.flush(1_800_000_000_000_000_000)
        for record in job.out.take(1):
            encode_record(record)

    return run


def _run_file() -> bytes:
    """W&B's, with one record."""
    item = metric_files_pb2.HistoryItem(key="train/loss", number=2.5)
    step = metric_files_pb2.HistoryStep(num=7)
    record = metric_files_pb2.RunRecord(history=metric_files_pb2.History(item=[item], step=step))
    data = record.SerializeToString()
    return b":W&B\x67\xbe\x00" + struct.pack("<IHB", zlib.crc32(b"\x01" + data), len(data), 1) + data


def _inspector(data: bytes) -> None:
    operations = list(InspectorLines().feed(data))
    for record in reduce_inspected(operations, job="j", rank=1, start_unix_ns=0, end_unix_ns=1):
        encode_record(record)


def _pod_resources(data: bytes) -> None:
    allocatable_gpus(AllocatableResourcesResponse.FromString(data))
    answer = ListPodResourcesResponse.FromString(data)
    dynamic_gpu_claims(answer)
    encode_record(GpuAllocations(devices=gpu_allocations(answer)))


def _recording(path: Path) -> None:
    (path.parent / "out.log").write_bytes(_sample("training_log/nanotron.log"))
    opened = open_recording(path.parent, allow_missing=True)
    open_playback(opened, path.parent / "scratch", VirtualClock(0), installed_players(), interval_s=5.0)


def _sample(name: str) -> bytes:
    data = (_TESTS / "fixtures" / name).read_bytes()
    return (gzip.decompress(data) if name.endswith(".gz") else data)[:_MOST_BYTES]


def _small_trace() -> bytes:
    trace = json.loads(
        gzip.decompress((_TESTS / "fixtures/traces/jax-0.11-2xh200.trace.json.gz").read_bytes())
    )
    trace["traceEvents"] = trace["traceEvents"][:150]
    return json.dumps(trace).encode()


def _samples(pattern: str) -> list[bytes]:
    return [path.read_bytes()[:_MOST_BYTES] for path in sorted(_ROOT.glob(pattern))]


_MEMORY = {
    "segments": [
        {
            "device": 0, "address": 1000, "total_size": 64,
            "blocks": [
                {"size": 32, "requested_size": 30, "state": "active_allocated", "address": 1000},
                {"size": 32, "requested_size": 0, "state": "inactive", "frames": []},
            ],
        }
    ],
    "device_traces": [
        [
            {"action": "segment_alloc", "addr": 1000, "size": 64, "time_us": 1, "frames": []},
            {
                "action": "alloc", "addr": 1000, "size": 30, "time_us": 2,
                "frames": [{"filename": "t.py", "line": 3, "name": "forward"}],
            },
            {"action": "oom", "addr": 0, "size": 99, "time_us": 3, "device_free": 7, "frames": []},
        ]
    ],
    "allocator_settings": {"expandable_segments": False},
}  # fmt: skip
_CONFIGS = (
    {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_inner": None, "vocab_size": 50257},
    {
        "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944,
        "num_attention_heads": 16,
        "num_hidden_layers": 27, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "vocab_size": 102400, "mlp_only_layers": [3],
    },
)  # fmt: skip


def targets() -> dict[str, Target]:
    """All of them, by name."""
    manifest = {
        "format": 1,
        "name": "j",
        "start_unix_s": 1.7e9,
        "streams": [{"node": "n", "kind": "training-log", "path": "out.log"}],
    }
    batches = gzip.decompress((_ROOT / "perfd/data/recordings/dp2_nccl/vm/records.bin.gz").read_bytes())
    return {
        "training_log": Target(parse_log, _samples("tests/fixtures/training_log/*.log")),
        "event_file": Target(
            _metric_file("events.out.tfevents.1.node.1.0"),
            [_sample("training_log/metric_files/events.out.tfevents.1700000000.node.4711.0")],
        ),
        "wandb_file": Target(_metric_file("run-1.wandb"), [_run_file()]),
        "csv_file": Target(_metric_file("metrics.csv"), [_sample("training_log/metric_files/metrics.csv")]),
        "serving_log": Target(
            lambda data: _lines(data, (SglangLog, VllmLog, MiniSglangLog)),
            [
                b"[2026-01-01 00:00:00 DP0 TP0] Decode batch, #running-req: 1, #token: 2, token usage: 0.01",
                b"Engine 000: Avg prompt throughput: 1.0 tokens/s, Running: 1 reqs, GPU KV cache usage: 1.0%",
                b"[2026-01-01|00:00:00|core] INFO TTFT: 1.0 ms (p50: 1.0 ms)",
            ],
            (),
        ),
        "exposition": Target(_exposition, [_sample("serving/sglang-0.5.12.prom.gz")[:20_000]]),
        "trace": Target(_in_file("t.json", lambda path: analyse(read_traces([path]))), [_small_trace()]),
        "redact": Target(
            _in_file("t.pt.trace.json", lambda path: redact(path, path.with_name("copy"))),
            [_small_trace()],
        ),
        "hlo": Target(
            lambda data: read_line(data.decode("utf-8", "replace")), [line.encode() for line in _HLO]
        ),
        "hlo_module": Target(
            lambda data: step_work([read_module(data.decode("utf-8", "replace"))]), [_HLO_MODULE.encode()]
        ),
        "ncu": Target(_in_file("t.csv", read_csv), [_sample("traces/ncu-2025.3-h200-raw.csv")]),
        "pod_resources": Target(
            _pod_resources,
            [
                kubelet.listed(
                    kubelet.training_pod("pretrain-0", *kubelet.UUIDS[:2]),
                    kubelet.pod("b", kubelet.container("c", claims=[("gpu.nvidia.com", "gpu-0")])),
                )
            ],
            (DecodeError,),
        ),
        "inspector": Target(_inspector, [json.dumps(_INSPECTED).encode() + b"\n"]),
        "flight_recorder": Target(
            _flight, [json.dumps(_DUMP).encode(), pickle.dumps(_DUMP, 2)], (FlightRecorderError,)
        ),
        "history": Target(read_history, history_files()),
        "saved_page": Target(read_saved_pages, saved_pages()),
        "bench_serving": Target(read_bench, bench_results()),
        "configuration": Target(read_configuration, configurations(_ROOT / "deploy")),
        "nvtx": Target(read_nvtx, [nvtx_rows()]),
        "rules": Target(_in_file("r.yaml", lambda path: load_rules([path])), _samples("rules/*.yaml")),
        "promql": Target(
            lambda data: compile_query(data.decode("utf-8", "replace")),
            [query.encode() for query in _QUERIES],
            (TextError,),
        ),
        "recording": Target(_in_file("recording.json", _recording), [json.dumps(manifest).encode()]),
        "wire": Target(decode_agent_message, [_first_message(batches)]),
        "sample_tables": Target(partial(read_next_batch, first := _first_message(batches)), [first], ()),
        "kineto": Target(read_kineto, [kineto_trace()]),
        "hook": Target(read_datagram, [hook_datagram()], ()),
        "nsys": Target(read_nsys, [nsys_export()]),
        "segment": Target(read_segment, [segment()]),
        "evaluation": Target(
            evaluation(_samples("rules/*.yaml")),
            queries(_samples("rules/*.yaml")),
            (TextError, EvaluationError),
        ),
        "model_config": Target(
            lambda data: model_shape(data, sequence_length=4096),
            [json.dumps(config).encode() for config in _CONFIGS],
        ),
        "software": Target(
            lambda data: (
                versions(text := data.decode("utf-8", "replace"), text.splitlines()),
                package_folders(text),
                driver_version(text),
            ),
            [
                (
                    b"0-1 r-xp 0 0:0 0 /v/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2\n"
                    b"nvidia_nccl_cu12-2.20.5.dist-info\ntorch-2.4.0+cu124.dist-info\n"
                ),
                b"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build\n",
            ],
        ),
        "queried_series": Target(
            lambda data: answered_series(PostResponse(status=200, text=data.decode("utf-8", "replace"))),
            [
                (
                    b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"__name__":"perfd_step"},'
                    b'"values":[[1790000000,"17"],[1790000015.5,"NaN"]]}]}}'
                )
            ],
        ),
        "memory": Target(
            lambda data: [(memory_findings(h), places(h)) for h in map(replay, snapshot_of(data))],
            [pickle.dumps(_MEMORY, 2)],
        ),
        "trace_tables": Target(read_tables, [kineto_trace()]),
        "profiled_memory": Target(_in_file("t.json", _memory_of_trace), [profiled_memory()]),
        "xplane": Target(
            lambda data: read_space(memoryview(data), Path("t.xplane.pb")),
            [xplane_space(), profile_with_hlo()],
        ),
        "hlo_collectives": Target(
            lambda data: read_collectives(memoryview(data)),
            [collectives_in_each_form(), profile_with_hlo()],
            (ValueError,),
        ),
        "analysis": Target(analyze_batch, [batch(), _first_message(batches)]),
    }


def _first_message(batches: bytes) -> bytes:
    """The first of batches with their lengths before them, as an agent sends it."""
    size = shift = position = 0
    while True:
        byte = batches[position]
        size, shift, position = size | (byte & 127) << shift, shift + 7, position + 1
        if byte < 128:
            return b"\x12" + batches[: position + size]

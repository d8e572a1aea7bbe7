"""The collectors against servers of this machine: what they send, and what a broken server does to it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from perfd_collectors.serving import SGLANG, VLLM
from perfd_collectors.serving.collector import ServingOptions
from perfd_collectors.serving.discovery import DiscoveredServer, server_of
from serving.pages import LLAMA_70B, busy_70b, counter, gauge

from perfd.analysis.serving.engine_snapshot import Engine
from perfd.analysis.serving.server_config import completed
from perfd.analysis.serving.serving_theory import ServingLayout
from perfd.cli import main
from perfd.clock import VirtualClock
from perfd.collector import CollectorSpec, Settings
from perfd.errors import ConfigError
from perfd.model import ParallelLayout, Record, SampleTable, ServerInfo, ServerRole
from perfd.net.http import HttpServer, Request, Response
from perfd.testing.collector_contract import check_collector, check_spec
from perfd.wire.convert import encode_record


class Engines:
    """What the server answers; tests change it between two looks."""

    def __init__(self) -> None:
        self.pages: dict[str, Response] = {}

    def answer(self, request: Request) -> Response:
        return self.pages.get(request.path, Response(status=404, body=b""))


@contextmanager
def serving(pages: Mapping[str, bytes]) -> Iterator[tuple[Engines, str]]:
    engines = Engines()
    engines.pages = {path: Response(body=body) for path, body in pages.items()}
    server = HttpServer(
        "127.0.0.1:0",
        {
            "/v1/": engines.answer,
            **dict.fromkeys(
                ("/metrics", "/server_info", "/get_server_info", "/get_load", "/version"), engines.answer
            ),
        },
    )
    try:
        yield engines, f"http://{server.address}"
    finally:
        server.close()


def settings(tmp_path: Path) -> Settings:
    return Settings(node="n1", job="job", clock=VirtualClock(), proc=tmp_path)


def newest(records: object) -> Mapping[str, float]:
    assert isinstance(records, list)
    table = records[-1]
    assert isinstance(table, SampleTable)
    return {name: values[0] for name, values in table.columns.items()}


def live_page(tokens: float) -> bytes:
    labels = {"model_name": "m", "tp_rank": "0"}
    return (
        gauge("sglang:num_running_reqs", (labels, 3))
        + gauge("sglang:num_queue_reqs", (labels, 1))
        + counter("sglang:realtime_tokens_total", ({**labels, "mode": "decode"}, tokens))
        + counter("sglang:generation_tokens_total", ({"model_name": "m"}, tokens))
    ).encode()


@pytest.mark.parametrize("spec", [SGLANG, VLLM], ids=lambda spec: spec.name)
def test_both_collectors_keep_the_contract_on_a_node_without_servers(
    spec: CollectorSpec, tmp_path: Path
) -> None:
    check_spec(spec)
    assert check_collector(spec, settings(tmp_path)) == []


def test_rates_are_over_the_time_between_looks(tmp_path: Path) -> None:
    with serving({"/metrics": live_page(100)}) as (engines, url):
        looks = iter([200.0, 300.0, 400.0])

        def between() -> None:
            engines.pages["/metrics"] = Response(body=live_page(next(looks)))

        records = check_collector(
            SGLANG, settings(tmp_path), options=ServingOptions(urls=(url,)), between=between
        )
    row = newest(records)
    assert (row["up"], row["running_requests"], row["generation_tokens_per_s"]) == (1.0, 3.0, 100.0)


def test_theory_is_beside_the_measurement_when_model_and_gpu_are_known(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    info = {"model_path": str(tmp_path), "tp_size": 8, "version": "0.5.9", "max_total_num_tokens": 600_000}
    options = ServingOptions(gpu="NVIDIA H100 80GB HBM3")
    with serving({"/metrics": busy_70b(), "/get_server_info": json.dumps(info).encode()}) as (_, url):
        records = check_collector(
            SGLANG, settings(tmp_path), options=ServingOptions(urls=(url,), gpu=options.gpu)
        )
    assert newest(records)["tpot_floor_s"] == pytest.approx(5.2e-3, rel=0.01)


@pytest.mark.parametrize("body", [b"<html>", b"", b"process_cpu_seconds_total 1\n"])
def test_a_server_without_metrics_of_an_engine_is_down_and_has_no_value(tmp_path: Path, body: bytes) -> None:
    with serving({"/metrics": body}) as (_, url):
        records = check_collector(SGLANG, settings(tmp_path), options=ServingOptions(urls=(url,)))
    assert newest(records) == {"up": 0.0}


def test_a_log_is_read_where_metrics_are_off(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "[2026-04-05 20:02:51] Decode batch, #running-req: 32, #token: 11179, token usage: 0.08, "
        "cuda graph: True, gen throughput (token/s): 1635.11, #queue-req: 0\n"
    )
    collector = SGLANG.create(ServingOptions(logs=(str(log),)), settings(tmp_path))
    row = newest(list(collector.collect()))
    assert (row["running_requests"], row["generation_tokens_per_s"]) == (32.0, 1635.11)
    assert collector.collect() == []


def test_a_log_that_names_its_model_is_put_beside_theory_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    log = tmp_path / "server.log"
    log.write_text(
        f"[2026-04-05 20:00:00] server_args=ServerArgs(model_path='{tmp_path}', tp_size=8, dp_size=1)\n"
        "[2026-04-05 20:02:51] Decode batch, #running-req: 200, #token: 400000, token usage: 0.60, "
        "cuda graph: True, gen throughput (token/s): 16000.00, #queue-req: 0\n"
    )
    options = ServingOptions(logs=(str(log),), gpu="NVIDIA H100 80GB HBM3", discover=False)
    row = newest(list(SGLANG.create(options, settings(tmp_path)).collect()))
    assert row["tpot_floor_s"] == pytest.approx(5.2e-3, rel=0.01)
    assert row["tpot_theory_s"] == pytest.approx(12.1e-3, rel=0.01)


def test_an_address_that_is_none_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="urls"):
        SGLANG.create(ServingOptions(urls=("ftp://x",)), settings(tmp_path))


def test_several_servers_of_a_node_are_found_and_distinguished(tmp_path: Path) -> None:
    pages = {role: role_page(role, running) for role, running in (("prefill", 2), ("decode", 9))}
    with (
        serving({"/metrics": pages["prefill"]}) as (_, one),
        serving({"/metrics": pages["decode"]}) as (_, two),
    ):
        for pid, url in (("1", one), ("2", two), ("3", one)):
            (tmp_path / pid).mkdir()
            port = url.rpartition(":")[2]
            command = f"python -m sglang.launch_server --port {port}".replace(" ", "\0")
            (tmp_path / pid / "cmdline").write_text(command)
        collector = SGLANG.create(ServingOptions(), settings(tmp_path))
        *infos, table = collector.collect()
    assert isinstance(table, SampleTable)
    assert roles(infos) == {
        one.removeprefix("http://"): ServerRole.PREFILL,
        two.removeprefix("http://"): ServerRole.DECODE,
    }
    running = dict(zip(table.entities, table.columns["running_requests"], strict=True))
    assert running == {one.removeprefix("http://"): 2.0, two.removeprefix("http://"): 9.0}


def infos_of(records: Sequence[Record]) -> list[ServerInfo]:
    return [record for record in records if isinstance(record, ServerInfo)]


def roles(records: Sequence[Record]) -> Mapping[str, ServerRole | None]:
    return {info.server: info.role for info in infos_of(records)}


def test_a_server_is_described_once_and_when_it_changes(tmp_path: Path) -> None:
    clock = VirtualClock()
    said = {"model_path": "/models/a", "tp_size": 4, "dp_size": 2, "version": "0.5.9"}
    with serving({"/metrics": role_page("unified", 1), "/get_server_info": json.dumps(said).encode()}) as (
        engines,
        url,
    ):
        where = Settings(node="n1", job="job", clock=clock, proc=tmp_path)
        collector = SGLANG.create(ServingOptions(urls=(url,), discover=False), where)

        def look() -> list[ServerInfo]:
            clock.advance(1.0)
            return infos_of(collector.collect())

        first = ServerInfo(
            server=url.removeprefix("http://"),
            engine="sglang",
            version="0.5.9",
            model="m",
            parallel=ParallelLayout(tp=4, pp=1, dp=2),
            role=ServerRole.BOTH,
        )
        assert look() == [first]
        assert look() == []
        engines.pages["/metrics"] = Response(status=503, body=b"")
        assert look() == []
        said |= {"version": "0.5.10", "tp_size": 8}
        engines.pages["/get_server_info"] = Response(body=json.dumps(said).encode())
        engines.pages["/metrics"] = Response(body=role_page("unified", 1).replace(b'"m"', b'"other"'))
        clock.advance(10.0)
        (changed,) = look()
        assert (changed.version, changed.model, changed.parallel.tp) == ("0.5.10", "other", 8)
        clock.advance(60.0)
        assert look() == [changed], "An aggregator that came later hears of it too."


@pytest.mark.parametrize("model", ["m" * 300, "\ud800", "a\nb", 7])
def test_a_name_that_cannot_be_shown_is_unknown(tmp_path: Path, model: object) -> None:
    said = {"model_path": model, "tp_size": 1 << 40}
    page = gauge("sglang:num_running_reqs", ({"tp_rank": "0"}, 1)).encode()
    with serving({"/metrics": page, "/server_info": json.dumps(said).encode()}) as (_, url):
        options = ServingOptions(urls=(url,), discover=False)
        (info,) = infos_of(SGLANG.create(options, settings(tmp_path)).collect())
    assert (info.engine, info.model, info.parallel) == ("sglang", None, ParallelLayout(pp=1, dp=1))
    encode_record(info)


def test_a_server_known_by_its_log_alone_is_described(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "[2026-04-05 20:00:00] server_args=ServerArgs(model_path='/m', tp_size=8, "
        "disaggregation_mode='decode')\n"
        "[2026-04-05 20:02:51] Decode batch, #running-req: 2, #token: 4, token usage: 0.60, "
        "cuda graph: True, gen throughput (token/s): 16.00, #queue-req: 0\n"
    )
    options = ServingOptions(logs=(str(log),), discover=False)
    (info,) = infos_of(SGLANG.create(options, settings(tmp_path)).collect())
    assert (info.server, info.model, info.parallel.tp, info.role) == (str(log), "/m", 8, ServerRole.DECODE)


def role_page(role: str, running: float) -> bytes:
    labels = {"model_name": "m", "engine_type": role, "tp_rank": "0"}
    return gauge("sglang:num_running_reqs", (labels, running)).encode()


def test_the_role_of_a_server_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.prom"
    page.write_bytes(role_page("prefill", 1))
    assert main(["serving", str(page)]) == 0
    assert "sglang (prefill)" in capsys.readouterr().out


def test_of_several_sources_those_that_can_be_read_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.prom"
    page.write_bytes(role_page("unified", 5))
    assert main(["serving", str(page), str(tmp_path / "nothing"), "--json"]) == 2
    said = capsys.readouterr()
    assert [server["running_requests"] for server in json.loads(said.out)["servers"]] == [5.0]
    assert "cannot be read" in said.err


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (
            "python -m sglang.launch_server --host 0.0.0.0",
            DiscoveredServer(Engine.SGLANG, "http://127.0.0.1:30000"),
        ),
        ("/usr/bin/vllm serve m --port=8001", DiscoveredServer(Engine.VLLM, "http://127.0.0.1:8001")),
        ("/opt/bin/sglang serve --host ::1 --port 5", DiscoveredServer(Engine.SGLANG, "http://[::1]:5")),
        ("python train.py --port 3", None),
        ("grep sglang.launch_server", None),
        (
            "python -m vllm.entrypoints.cli.main serve m",
            DiscoveredServer(Engine.VLLM, "http://127.0.0.1:8000"),
        ),
        (
            "python -m sglang.launch_server --disaggregation-mode prefill --port 30001 --ssl-certfile c",
            DiscoveredServer(Engine.SGLANG, "https://127.0.0.1:30001"),
        ),
        (
            "python -m sglang.launch_server --nnodes 2 --node-rank 0",
            DiscoveredServer(Engine.SGLANG, "http://127.0.0.1:30000"),
        ),
        ("python -m sglang.launch_server --nnodes 2 --node-rank 1", None),
        ("vllm serve m --headless", None),
        ("vllm bench serve --port 8000", None),
        ("python -m sglang_router.launch_router --port 30000", None),
        ("vllm-router --port 30000", None),
        ("python -m sglang.bench_serving --port 30000", None),
    ],
)
def test_servers_are_found_by_their_command_lines(command: str, found: DiscoveredServer | None) -> None:
    seen = server_of(command.split())
    assert (seen and (seen.engine, seen.url)) == (found and (found.engine, found.url))


@pytest.mark.parametrize(
    ("command", "layout", "model"),
    [
        ("vllm serve /models/m -tp 8 --quantization fp8", ServingLayout(tp=8), "/models/m"),
        ("vllm serve --model /m --tensor-parallel-size=2 -dp 4", ServingLayout(tp=2, dp=4), "/m"),
        ("python -m sglang.launch_server --model-path /m --tp 8 --dp-size 8 --enable-dp-attention",
         ServingLayout(tp=8, dp=8, attention_dp=True), "/m"),
        ("python -m sglang.launch_server --model /m", ServingLayout(), "/m"),
        ("python -m sglang.launch_server --model /m --tp x", None, "/m"),
        ("vllm serve /m --config options.yaml", None, "/m"),
        ("vllm serve /m --config options.yaml -tp 4", ServingLayout(tp=4), "/m"),
    ],
)  # fmt: skip
def test_a_command_line_says_how_the_model_is_spread(
    command: str, layout: ServingLayout | None, model: str
) -> None:
    found = server_of(command.split())
    assert found is not None
    info = completed(None, found.arguments)
    assert (info.layout, info.model) == (layout, model)


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ('{"kv_connector":"NixlConnector","kv_role":"kv_producer"}', "prefill"),
        ('{"kv_role":"kv_consumer"}', "decode"),
        ('{"kv_role":"kv_both"}', None),
        ('{"kv_role":["kv_consumer"]}', None),
        ("{", None),
        ("[]", None),
        ("[" * 60_000, None),
    ],
    ids=range(7),
)
def test_a_worker_of_vllm_says_which_half_of_the_work_it_does(config: str, mode: str | None) -> None:
    found = server_of(["vllm", "serve", "/m", "--kv-transfer-config", config])
    assert found is not None
    assert found.arguments.get("disaggregation_mode") == mode


def vllm_page() -> bytes:
    labels = {"model_name": "m", "engine": "0"}
    return gauge("vllm:num_requests_running", (labels, 2)).encode()


def process(proc: Path, pid: str, command: str) -> Path:
    (proc / pid).mkdir(exist_ok=True)
    (proc / pid / "cmdline").write_text(command.replace(" ", "\0"))
    return proc / pid / "cmdline"


def test_a_vllm_server_stands_beside_theory_by_its_command_line(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA_70B))
    options = ServingOptions(gpu="NVIDIA H100 80GB HBM3")
    with serving({"/metrics": vllm_page()}) as (_, url):
        process(tmp_path, "7", f"vllm serve {model} --port {url.rpartition(':')[2]} -tp 8")
        row = newest(list(VLLM.create(options, settings(tmp_path)).collect()))
    assert row["tpot_floor_s"] == pytest.approx(5.2e-3, rel=0.01)


def test_without_a_layout_there_is_no_theory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    options = ServingOptions(gpu="H100", model_config_file=str(tmp_path / "config.json"), discover=False)
    with serving({"/metrics": vllm_page()}) as (_, url):
        options = replace_urls(options, url)
        row = newest(list(VLLM.create(options, settings(tmp_path)).collect()))
        assert "tpot_floor_s" not in row
        command = ["serving", url, "--gpu", "H100", "--model-config", str(tmp_path / "config.json")]
        assert main(command) == 2
        assert "add --tp N" in capsys.readouterr().err
        assert main([*command, "--tp", "8"]) == 0


def replace_urls(options: ServingOptions, *urls: str) -> ServingOptions:
    return msgspec.structs.replace(options, urls=urls)


def test_a_server_whose_process_is_gone_is_down_and_after_a_while_forgotten(tmp_path: Path) -> None:
    clock = VirtualClock()
    collector = VLLM.create(ServingOptions(), Settings(node="n1", job="job", clock=clock, proc=tmp_path))
    command = process(tmp_path, "7", "vllm serve m --port 1")
    assert newest(list(collector.collect())) == {"up": 0.0}
    command.unlink()
    clock.advance(300.0)
    assert newest(list(collector.collect())) == {"up": 0.0}
    clock.advance(301.0)
    assert collector.collect() == []


def test_perfd_serving_prints_the_shape_that_is_documented(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, config = tmp_path / "page.prom", tmp_path / "config.json"
    page.write_bytes(busy_70b())
    config.write_text(json.dumps(LLAMA_70B))
    arguments = ["serving", str(page), "--json", "--model-config", str(config), "--gpu", "H100", "--tp", "8"]
    assert main(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "perfd.serving/2"
    (server,) = document["servers"]
    assert list(server) == [
        "source", "engine", "version", "model", "running_requests", "queued_requests", "max_running_requests",
        "kv_cache_used_ratio", "prefix_hit_ratio", "generation_tokens_per_s", "prompt_tokens_per_s", "ttft_s",
        "tpot_s", "e2e_s", "theory", "findings",
    ]  # fmt: skip
    assert server["generation_tokens_per_s"] is None
    assert set(server["ttft_s"]) == {"p50", "p90", "p99", "mean"}
    assert server["theory"]["tpot_floor_s"] == pytest.approx(5.2e-3, rel=0.01)
    assert main(arguments[:2]) == 0
    assert "Prefill interrupts decode (likely)" in capsys.readouterr().out


def test_an_address_without_a_scheme_is_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"/metrics": live_page(100)}) as (_, url):
        assert main(["serving", url.removeprefix("http://")]) == 0
    assert "3 running" in capsys.readouterr().out


def test_perfd_serving_asks_a_server_twice_for_rates(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"/metrics": live_page(100), "/v1/loads": b"{}"}) as (_, url):
        assert main(["serving", url, "--json", "--interval", "0.01"]) == 0
    (server,) = json.loads(capsys.readouterr().out)["servers"]
    assert server["generation_tokens_per_s"] == 0.0


def test_a_file_that_is_neither_page_nor_log_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    page.write_text("<html></html>")
    assert main(["serving", str(page)]) == 2
    assert "not a metrics page" in capsys.readouterr().err

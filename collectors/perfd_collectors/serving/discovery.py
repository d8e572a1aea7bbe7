"""Finds serving engines on a node by the command lines of its processes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfd.analysis.serving import Engine

_DEFAULT_PORTS = {Engine.SGLANG: 30000, Engine.VLLM: 8000}
_MODULES = {
    "sglang.launch_server": Engine.SGLANG,
    "vllm.entrypoints.openai.api_server": Engine.VLLM,
    "vllm.entrypoints.api_server": Engine.VLLM,
}
_PROGRAMS = {
    "sglang": Engine.SGLANG,
    "sglang.cli.main": Engine.SGLANG,
    "vllm": Engine.VLLM,
    "vllm.entrypoints.cli.main": Engine.VLLM,
}
"""Programs before the argument `serve`; routers, benchmarks and clients are not among them."""
_SIZE_OPTIONS: Mapping[Engine, Mapping[str, tuple[str, ...]]] = {
    Engine.SGLANG: {
        "tp_size": ("--tensor-parallel-size", "--tp-size", "--tp"),
        "pp_size": ("--pipeline-parallel-size", "--pp-size", "--pp"),
        "dp_size": ("--data-parallel-size", "--dp-size", "--dp"),
    },
    Engine.VLLM: {
        "tensor_parallel_size": ("--tensor-parallel-size", "-tp"),
        "pipeline_parallel_size": ("--pipeline-parallel-size", "-pp"),
        "data_parallel_size": ("--data-parallel-size", "-dp"),
    },
}
_TEXT_OPTIONS = {
    "model": ("--model", "--model-path"),
    "quantization": ("--quantization", "-q"),
    "kv_cache_dtype": ("--kv-cache-dtype",),
    "dtype": ("--dtype",),
    "disaggregation_mode": ("--disaggregation-mode",),
}
_ROLE_OF_KV_ROLE = {"kv_producer": "prefill", "kv_consumer": "decode"}
"""vLLM's `kv_role` in SGLang's terms; `kv_both` is ambiguous, since both sides may use it."""
_ANY_ADDRESS = {"0.0.0.0", "::", "[::]", ""}  # noqa: S104  (compared with, not bound to)
_MAX_COMMAND_BYTES = 65536
"""Longer command lines are cut; bounds memory, since any user's processes are read."""


@dataclass(frozen=True, slots=True)
class DiscoveredServer:
    """A server found by its process."""

    engine: Engine
    url: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    """Arguments about the model and its layout, by the engine's own names."""


def find_servers(proc: Path) -> Sequence[DiscoveredServer]:
    """The servers of a node, each once."""
    found: dict[str, DiscoveredServer] = {}
    try:
        processes = [path for path in proc.iterdir() if path.name.isdigit()]
    except OSError:
        return ()
    for process in processes:
        try:
            with (process / "cmdline").open("rb") as file:
                command = file.read(_MAX_COMMAND_BYTES)
        except OSError:
            # The process has ended, or belongs to another user.
            continue
        server = server_of(command.decode("utf-8", "replace").rstrip("\0").split("\0"))
        if server is not None:
            found.setdefault(server.url, server)
    return tuple(found.values())


def server_of(command: Sequence[str]) -> DiscoveredServer | None:
    """The server started by a command line; None when it starts none."""
    engine = _engine(command)
    if engine is None or _is_worker_node(command):
        return None
    host = _option(command, "--host") or ""
    port = _option(command, "--port") or str(_DEFAULT_PORTS[engine])
    if not port.isdigit():
        return None
    scheme = "https" if _option(command, "--ssl-certfile") else "http"
    if host in _ANY_ADDRESS:
        host = "127.0.0.1"
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return DiscoveredServer(engine, f"{scheme}://{host}:{port}", _arguments(command, engine))


def _arguments(command: Sequence[str], engine: Engine) -> Mapping[str, object]:
    found: dict[str, object] = {}
    # Both engines default to size 1, but a configuration file may set it.
    default = "1" if _option(command, "--config") is None else ""
    for name, spellings in _SIZE_OPTIONS[engine].items():
        text = next((value for flag in spellings if (value := _option(command, flag))), default)
        if text.isdecimal():
            found[name] = int(text)
    for name, flags in _TEXT_OPTIONS.items():
        word = next((value for flag in flags if (value := _option(command, flag))), None)
        if word is not None:
            found[name] = word
    if (mode := _ROLE_OF_KV_ROLE.get(_kv_role(command))) is not None:
        found["disaggregation_mode"] = mode
    if "serve" in command:
        after = command[command.index("serve") + 1 :][:1]
        found |= {"model": after[0]} if after and not after[0].startswith("-") else {}
    if "--enable-dp-attention" in command:
        found["enable_dp_attention"] = True
    return found


def _kv_role(command: Sequence[str]) -> str:
    """VLLM's `kv_role` for disaggregated serving; empty when absent or not valid JSON."""
    try:
        config = json.loads(_option(command, "--kv-transfer-config") or "{}")
    except (ValueError, RecursionError):
        return ""
    return str(config.get("kv_role", "")) if isinstance(config, dict) else ""


def _engine(command: Sequence[str]) -> Engine | None:
    for before, word in zip(("", *command), command, strict=False):
        if before == "-m" and word in _MODULES:
            return _MODULES[word]
        if word == "serve":
            return _PROGRAMS.get(before.rpartition("/")[2])
    return None


def _is_worker_node(command: Sequence[str]) -> bool:
    """Whether it is a node of a multi-node server that serves no requests."""
    return "--headless" in command or (_option(command, "--node-rank") or "0") != "0"


def _option(command: Sequence[str], name: str) -> str | None:
    for index, word in enumerate(command):
        if word == name and index + 1 < len(command):
            return command[index + 1]
        if word.startswith(name + "="):
            return word[len(name) + 1 :]
    return None

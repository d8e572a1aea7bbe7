"""Which serving engines run on a node, by the command lines of its processes."""

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
"""Before `serve`. A router, a benchmark or a client is none of these."""
_SIZES: Mapping[Engine, Mapping[str, tuple[str, ...]]] = {
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
_WORDS = {
    "model": ("--model", "--model-path"),
    "quantization": ("--quantization", "-q"),
    "kv_cache_dtype": ("--kv-cache-dtype",),
    "dtype": ("--dtype",),
    "disaggregation_mode": ("--disaggregation-mode",),
}
_TRANSFERS = {"kv_producer": "prefill", "kv_consumer": "decode"}
"""vLLM's `kv_role`, in SGLang's words; `kv_both` says nothing, since either side may be started so."""
_ANY = {"0.0.0.0", "::", "[::]", ""}  # noqa: S104  (compared with, not bound to)
_MAX_COMMAND_BYTES = 65536


@dataclass(frozen=True, slots=True)
class DiscoveredServer:
    """A server that a process listens as."""

    engine: Engine
    url: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    """Those about the model and its layout, by the engine's own names."""


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
            # It ended, or it is another user's.
            continue
        server = server_of(command.decode("utf-8", "replace").rstrip("\0").split("\0"))
        if server is not None:
            found.setdefault(server.url, server)
    return tuple(found.values())


def server_of(command: Sequence[str]) -> DiscoveredServer | None:
    """The server that a command line starts, or None when it starts none."""
    engine = _engine(command)
    if engine is None or _is_part(command):
        return None
    host = _option(command, "--host") or ""
    port = _option(command, "--port") or str(_DEFAULT_PORTS[engine])
    if not port.isdigit():
        return None
    scheme = "https" if _option(command, "--ssl-certfile") else "http"
    if host in _ANY:
        host = "127.0.0.1"
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return DiscoveredServer(engine, f"{scheme}://{host}:{port}", _arguments(command, engine))


def _arguments(command: Sequence[str], engine: Engine) -> Mapping[str, object]:
    said: dict[str, object] = {}
    # A size that is not given is 1 for both engines, but a file of options may give it.
    usual = "1" if _option(command, "--config") is None else ""
    for name, spellings in _SIZES[engine].items():
        text = next((value for flag in spellings if (value := _option(command, flag))), usual)
        if text.isdecimal():
            said[name] = int(text)
    for name, flags in _WORDS.items():
        word = next((value for flag in flags if (value := _option(command, flag))), None)
        if word is not None:
            said[name] = word
    if (mode := _TRANSFERS.get(_kv_role(command))) is not None:
        said["disaggregation_mode"] = mode
    if "serve" in command:
        after = command[command.index("serve") + 1 :][:1]
        said |= {"model": after[0]} if after and not after[0].startswith("-") else {}
    if "--enable-dp-attention" in command:
        said["enable_dp_attention"] = True
    return said


def _kv_role(command: Sequence[str]) -> str:
    """What vLLM was told to do with keys and values; empty where it was not told, or not in JSON."""
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


def _is_part(command: Sequence[str]) -> bool:
    """Whether it is a node of a larger server that answers no requests."""
    return "--headless" in command or (_option(command, "--node-rank") or "0") != "0"


def _option(command: Sequence[str], name: str) -> str | None:
    for index, word in enumerate(command):
        if word == name and index + 1 < len(command):
            return command[index + 1]
        if word.startswith(name + "="):
            return word[len(name) + 1 :]
    return None

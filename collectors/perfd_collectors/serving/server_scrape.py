"""Parses a server's metrics page, and queries its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from perfd.analysis.serving import Engine, ServerSetup, Snapshot
from perfd.errors import PerfdError
from perfd_collectors.serving.exposition_reader import Page, PageReader, PageState
from perfd_collectors.serving.fetch import FetchError, Get
from perfd_collectors.serving.sglang import metrics as sglang_metrics
from perfd_collectors.serving.sglang import server_info as sglang_info
from perfd_collectors.serving.vllm import metrics as vllm_metrics
from perfd_collectors.serving.vllm import server_info as vllm_info

_T = TypeVar("_T")
FAMILIES = sglang_metrics.FAMILIES | vllm_metrics.FAMILIES
_ROUTERS = ("smg_", "sgl_router_", "vllm_router_", "vllm:current_qps")
"""Prefixes of sglang-router, vllm-router, and vLLM's production stack, which repeats its engines' names."""
_STATES: Mapping[PageState, str] = {
    PageState.TOO_LARGE: "is larger than 50 MiB: not a metrics page",
    PageState.NOT_METRICS: "is not a metrics page: use the address of the engine, or of its /metrics",
    PageState.EMPTY: "is empty: the server has just started in multi-process mode, or the path is wrong",
}


def read_page(reader: PageReader, body: bytes, source: str) -> Snapshot:
    """The snapshot of a metrics page; raises `PerfdError` when it is of neither engine."""
    page = reader.read(body)
    if page.state in _STATES:
        raise PerfdError(f"{source} {_STATES[page.state]}.")
    if any(name.startswith(_ROUTERS) for name in page.types):
        raise PerfdError(f"{source} has the metrics of a router: use the addresses of its workers.")
    snapshot = _snapshot(page)
    if snapshot is None:
        raise PerfdError(
            f"{source} has metrics, but not of SGLang or vLLM. A vLLM has none if it was started with"
            " --disable-log-stats: start it without."
        )
    return snapshot


def with_info(snapshot: Snapshot, info: ServerSetup | None) -> Snapshot:
    """Complete a snapshot with the server's configuration."""
    if info is None:
        return snapshot
    return replace(
        snapshot,
        version=info.version or snapshot.version,
        model=snapshot.model or info.model,
        kv_total_tokens=snapshot.kv_total_tokens or info.kv_total_tokens,
        max_running_requests=snapshot.max_running_requests or info.max_running_requests,
    )


def ask_info(engine: Engine, base: str, get: Get) -> ServerSetup | None:
    """A server's configuration; None when it responds on none of the known paths."""
    return _ask_sglang(base, get) if engine is Engine.SGLANG else _ask_vllm(base, get)


def _ask_sglang(base: str, get: Get) -> ServerSetup | None:
    info = _first(get, [base + path for path in sglang_info.INFO_PATHS], sglang_info.parse_info)
    if info is None:
        return None
    loads = _first(get, [base + path for path in sglang_info.LOAD_PATHS], lambda body: body)
    return info if loads is None else sglang_info.with_loads(info, loads)


def _ask_vllm(base: str, get: Get) -> ServerSetup | None:
    info = _first(get, [base + vllm_info.VERSION_PATH], vllm_info.parse_version)
    model = _first(get, [base + vllm_info.MODELS_PATH], vllm_info.parse_model)
    return info if model is None else replace(info or ServerSetup(), model=model)


def _first(get: Get, urls: list[str], parse: Callable[[bytes], _T | None]) -> _T | None:
    for url in urls:
        try:
            found = parse(get(url))
        except FetchError:
            continue
        if found is not None:
            return found
    return None


def _snapshot(page: Page) -> Snapshot | None:
    names = [*page.types, *page.series]
    # A TYPE line exists even for a family without series.
    if any(name.startswith(sglang_metrics.PREFIX) for name in names):
        return sglang_metrics.snapshot(page)
    if any(name.startswith(vllm_metrics.PREFIX) for name in names):
        return vllm_metrics.snapshot(page)
    return None

"""First screens of reports of labelled traces, as pictures: what a newcomer sees, who then names the cause.

    python -m benchmarks.trace_first_screens FOLDER [--shared DIR] [--hta DIR] [--tracelens DIR]

FOLDER gets one picture of 1280 x 800 pixels per trace, whose name does not say what it is;
`FOLDER-labels.json`, beside it, does. DIR of --shared holds the traces of docs/benchmarks-verdict.md
(PERFD_SHARED names it, too); the others are checkouts of HolisticTraceAnalysis and TraceLens. Traces that are
not there are left out, three are made here. Chromium draws the pages.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfd.report.render.html import to_html
from perfd.report.sources.from_trace import report_of_trace
from perfd.trace.diagnosis import analyse, diagnose
from perfd.trace.readers.trace_files import read_traces, with_folders_opened
from tests.support.chromium import chromium
from tests.support.traces import MATMUL, NCCL, Op, kineto, write_json

_WIDTH, _HEIGHT = 1280, 800


@dataclass(frozen=True)
class _Case:
    source: str
    path: str
    cause: str
    """What is known of the job apart from perfd, or was built in."""


_CASES = (
    _Case("shared", "traces/kineto-pp4_few", "Pipeline bubble: 4 micro-batches on 4 stages."),
    _Case(
        "made",
        "straggler",
        "Rank 2 computes more slowly than the other three, which wait for it in all-reduces.",
    ),
    _Case(
        "tracelens",
        "tests/traces/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz",
        "Input: the host prepares the next batch (DataLoader) while the GPU has nothing to do.",
    ),
    _Case(
        "hta",
        "tests/data/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
        "Computation: the GPU computes nearly all the time, mostly convolutions.",
    ),
    _Case(
        "tracelens",
        "tests/traces/h100/gaunernst_bert-small-uncased__1016001.json.gz",
        "Launches: a small model, eager; the host launches more slowly than the GPU runs the tiny kernels.",
    ),
    _Case("shared", "traces/jax-fsdp4/jax.xplane.pb.gz", "Communication: parameters and gradients of FSDP."),
    _Case(
        "hta",
        "tests/data/negative_queue_length_values_check/rank0.json.gz",
        "Host synchronization: the host waits for the GPU, and then the GPU for the host.",
    ),
    _Case("made", "slow_input", "Rank 1 fetches its input for a third of each step; the others wait for it."),
    _Case("made", "pageable_copies", "Copies from pageable host memory that nothing hides."),
    _Case(
        "tracelens",
        "tests/traces/mi300/resnet_act_checkpoint.json.gz",
        "Communication: all-reduces of gradients that computation does not hide.",
    ),
)

_GROUP = {"pg_name": "0", "pg_desc": "dp", "ranks": [0, 1, 2, 3], "pg_size": 4}
_ALL_REDUCE = {
    "Collective name": "allreduce", "Process Group Name": "0", "Process Group Description": "dp",
    "Process Group Ranks": "[0, 1, 2, 3]", "In msg nelems": 25_000_000, "dtype": "Float",
}  # fmt: skip
_RANKS, _STEPS, _STEP_US = 4, 6, 40_000.0


def _made(name: str, folder: Path) -> list[Path]:
    """A data-parallel job of four ranks with one fault, six steps of 40 ms."""
    folder.mkdir()
    paths = []
    for rank in range(_RANKS):
        operations: list[Op] = []
        ranges: list[tuple[str, float, float]] = []
        for step in range(_STEPS):
            at = step * _STEP_US
            begin = at + 200
            if name == "slow_input" and rank == 1:
                begin = at + 13_200
                ranges.append(
                    ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 20, begin - 20)
                )
            if name == "pageable_copies":
                for copy in range(8):
                    copied = begin + 1_500 * copy
                    # A copy from pageable memory returns when it is done.
                    operations.append(
                        Op(
                            "Memcpy HtoD (Pageable -> Device)",
                            copied,
                            copied + 1_450,
                            7,
                            copied + 1_455,
                            1_460,
                        )
                    )
                begin += 12_100
            length = 240.0 * (1.5 if name == "straggler" and rank == 2 else 1.0)
            count = 64 if name != "pageable_copies" else 80
            for kernel in range(count):
                start = begin + kernel * (length + 1)
                operations.append(
                    Op(
                        MATMUL,
                        start,
                        start + length,
                        7,
                        at + 100 + 5 * kernel if begin < at + 300 else begin - 3,
                    )
                )
            ready = begin + count * (length + 1)
            end = at + {"straggler": 26_400, "slow_input": 31_800, "pageable_copies": 34_500}[name]
            operations.append(Op(NCCL, ready + 5, end, 9, ready - 10, args=_ALL_REDUCE))
            for kernel in range(20):
                start = end + 10 + kernel * 150
                operations.append(
                    Op(
                        "void at::native::multi_tensor_apply_kernel<adamw>(float)",
                        start,
                        start + 148,
                        7,
                        end - 50,
                    )
                )
        trace = kineto(
            operations,
            steps={step: (step * _STEP_US, (step + 1) * _STEP_US - 1) for step in range(_STEPS)},
            ranges=ranges,
            rank=rank,
            world_size=_RANKS,
            groups=[_GROUP],
            device=rank,
        )
        paths.append(write_json(folder / f"rank-{rank}.json", trace))
    return paths


def _found(folders: dict[str, Path | None], scratch: Path) -> Iterator[tuple[_Case, list[Path]]]:
    for case in _CASES:
        if case.source == "made":
            yield case, _made(case.path, scratch / case.path)
            continue
        folder = folders[case.source]
        path = folder / case.path if folder else None
        if path is None or not path.exists():
            print(f"not there: {case.source} {case.path}")
            continue
        yield case, with_folders_opened([path])


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    shared = os.environ.get("PERFD_SHARED")
    parser.add_argument("--shared", type=Path, default=shared and Path(shared))
    parser.add_argument("--hta", type=Path)
    parser.add_argument("--tracelens", type=Path)
    args = parser.parse_args(arguments)
    args.folder.mkdir(parents=True, exist_ok=True)
    labels = {}
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        folders = {"shared": args.shared, "hta": args.hta, "tracelens": args.tracelens}
        for number, (case, paths) in enumerate(_found(folders, Path(scratch)), start=1):
            analysis = analyse(read_traces(paths))
            page = Path(scratch, "report.html")
            page.write_text(to_html(report_of_trace(analysis, diagnose(analysis))), encoding="utf-8")
            tab = browser.tab()
            tab.look(_WIDTH, _HEIGHT, calm=True)
            tab.open(page.as_uri(), "document.querySelector('h1') !== null")
            picture = args.folder / f"{number:02}.png"
            picture.write_bytes(tab.picture(height=_HEIGHT))
            tab.close()
            labels[picture.name] = {"trace": f"{case.source}: {case.path}", "cause": case.cause}
    Path(f"{args.folder}-labels.json").write_text(json.dumps(labels, indent=1), encoding="utf-8")
    print(f"{len(labels)} pictures in {args.folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

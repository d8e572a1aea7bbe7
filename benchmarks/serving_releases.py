"""`python -m benchmarks.serving_releases`: the collectors against the real metric code of releases on PyPI.

For each release it downloads the wheel (without what that depends on), runs the module that makes the metrics
in a process of its own (`benchmarks.releases.exporter`), scrapes what it exposes over HTTP, and compares:

- every series with what Prometheus' own Python parser reads on the same page;
- every quantity that was put in with what perfd makes of the page.

Wheels of vLLM have 200 to 500 MB each. `--keep DIRECTORY` keeps what was unpacked for the next time;
`--record tests/fixtures/serving` writes the pages that the tests read.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfd_collectors.serving.exposition_reader import PageReader
from perfd_collectors.serving.fetch import ServerAccess, fetch
from perfd_collectors.serving.server_scrape import FAMILIES, read_page

from perfd.analysis.serving import Snapshot

RELEASES = (
    *(("sglang", version) for version in ("0.4.3", "0.4.6", "0.4.10.post2", "0.5.1", "0.5.4")),
    *(("sglang", version) for version in ("0.5.9", "0.5.12", "0.5.20", "0.5.23")),
    *(("vllm", version) for version in ("0.6.6", "0.8.5", "0.10.2", "0.15.0", "0.22.0", "0.33.0")),
)
_PLATFORMS = tuple(f"manylinux_2_{minor}_x86_64" for minor in (28, 31, 34, 35))
_EXPORTER = "benchmarks.releases.exporter"
_START_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a release went."""

    release: str
    series: int = 0
    series_same: int = 0
    quantities: int = 0
    quantities_same: int = 0
    problems: Sequence[str] = ()

    @property
    def good(self) -> bool:
        """Whether all of it is the same, and there was something."""
        return not self.problems and self.series > 0 and self.quantities > 0


def unpacked(engine: str, version: str, directory: Path) -> Path:
    """The folder of a release's Python files, downloaded if it is not there yet."""
    folder = directory / f"{engine}-{version}"
    if folder.is_dir():
        return folder
    with tempfile.TemporaryDirectory() as temporary:
        platforms = [word for name in ("manylinux1_x86_64", *_PLATFORMS) for word in ("--platform", name)]
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir",
             "--only-binary", ":all:", *platforms, "--dest", temporary, f"{engine}=={version}"],
            check=True,
        )  # fmt: skip
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".py")])
    return folder


def run(engine: str, version: str, folder: Path, record: Path | None) -> Result:
    """Expose, scrape and compare one release, and keep the page if that is wanted."""
    release = f"{engine} {version}"
    process = subprocess.Popen(
        [sys.executable, "-m", _EXPORTER, engine, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = next((line for line in process.stdout if line.startswith('{"port"')), None)
        if line is None:
            _, said = process.communicate(timeout=_START_S)
            last = said.strip().splitlines()[-1] if said.strip() else "it says nothing"
            return Result(release=release, problems=[f"its metric code does not run here: {last}"])
        started = json.loads(line)
        body = fetch(f"http://127.0.0.1:{started['port']}/metrics", ServerAccess(timeout_s=30.0))
    finally:
        process.stdin.close()
        process.wait(_START_S)
        process.stdout.close()
        if process.stderr is not None:
            process.stderr.close()
    if record is not None:
        name = f"{engine}-{version}"
        (record / f"{name}.prom.gz").write_bytes(gzip.compress(body, mtime=0))
        (record / f"{name}.json").write_text(json.dumps(started["expected"], indent=1) + "\n")
    return compare(release, body, started["expected"])


def compare(release: str, body: bytes, expected: Mapping[str, Any]) -> Result:
    """A page against the reference parser, and its snapshot against what was put in."""
    reference, ours = _reference(body), _ours(body)
    different = [key for key in {*reference, *ours} if not _same(reference.get(key), ours.get(key))]
    seen = quantities(read_page(PageReader(FAMILIES), body, release))
    wrong = [name for name, value in expected.items() if not _same(seen.get(name), value)]
    return Result(
        release=release,
        series=len(reference),
        series_same=len(reference) - len(different),
        quantities=len(expected),
        quantities_same=len(expected) - len(wrong),
        problems=[
            *(f"{name} {dict(labels)}: {ours.get((name, labels))}" for name, labels in different[:5]),
            *(f"{name} is {seen.get(name)}, {expected[name]} was put in" for name in wrong),
        ],
    )


Key = tuple[str, frozenset[tuple[str, str]]]


def _reference(body: bytes) -> dict[Key, float]:
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def _ours(body: bytes) -> dict[Key, float]:
    page = PageReader().read(body)
    return {
        (name, frozenset(one.labels.items())): one.value
        for name, series in page.series.items()
        for one in series
    }


def quantities(snapshot: Snapshot) -> Mapping[str, Any]:
    plain = {name: getattr(snapshot, name) for name in snapshot.__slots__}
    histograms = {name: [found.count, found.sum] for name, found in snapshot.histograms.items()}
    return {**plain, **{str(name): value for name, value in snapshot.counters.items()}, **histograms}


def _same(seen: object, wanted: object) -> bool:
    if isinstance(seen, list | tuple) and isinstance(wanted, list):
        return len(seen) == len(wanted) and all(map(_same, seen, wanted))
    if isinstance(seen, int | float) and isinstance(wanted, int | float):
        return math.isclose(seen, wanted, rel_tol=1e-9) or (math.isnan(seen) and math.isnan(wanted))
    return seen == wanted


def main() -> int:
    """Run the releases that are named, or all, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("releases", nargs="*", metavar="ENGINE==VERSION", help="default: all that are known")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="where unpacked releases stay")
    parser.add_argument("--record", type=Path, metavar="DIRECTORY", help="where pages are written")
    args = parser.parse_args()
    chosen = [tuple(one.split("==", 1)) for one in args.releases] or list(RELEASES)
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        directory = args.keep or Path(temporary)
        print(f"{'release':24}{'series':>14}{'quantities':>14}", flush=True)
        for engine, version in chosen:
            result = run(engine, version, unpacked(engine, version, directory), args.record)
            results.append(result)
            print(
                f"{result.release:24}{result.series_same:>7} of {result.series:<5}"
                f"{result.quantities_same:>6} of {result.quantities}",
                flush=True,
            )
            for problem in result.problems:
                print(f"    {problem}", flush=True)
    good = sum(result.good for result in results)
    print(f"{good} of {len(results)} releases are read as they were written")
    return 0 if good == len(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())

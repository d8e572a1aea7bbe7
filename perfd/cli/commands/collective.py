"""`perfd collective`."""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict
from pathlib import Path

import msgspec
from rich import box
from rich.table import Table
from rich.text import Text

from perfd.analysis.flops.gpu_peak_lookup import find_gpu
from perfd.analysis.operations.least_time import LeastTime, least_time
from perfd.cli.arguments import positive, positive_whole
from perfd.cli.terminal import Terminal
from perfd.errors import PerfdError
from perfd.formatting import UNKNOWN, bandwidth, data_size, duration, percent
from perfd.gpu_peaks import load_peaks

_OPERATIONS = {
    "--all-reduce": "AllReduce",
    "--reduce-scatter": "ReduceScatter",
    "--all-gather": "AllGather",
    "--all-to-all": "AlltoAll",
    "--broadcast": "Broadcast",
}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s?([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_EPILOG = """\
Sizes are of the whole message, as in nccl-tests: 128MB is 128,000,000 bytes, 128MiB is 134,217,728. The least
time is size x bus factor / bandwidth of a link in one direction; half of the GPU's NVLink (of a TPU,
ICI), unless --bandwidth is given. Without --ranks it is that of many ranks.
With --json it prints one object: {"schema": "perfd.collective/1", "operation", "size_bytes", "ranks",
"link_bytes_per_s", "bus_factor", "minimum_s", "time_s", "algorithm_bytes_per_s", "bus_bytes_per_s",
"link_ratio"}. What is not known is null.
Exit codes: 0 the time was printed; 2 it cannot be given, with the reason.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    what = parser.add_mutually_exclusive_group(required=True)
    for option, operation in _OPERATIONS.items():
        what.add_argument(option, metavar="SIZE", type=_size, help=f"bytes of the {operation}, such as 1GB")
    parser.add_argument("--ranks", type=positive_whole, help="how many take part (default: many)")
    parser.add_argument("--gpu", default="H100", help="whose NVLink joins them (default: %(default)s)")
    parser.add_argument(
        "--bandwidth",
        metavar="SIZE",
        type=_size,
        help="bytes per second of a link in one direction, such as 50GB, in place of --gpu",
    )
    parser.add_argument("--time", type=positive, metavar="SECONDS", help="measured time of the collective")
    parser.add_argument("--peaks", type=Path, metavar="FILE", help="file of GPU peaks to use first")
    parser.add_argument(
        "--json", action="store_true", help="print only one object of schema perfd.collective/1"
    )


def run(args: argparse.Namespace) -> int:
    """Print the least time of a collective, and how close a measured one comes."""
    operation, size = next(
        (name, given)
        for option, name in _OPERATIONS.items()
        if (given := getattr(args, option[2:].replace("-", "_"))) is not None
    )
    link, source = (args.bandwidth, "--bandwidth") if args.bandwidth else _link(args.gpu, args.peaks)
    found = least_time(operation, size, args.ranks, link, args.time)
    if args.json:
        rates = {
            "algorithm_bytes_per_s": found.algorithm_bytes_per_s,
            "bus_bytes_per_s": found.bus_bytes_per_s,
            "link_ratio": found.link_ratio,
        }
        document = {"schema": "perfd.collective/1", **asdict(found), **rates, "link_source": source}
        print(msgspec.json.encode(document).decode())
        return 0
    console = Terminal()
    ranks = f"{found.ranks} ranks" if found.ranks else "many ranks"
    console.print(
        Text(
            f"{operation} of {data_size(size)} over {ranks}: at least {_time(found.minimum_s)}", style="bold"
        )
    )
    console.print(_table(found, source))
    return 0


def _table(found: LeastTime, source: str) -> Table:
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    rows = (
        ("bus factor", f"{found.bus_factor:.3f}"),
        ("link, one direction", f"{bandwidth(found.link_bytes_per_s)} ({source})"),
        ("took", duration(found.time_s)),
        ("algorithm bandwidth", bandwidth(found.algorithm_bytes_per_s)),
        ("bus bandwidth", bandwidth(found.bus_bytes_per_s)),
        ("of the link", percent(found.link_ratio)),
    )
    for name, value in rows:
        if value != UNKNOWN:
            table.add_row(name, value)
    return table


def _time(seconds: float) -> str:
    """Two decimals of milliseconds: the guides' own figures have as many."""
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else duration(seconds)


def _link(name: str, override: Path | None) -> tuple[float, str]:
    row = find_gpu(load_peaks(override), name)
    if row is None:
        raise PerfdError(f"The table of peaks does not know the GPU {name!r}; give --bandwidth.")
    for field, speed, kind in (
        ("nvlink_bytes_per_s", row.nvlink_bytes_per_s, ""),
        ("pcie_bytes_per_s", row.pcie_bytes_per_s, ", PCIe"),
    ):
        if speed is not None:
            return speed / 2, f"{row.name}{kind}{', unverified' if row.unverified_of(field) else ''}"
    raise PerfdError(f"{row.name} has no link in the table of peaks; set --bandwidth.")


def _size(text: str) -> float:
    found = _SIZE.fullmatch(text.strip().removesuffix("/s"))
    if not found or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write 1GB, 128MiB or a number of bytes.")
    return float(found[1]) * float((1024 if found[3] else 1000) ** _POWERS[found[2].lower()])

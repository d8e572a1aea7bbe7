"""All benchmarks that need no GPU, one after the other: `make bench`.

Each runs in a process of its own, so that none measures what another left in memory. Beside perfd's figure
stands that of a named reference in the same run, where there is one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

STEPS = (
    ("agent: CPU and memory, 8 GPUs at 1 Hz", "benchmarks.agent_cost", "--seconds", "30"),
    ("aggregator: what one process takes in from 1,000 nodes", "benchmarks.aggregator_ingest"),
    ("fleet: rounds, page and memory for 1,000 nodes with 50 jobs", "benchmarks.fleet"),
    ("history: commits to SQLite and to PostgreSQL", "benchmarks.history_commits"),
    ("reference: Prometheus scraping as many values", "benchmarks.prometheus_scrape"),
    ("aggregator: a page of 100,000 series, beside prometheus_client", "benchmarks.aggregator_render"),
    ("NCCL plugin: what an operation's callbacks cost", "benchmarks.nccl_callbacks"),
    ("agent: NCCL operations from ring buffers to records", "benchmarks.nccl_collector"),
    ("rules that ship", "benchmarks.rules"),
    ("analysis of 1,024 GPUs", "benchmarks.analysis_summary"),
    ("waiting and diagnosis of 16,384 ranks", "benchmarks.waiting"),
    ("faults: recorded runs and public timelines", "benchmarks.faults", "offline"),
    ("collector of serving engines: a page of 2,000 lines a second", "benchmarks.serving"),
    ("faults: simulated jobs", "benchmarks.faults", "simulated", "--rounds", "2", "--most-ranks", "16"),
    ("replay at full speed", "benchmarks.replay"),
    ("remote write: requests, and real servers that take them", "benchmarks.remote_write"),
    ("alerts: from a value to the webhook, through real servers", "benchmarks.alert_path"),
    ("traces: real captures beside plain decoding", "benchmarks.traces"),
    ("traces of a gigabyte: time and memory", "benchmarks.traces_large"),
)


def main() -> int:
    """Run them; the exit code is that of the first that failed."""
    for title, module, *arguments in STEPS:
        if module == "benchmarks.prometheus_scrape" and shutil.which("prometheus") is None:
            print(f"## {title}\nnot run: there is no prometheus on PATH (apt-get install prometheus)\n")
            continue
        if module == "benchmarks.history_commits" and not Path("/usr/lib/postgresql").is_dir():
            print(f"## {title}\nnot run: there is no PostgreSQL (apt-get install postgresql)\n")
            continue
        if module == "benchmarks.traces" and "PERFD_SHARED" not in os.environ:
            print(f"## {title}\nnot run: PERFD_SHARED does not name a directory with captures\n")
            continue
        print(f"## {title}", flush=True)
        code = subprocess.run([sys.executable, "-m", module, *arguments], check=False).returncode
        print(flush=True)
        if code != 0:
            return code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

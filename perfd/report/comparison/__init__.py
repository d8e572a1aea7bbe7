"""What changed between two runs."""

from perfd.report.comparison.bench_runs import measures_of_benchmarks, results_in
from perfd.report.comparison.measures import MeasuredRun, measures_of_summary, measures_of_trace
from perfd.report.comparison.run_comparison import (
    RunComparison,
    UnrelatedRunsError,
    compare,
    to_json,
)
from perfd.report.comparison.summary_files import jobs_of, one_job, read_summary, summary_of_run

__all__ = [
    "MeasuredRun",
    "RunComparison",
    "UnrelatedRunsError",
    "compare",
    "jobs_of",
    "measures_of_benchmarks",
    "measures_of_summary",
    "measures_of_trace",
    "one_job",
    "read_summary",
    "results_in",
    "summary_of_run",
    "to_json",
]

"""The process that `perfd run` starts, and its standard streams."""

from perfd.session.job.child_process import WATCHED, ChildProcess, CommandError, exit_code
from perfd.session.job.job_naming import job_name, results_folder
from perfd.session.job.output_relay import JobStream, OutputRelay, open_outputs

__all__ = [
    "WATCHED",
    "ChildProcess",
    "CommandError",
    "JobStream",
    "OutputRelay",
    "exit_code",
    "job_name",
    "open_outputs",
    "results_folder",
]

"""Captures of a SLURM job without agents: a short step of the job does the agents' work."""

from perfd.session.slurm.helper_protocol import FromNode, lines_of
from perfd.session.slurm.node_helper import serve
from perfd.session.slurm.slurm_capture import TOOLS, CaptureOptions, SlurmCapture, capture_id
from perfd.session.slurm.slurm_jobs import Slurm

__all__ = [
    "TOOLS",
    "CaptureOptions",
    "FromNode",
    "Slurm",
    "SlurmCapture",
    "capture_id",
    "lines_of",
    "serve",
]

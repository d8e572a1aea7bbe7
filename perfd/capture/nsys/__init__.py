"""Captures with Nsight Systems."""

from perfd.capture.nsys.ncu_plan import REPLAY_MODES, NcuPlan, plan_ncu
from perfd.capture.nsys.nsys_cli import NsysCli, importer_problem
from perfd.capture.nsys.nsys_installation import Installation, find_libdw, find_nsys, parse_version
from perfd.capture.nsys.nsys_launch import Launch, plan_launch
from perfd.capture.nsys.nsys_plan import NsysPlan, plan_nsys
from perfd.capture.nsys.nsys_tool import NsysOptions, NsysTool

__all__ = [
    "REPLAY_MODES",
    "Installation",
    "Launch",
    "NcuPlan",
    "NsysCli",
    "NsysOptions",
    "NsysPlan",
    "NsysTool",
    "find_libdw",
    "find_nsys",
    "importer_problem",
    "parse_version",
    "plan_launch",
    "plan_ncu",
    "plan_nsys",
]

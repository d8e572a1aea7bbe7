"""Operations under the roofline of a GPU, from shapes, HLO lines or Nsight Compute."""

from perfd.trace.roofline.hlo_cost import HloCost, hlo_costs
from perfd.trace.roofline.hlo_findings import (
    LAYOUT_CHANGE,
    layout_copies,
    neighbors,
    sharded_products,
)
from perfd.trace.roofline.hlo_fragment import read_fragment
from perfd.trace.roofline.hlo_line import read_line, shape_words
from perfd.trace.roofline.hlo_module import HloModule, read_module
from perfd.trace.roofline.kernel_bottleneck import UNIT_NAMES, judge
from perfd.trace.roofline.kernel_metrics import KernelMetrics
from perfd.trace.roofline.ncu_report import read_ncu
from perfd.trace.roofline.roofline_model import (
    AT_LIMIT_RATIO,
    LATENCY_RATIO,
    OperationWork,
    Placement,
    RooflineVerdict,
    matmul,
    place,
)

__all__ = [
    "AT_LIMIT_RATIO",
    "LATENCY_RATIO",
    "LAYOUT_CHANGE",
    "UNIT_NAMES",
    "HloCost",
    "HloModule",
    "KernelMetrics",
    "OperationWork",
    "Placement",
    "RooflineVerdict",
    "hlo_costs",
    "judge",
    "layout_copies",
    "matmul",
    "neighbors",
    "place",
    "read_fragment",
    "read_line",
    "read_module",
    "read_ncu",
    "shape_words",
    "sharded_products",
]

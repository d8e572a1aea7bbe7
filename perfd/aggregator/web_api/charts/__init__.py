"""Data of the page's charts of steps, GPUs and ranks, small enough to send."""

from perfd.aggregator.web_api.charts.gpu_chart import gpu_columns
from perfd.aggregator.web_api.charts.peer_matrices import peer_matrices
from perfd.aggregator.web_api.charts.rank_columns import rank_columns, without_ranks
from perfd.aggregator.web_api.charts.step_chart import progress_columns, together, trend

__all__ = [
    "gpu_columns",
    "peer_matrices",
    "progress_columns",
    "rank_columns",
    "together",
    "trend",
    "without_ranks",
]

"""The parser of Megatron-LM logs and its forks."""

from perfd_collectors.training_log.megatron.megatron_parser import MegatronParser
from perfd_collectors.training_log.megatron.megatron_timers import one_line_timers

__all__ = [
    "MegatronParser",
    "one_line_timers",
]

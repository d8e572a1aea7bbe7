"""Logs of reinforcement learning, whose step is a round of generation and updates."""

from perfd_collectors.training_log.formats.reinforcement.openrlhf import OpenRlhfParser
from perfd_collectors.training_log.formats.reinforcement.result_blocks import ResultBlockParser
from perfd_collectors.training_log.formats.reinforcement.slime import SlimeParser
from perfd_collectors.training_log.formats.reinforcement.verl import VerlParser

__all__ = ["OpenRlhfParser", "ResultBlockParser", "SlimeParser", "VerlParser"]

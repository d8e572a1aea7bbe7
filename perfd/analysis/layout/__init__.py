"""Which communicator serves which parallel dimension, where ranks run, and how fast their links are."""

from perfd.analysis.layout.link_bandwidth import data_parallel_link_bytes_per_s, speeds
from perfd.analysis.layout.process_groups import (
    ALL_REDUCE,
    ALL_TO_ALL,
    PAIR_OPERATION,
    WORLD,
    Names,
    dimension_name,
    group_name,
    group_names,
)
from perfd.analysis.layout.rank_location import LinkSpeeds, RankLocations, places
from perfd.analysis.layout.rank_roles import ALONE, role_name, roles_of
from perfd.analysis.layout.tensor_group_nodes import TensorGroups, tensor_groups

__all__ = [
    "ALL_REDUCE",
    "ALL_TO_ALL",
    "ALONE",
    "PAIR_OPERATION",
    "WORLD",
    "LinkSpeeds",
    "Names",
    "RankLocations",
    "TensorGroups",
    "data_parallel_link_bytes_per_s",
    "dimension_name",
    "group_name",
    "group_names",
    "places",
    "role_name",
    "roles_of",
    "speeds",
    "tensor_groups",
]

"""Records: how their classes are made."""

from perfd.records.record_classes import dataclass

__all__ = ["dataclass"]

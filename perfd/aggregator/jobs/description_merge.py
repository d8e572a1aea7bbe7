"""What a job says of itself, put together from several descriptions of one start."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from perfd.model import JobDescription, ModelSource, ParallelLayout
from perfd.wire.convert import bounded_entries

_MODEL_SIZES = ("layers", "hidden_size", "attention_heads")
_MOST_VERSIONS = 4
"""That one sentence lists; the others are counted."""
_GROUPS = ("world_size", "tp", "pp", "dp", "cp", "ep", "vp")


def is_same_start(old: JobDescription, new: JobDescription) -> bool:
    """Whether two descriptions agree on layout and model, so that they can be of one start of the job."""
    pairs = [(getattr(old.parallel, name), getattr(new.parallel, name)) for name in _GROUPS]
    if old.model and new.model and old.model_source == new.model_source:
        # Later lines may add to the same model; the first has these three.
        pairs += [(getattr(old.model, name), getattr(new.model, name)) for name in _MODEL_SIZES]
    return all(before is None or after is None or before == after for before, after in pairs)


def merged_description(old: JobDescription, new: JobDescription, cut: Counter[str]) -> JobDescription:
    """The old description with everything that the new one knows; a model is that of the better source.

    It holds no more than one record may; what is `cut` for that is counted.
    """
    changes = {
        field.name: value
        for field in dataclasses.fields(JobDescription)
        if (value := getattr(new, field.name)) is not None and value != ""
    }
    keeps_model = new.model is None or (old.model is not None and _rank(old) < _rank(new))
    changes["model_source"] = (old if keeps_model else new).model_source
    changes["model"] = (old if keeps_model else new).model
    changes["parallel"] = _merged_layout(old.parallel, new.parallel)
    changes["arguments"] = bounded_entries({**old.arguments, **new.arguments}, cut)
    changes["software"] = bounded_entries({**old.software, **new.software}, cut)
    return dataclasses.replace(old, **changes)


class SoftwareOfNodes:
    """The versions that each node of a job reports."""

    def __init__(self) -> None:
        self._by_node: dict[str, Mapping[str, str]] = {}

    def joined(self, description: JobDescription, node: str, *, known: bool) -> JobDescription:
        """A node's description with the versions of all nodes; where these differ, joined by commas.

        Those of a node that is not `known` are left out.
        """
        if not description.software:
            return description
        if not known:
            return dataclasses.replace(description, software={})
        self._by_node[node] = description.software
        found: dict[str, set[str]] = {}
        for versions in self._by_node.values():
            for name, version in versions.items():
                found.setdefault(name, set()).add(version)
        joined = {name: _joined(sorted(found[name])) for name in sorted(found)}
        return dataclasses.replace(description, software=joined)


def _joined(versions: Sequence[str]) -> str:
    more = len(versions) - _MOST_VERSIONS
    return ", ".join(versions[:_MOST_VERSIONS]) + (f" and {more} more" if more > 0 else "")


def _rank(description: JobDescription) -> int:
    """How far a model is from what the job itself says of it."""
    return (None, *ModelSource).index(description.model_source)


def _merged_layout(old: ParallelLayout, new: ParallelLayout) -> ParallelLayout:
    return dataclasses.replace(
        old,
        **{
            field.name: value
            for field in dataclasses.fields(ParallelLayout)
            if (value := getattr(new, field.name)) is not None
        },
    )

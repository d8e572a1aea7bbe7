"""Names by which jobs are known: two jobs of one name stay two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perfd.model import JobOrigin

_MOST_NODES = 65_536
"""Names of nodes that are kept for jobs whose name another one had first; bounds memory."""


class JobNames:
    """Which job a node means by a name.

    The first job of a name has that name alone, also where a node with pods of several namespaces says
    `NAMESPACE/NAME`. Another one, by its origin, is called `CLUSTER/NAMESPACE/NAME`, with the parts that are
    known, else `NAME@OWNER`.
    """

    def __init__(self) -> None:
        self._keys: dict[str, dict[str, str]] = {}
        """By node: the job's name of those that differ from what the node says."""

    def key(self, name: str, node: str) -> str:
        """The job that a node means by a name."""
        own = self._keys.get(node)
        return name if own is None else own.get(name, name)

    def own_name(self, node: str, key: str) -> str:
        """What a node calls a job."""
        return next((name for name, known in self._keys.get(node, {}).items() if known == key), key)

    def assign(self, origin: JobOrigin, node: str, known: Mapping[str, JobOrigin | None]) -> str | None:
        """The job of this origin, which may be a new one; None when there is none.

        `known` has the origins of those of its `candidates` that there are.
        From now on the node means it by that name.
        """
        for key in candidates(origin):
            if key not in known or (other := known[key]) is None or other.may_be(origin):
                break
        else:
            return None
        own = self._keys.get(node, {})
        if key == origin.job:
            own.pop(origin.job, None)
        elif origin.job in own or sum(map(len, self._keys.values())) < _MOST_NODES:
            self._keys.setdefault(node, own)[origin.job] = key
        else:
            return None
        return key

    def restore(self, name: str, node: str, key: str) -> None:
        """Know from history which job a node means by a name."""
        if key != name:
            self._keys.setdefault(node, {})[name] = key

    def rank_entities(self, entities: Sequence[str], node: str) -> Sequence[str]:
        """Entities `NAME/RANK` of a node with the jobs that it means by their names."""
        own = self._keys.get(node)
        if not own:
            return entities
        parted = (entity.rpartition("/") for entity in entities)
        return [f"{own.get(name, name)}{slash}{rank}" for name, slash, rank in parted]

    def forget(self, key: str) -> None:
        """The job is gone; what a node says of the name next is about the first job of it."""
        for node, own in list(self._keys.items()):
            for name in [name for name, known in own.items() if known == key]:
                del own[name]
            if not own:
                del self._keys[node]


def candidates(origin: JobOrigin) -> Iterator[str]:
    """The names that a job of this origin may have, the plainest first."""
    name = origin.job.removeprefix(f"{origin.namespace}/") if origin.namespace else origin.job
    yield name
    qualified = "/".join(part for part in (origin.cluster, origin.namespace, name) if part)
    if qualified != name:
        yield qualified
    if origin.owner:
        yield f"{qualified}@{origin.owner}"

"""Snapshots that a table of changes no longer keeps.

A stream makes a snapshot per batch, and each commit reads and writes the descriptions of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any

__all__ = ["Expired", "expired"]

# How many snapshots a table keeps; at most twice as many, because a commit expires many at once.
_KEPT = 100


@dataclass(frozen=True)
class Expired:
    """Snapshots that a commit expires.

    Attributes:
        ids: their ids.
        snapshots: the same, oldest first.
        neighbours: the snapshots before and after them, which stay; and the newest one.
    """

    ids: list[int]
    snapshots: Sequence[Any]
    neighbours: Sequence[Any]

    def files(self, io: Any) -> set[str]:
        """The paths of the manifests and of their lists that no other snapshot needs.

        Every snapshot has the manifests of the one before, until they are merged. So a manifest that some other
        snapshot needs is in a neighbour, too.

        Args:
            io: of the table.
        """
        needed = {manifest.manifest_path for each in self.neighbours for manifest in each.manifests(io)}
        found = {manifest.manifest_path for each in self.snapshots for manifest in each.manifests(io)}
        return (found - needed) | {each.manifest_list for each in self.snapshots}


def expired(metadata: Any) -> Expired | None:
    """Chooses snapshots to expire. None if the table is left as it is.

    These are appends that were followed by appends only: later snapshots have all of their rows. A table with branches
    or tags, or which was rolled back, is left as it is.

    Args:
        metadata: of a table of pyiceberg.
    """
    from pyiceberg.table import TableProperties
    from pyiceberg.table.snapshots import Operation

    ordered = sorted(metadata.snapshots, key=lambda each: each.sequence_number)
    kept = _kept(metadata.properties.get(TableProperties.MIN_SNAPSHOTS_TO_KEEP))
    # Other programs may leave the summary out.
    operations = (None if each.summary is None else each.summary.operation for each in reversed(ordered))
    appends = sum(1 for _ in takewhile(lambda each: each == Operation.APPEND, operations))
    begin = len(ordered) - appends
    if appends < 2 * kept or len(metadata.refs) != 1:
        return None
    ids = {each.snapshot_id for each in ordered}
    for k, (old, new) in enumerate(pairwise(ordered), 1):
        # The parent of the first append may have expired.
        if new.parent_snapshot_id != old.snapshot_id and (k != begin or new.parent_snapshot_id in ids):
            return None
    gone = ordered[begin : begin + kept]
    neighbours = [*ordered[:begin][-1:], ordered[begin + kept], ordered[-1]]
    return Expired([each.snapshot_id for each in gone], gone, neighbours)


def _kept(given: str | None) -> int:
    """How many snapshots a table keeps, by its property."""
    return int(given) if given is not None and given.isdecimal() and int(given) else _KEPT

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
        neighbours: the snapshots before and after them, which stay.
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

    kept = max(int(metadata.properties.get(TableProperties.MIN_SNAPSHOTS_TO_KEEP, _KEPT)), 1)
    ordered = sorted(metadata.snapshots, key=lambda each: each.sequence_number)
    # The parent of a snapshot is None after it has expired.
    is_line = all(new.parent_snapshot_id in (old.snapshot_id, None) for old, new in pairwise(ordered))
    if len(metadata.refs) != 1 or not is_line:
        return None
    appends = sum(
        1 for _ in takewhile(lambda each: each.summary.operation == Operation.APPEND, reversed(ordered))
    )
    if appends < 2 * kept:
        return None
    begin = len(ordered) - appends
    gone, neighbours = ordered[begin : begin + kept], [*ordered[:begin][-1:], ordered[begin + kept]]
    return Expired([each.snapshot_id for each in gone], gone, neighbours)

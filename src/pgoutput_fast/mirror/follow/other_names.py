"""Tables whose changes the stream has sent under a name that is left out, or that another table of the mirror has."""

from __future__ import annotations

from collections.abc import Iterable

from pgoutput_fast.mirror.follow.changes import ChangeRun, committed_after
from pgoutput_fast.mirror.follow.tables import MirroredTable

__all__ = ["OtherNames"]


class OtherNames:
    """Finds changes of tables that no table of the mirror takes, or another one.

    The latter go into the history of the other name. The table may get its name back before the catalogs are
    checked. So it must be loaded again: otherwise the loss of the change would go unnoticed.

    Args:
        tables: the tables. Their oids do not change while this object is used.
    """

    def __init__(self, tables: Iterable[MirroredTable]) -> None:
        self._by_oid: dict[int, list[MirroredTable]] = {}
        for each in tables:
            if each.follows:
                self._by_oid.setdefault(each.record.oid, []).append(each)

    def check(self, run: ChangeRun, taker: MirroredTable | None) -> None:
        """Notes that tables with changes under another name must be loaded.

        Args:
            run: the changes.
            taker: the table that takes them; None for none.
        """
        name = run.relation.qualified_name
        for table in self._by_oid.get(run.relation.oid, ()):
            if not table.follows or table is taker or table.position is None:
                continue
            # A load after these changes has them.
            if committed_after(run.rows, table.position).num_rows:
                table.want_load(f"its name was {name} when rows changed")

"""Changes and values that could not be decoded or have no Arrow form: a table beside the history."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.base.display import counted
from pgoutput_fast.catalog.relations import Relation
from pgoutput_fast.merge.keys import ambiguous_key, key_of, without_bound
from pgoutput_fast.mirror.follow.history import AppendTable, HistoryFiles
from pgoutput_fast.mirror.follow.tables import MirroredTable

__all__ = ["UNDECODABLE_ROW", "LoadRejects", "commit_rejects", "count_rejects"]

_log = logging.getLogger("pgoutput_fast.mirror")

UNDECODABLE_ROW = "a row of it cannot be decoded: its rejects say why"


def commit_rejects(
    rejects: AppendTable, files: HistoryFiles, position: int, table: MirroredTable | None
) -> None:
    """Commits and counts rejects. Logs the first ones, and every doubling of their number.

    Args:
        rejects: the table of the rejects.
        files: the files with them.
        position: the new position of the table of the rejects.
        table: whose rejects they are; None if unknown.
    """
    written, schema = files.of(rejects)
    if schema is None:
        return
    rejects.commit(written, position, schema)
    if table is None:
        return
    before = table.record.rejects
    count_rejects(table)
    if (count := table.record.rejects).bit_length() > before.bit_length():
        _log.warning(
            "%s: %s without an Arrow form, or not decoded: see %s",
            table.record.table,
            counted(count, "value or change", "values or changes"),
            rejects.directory,
        )


def count_rejects(table: MirroredTable) -> None:
    """Stores the number of rejects of a table."""
    if (count := table.rejects.count()) != table.record.rejects:
        table.remember(rejects=count)


class LoadRejects:
    """The rejects of a load or a repair.

    Args:
        table: the table that is loaded.
        relation: the server's relation.
        files: for the rejects. The table of the rejects gets them with `commit`.
        position: of the rows, and the LSN of their rejects.
        rejects_lsn: the LSN up to which the table then has the rejects of changes.
    """

    def __init__(
        self, table: MirroredTable, relation: Relation, files: HistoryFiles, position: int, rejects_lsn: int
    ) -> None:
        self._table, self._relation, self._files = table, relation, files
        self._position, self._rejects_lsn = position, rejects_lsn
        self._is_incomplete = False

    def of(
        self, rows: Iterator[pa.Table], rejects: list[pa.RecordBatch], *, keep: bool
    ) -> Iterator[pa.Table]:
        """Yields the rows and collects their rejects.

        Args:
            rows: rows of the table.
            rejects: of these rows. The reader adds them, and this removes them.
            keep: whether to keep values without an Arrow form.

        Raises:
            ValueError: if a row cannot be decoded, after its reject is committed; or if an array in a key lost its
                lower bound, so that another row may have the same elements.
        """
        for each in rows:
            self._take(rejects, keep)
            yield each
        self._take(rejects, keep)
        if self._is_incomplete:
            self.commit()
            raise ValueError(UNDECODABLE_ROW)

    def _take(self, found: list[pa.RecordBatch], keep: bool) -> None:
        while found:
            rejects = pa.Table.from_batches([found.pop()])
            if (dropped := without_bound(rejects, key_of(self._relation))).num_rows:
                raise ValueError(ambiguous_key(self._relation.qualified_name, dropped["column"][0].as_py()))
            lost = rejects.filter(pc.is_null(rejects["change_type"]))
            self._is_incomplete = self._is_incomplete or bool(lost.num_rows)
            self._add(rejects if keep else lost)

    def _add(self, rejects: pa.Table) -> None:
        at = rejects.schema.get_field_index("lsn")
        lsns = pa.repeat(pa.scalar(self._position, pa.int64()), rejects.num_rows)
        self._files.add(self._table.rejects, rejects.set_column(at, rejects.schema.field(at), lsns))

    def commit(self) -> None:
        """Commits the collected rejects."""
        rejects = self._table.rejects
        commit_rejects(rejects, self._files, max(rejects.position() or 0, self._rejects_lsn), self._table)

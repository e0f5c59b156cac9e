"""Tables that were altered, and have no changes since: no change brings their new columns, so the catalogs do."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pyarrow as pa

from pgoutput_fast.catalog.relations import Catalog, Column, Relation
from pgoutput_fast.merge.effect.fill import parts_of
from pgoutput_fast.mirror.follow.altered_columns import alter_row
from pgoutput_fast.mirror.follow.changes import decoded_row
from pgoutput_fast.mirror.follow.history import HistoryFiles
from pgoutput_fast.mirror.follow.tables import MirroredTable, applying, relation_columns
from pgoutput_fast.mirror.schema_changes.fingerprint import CatalogColumn, Fingerprint
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.mirror.state.table_record import KnownColumn
from pgoutput_fast.schema.options import Options
from pgoutput_fast.storage.stores import Store

__all__ = ["QuietTables"]

_log = logging.getLogger("pgoutput_fast.mirror")


class QuietTables:
    """Gives tables without changes their new columns that have values in older rows.

    Args:
        store: the target.
        run: names the process.
        server: gives the end of its WAL, and types.
        options: how to decode.
    """

    def __init__(self, store: Store, run: str, server: ServerView, options: Options) -> None:
        self._store, self._run, self._server, self._options = store, run, server, options

    def check(self, table: MirroredTable, now: Fingerprint, through: int) -> None:
        """Gives a table its new columns, if the stream has had no change with them up to an earlier check.

        Args:
            table: the table. It follows, and the catalogs have been noted.
            now: the catalogs.
            through: the commits up to this LSN were taken.
        """
        if table.follows and table.position is not None:
            with applying(table):
                self._check(table, now, through)

    def _check(self, table: MirroredTable, now: Fingerprint, through: int) -> None:
        (new, taken), record = _new_columns(table, now), table.record
        if taken:
            return table.want_load(f"its column {taken[0]!r} was renamed, or added again")
        if record.awaited is None or set(record.awaited[1]) != set(new):
            awaited = (self._server.now()[1], tuple(sorted(new))) if new else None
            if awaited != record.awaited:
                table.remember(awaited=awaited)
        elif through >= record.awaited[0] and not table.waiting_rows:
            position = record.awaited[0] - 1
            # Changes without the columns may have come together with later commits of other tables.
            if max(table.position or 0, table.history.position() or 0) > position:
                table.remember(awaited=(self._server.now()[1], record.awaited[1]))
            else:
                self._fill(table, new, position)

    def _fill(
        self, table: MirroredTable, new: Mapping[str, tuple[CatalogColumn, str | None]], position: int
    ) -> None:
        """Fills new columns: first in the history, then in the current table. After a crash, what is done stays.

        Args:
            table: the table.
            new: {name: (the column, its former name or None)}.
            position: after all changes without the columns, and before all others.
        """
        columns = tuple(Column(name, each.type_oid, each.typmod) for name, (each, _) in new.items())
        relation = Relation(table.record.oid, 0, "", "", "d", columns)
        values = {
            name: each.missing
            for name, (each, former) in new.items()
            if former is None and each.missing is not None
        }
        catalog = Catalog([relation]).explained(self._server.types)
        row = decoded_row(relation, values, catalog=catalog, options=self._options)
        if row is None:
            return table.want_load("the value of a new column in old rows has no Arrow form")
        altered = [(former or "", name) for name, (_, former) in new.items()]
        row = alter_row(_at(row, position), row, altered)
        assert table.position is not None
        if (table.history.position() or 0) < position:
            with HistoryFiles(self._store, self._run) as files:
                table.add_history(row, files)
                table.commit_history(files, position)
        found = {
            name: KnownColumn(
                new[name][0].number, str(kind), (position, -1), new[name][0].missing, new[name][1]
            )
            for name, kind in ((field.name, field.type) for field in relation_columns(row.schema))
        }
        if table.position < position:
            # After the history: its readers rename a column where it says so. Before the table: a kill decides nothing.
            renames = table.record.renames_with(found, (position, -1), in_place=table.renames_columns)
            if renames != tuple(table.record.renames):
                table.remember(renames=renames)
            renamed = table.record.renames_between(position - 1, position)
            table.current.apply_parts(parts_of(row, (), renamed), position, table.position)
            table.read_position()
        gone = {former for _, former in new.values()}
        kept = {name: each for name, each in table.record.columns.items() if name not in gone}
        shapes = table.record.shapes_with([*kept, *found], position)
        table.remember(columns=kept | found, shapes=shapes, awaited=None)
        _log.info("%s: added %s", table.record.table, ", ".join(new))


def _new_columns(
    table: MirroredTable, now: Fingerprint
) -> tuple[dict[str, tuple[CatalogColumn, str | None]], list[str]]:
    """{name: (column, its former name or None)} of the columns that no change has had, with values in older rows.

    And the names of those which cannot be filled, because the current table still has a column of this name. A key gets
    another name only with a change.
    """
    record = table.record
    names = {each.number: name for name, each in record.columns.items()}
    key = record.keys[-1][1] if record.keys else ()
    new = {
        name: (each, names.get(each.number))
        for name, each in now.columns.items()
        if name not in record.columns and each.is_published
    }
    found = {
        name: (each, former)
        for name, (each, former) in new.items()
        if former not in key and (former is not None or each.missing is not None)
    }
    # A process may have been killed when the current table had got them.
    is_done = record.awaited is not None and table.position == record.awaited[0] - 1
    existing = table.current.schema() if found and not is_done else None
    return found, [] if existing is None else [name for name in found if name in existing.names]


def _at(row: pa.Table, position: int) -> pa.Table:
    """A row as a change that commits at a position, with the ordinal of rows that are in no message."""
    for name, value in (("_commit_lsn", position), ("_seq", 0), ("_commit_timestamp", None)):
        at = row.schema.get_field_index(name)
        field = row.schema.field(at)
        row = row.set_column(at, field, pa.array([value], field.type))
    return row

"""Shared code of the tests of the fresh view: a mirror whose current tables lag, and comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

import pgoutput_fast as pgo
from pgoutput_fast.encode import UNCHANGED, ColumnSpec, RelationSpec, Writer
from pgoutput_fast.merge.effect.effect import current_schema
from pgoutput_fast.merge.formats import open_current_table
from pgoutput_fast.mirror import Mirror, MirrorError, fresh
from pgoutput_fast.mirror.follow.history import AppendTable, HistoryFiles
from pgoutput_fast.mirror.follow.tables import relation_columns
from pgoutput_fast.mirror.state.mirror_state import Beginning, MirrorState
from pgoutput_fast.mirror.state.table_record import KnownColumn, TableRecord
from pgoutput_fast.protocol.lsn import parse_lsn
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.options import TableOptions
from support.capturing import wait_until
from support.mirrors import Following, Place, mirrored_rows, rows_of

__all__ = [
    "ahead",
    "expect_fresh",
    "expect_rows",
    "fresh_at",
    "fresh_total",
    "make_target",
    "position_now",
    "settled",
]

_MARKERS = "markers"


@contextmanager
def ahead(place: Place, *, sound: bool = True, **more: Any) -> Iterator[Mirror]:
    """A running mirror that does not change its current tables before its end. It has its own table.

    Args:
        place: the database and the target.
        sound: whether no table may have an error at the end.
        more: arguments of `Mirror`.
    """
    place.database.execute(f"CREATE TABLE IF NOT EXISTS {_MARKERS} (n serial PRIMARY KEY)")
    (found,) = place.database.execute(
        f"SELECT count(*) FROM pg_publication_tables WHERE pubname = 'mirrored' AND tablename = '{_MARKERS}'"
    )
    if not found[0]:
        place.database.execute(f"ALTER PUBLICATION mirrored ADD TABLE {_MARKERS}")
    with place.mirror(**{"seconds": 0.2, "merge_seconds": 1000.0, **more}) as mirror:
        mirror.run(until_lsn="now")
        with Following(mirror) as following:
            yield mirror
        assert following.problem is None
        mirror.run(until_lsn="now")
        if sound:
            place.expect_no_errors(mirror)


def position_now(place: Place, **more: Any) -> int:
    """The end of the server's WAL, once the histories include it. `more` are arguments of `fresh`."""
    (found,) = place.database.execute("SELECT pg_current_wal_lsn()::text")
    lsn = parse_lsn(found[0])
    place.database.execute(f"INSERT INTO {_MARKERS} DEFAULT VALUES")

    def has_all() -> bool:
        try:
            fresh(place.target, f"public.{_MARKERS}", position=lsn, **more)
        except LookupError:
            return False
        return True

    wait_until(has_all)
    return lsn


def settled(table: str, place: Place, lsn: int) -> Any:
    """The position to read a table at: a later one, if the table is reloaded because its columns have changed."""

    def is_loaded() -> bool:
        try:
            fresh(place.target, table, [])
        except MirrorError:
            return False
        return True

    wait_until(is_loaded)
    try:
        fresh(place.target, table, [], lsn)
    except LookupError:
        return "latest"
    return lsn


def fresh_at(place: Place, table: str, position: Any) -> pa.Table:
    return fresh(place.target, table, position=position)


def fresh_total(place: Place) -> int:
    """The total of the accounts of `support.transfers`, both sides at the same position."""
    left = fresh(place.target, "public.left_accounts", ["balance"])
    position = (left.schema.metadata or {})[b"position"].decode()
    right = fresh(place.target, "public.right_accounts", ["balance"], position)
    return sum(left["balance"].to_pylist()) + sum(right["balance"].to_pylist())


def expect_fresh(place: Place, table: str, position: Any) -> None:
    """Checks that the fresh view equals the server's current content, cell by cell."""
    expect_rows(place, table, fresh_at(place, table, position))


def expect_rows(place: Place, table: str, rows: pa.Table) -> None:
    names, expected = rows_of(place.database, table)
    found = mirrored_rows(rows, names)
    assert found == expected, (table, found - expected, expected - found)


def make_target(target: Path) -> None:
    """Makes the target of a mirror: a table `public.t` with a row, and changes of it that are not merged yet."""
    store = open_store(target)
    store.make()
    relation = RelationSpec(16401, "public", "t", (ColumnSpec("id", 20, key=True), ColumnSpec("big", 25)))
    writer = Writer()
    sent = writer.begin(7, 200, 0) + writer.change(relation, "update", key=["1", None], new=["2", UNCHANGED])
    sent += writer.change(relation, "insert", new=["3", "new"]) + writer.commit(200, 208, 0)
    rows = pgo.decode(sent, options=pgo.Options(transactions="committed")).table("public.t")
    schema = current_schema(relation_columns(rows.schema))
    loaded = pa.Table.from_pylist([{"id": 1, "big": "x", "_commit_lsn": 100}], schema)
    open_current_table("delta", store, "public.t", TableOptions()).replace(loaded.to_batches(), schema, 100)
    history = AppendTable(store, "history/public.t", TableOptions())
    with HistoryFiles(store, "made") as files:
        files.add(history, rows)
        history.commit(*_with_position(files.of(history), 200))
    state = MirrorState(store)
    columns = {name: KnownColumn(None, "") for name in ("id", "big")}
    state.set_table("public.t", TableRecord("public.t", 16401, columns, "follow", keys=((101, ("id",)),)))
    state.set_history_lsn(200)
    state.set_beginning(Beginning("s", ("p",), "delta", None, "done", True, 100))


def _with_position(written: tuple[list[Any], Any], position: int) -> tuple[list[Any], int, Any]:
    files, schema = written
    return files, position, schema

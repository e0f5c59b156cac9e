"""Whether a table has rows, or old rows, and what happens if the server cannot say."""

from __future__ import annotations

import pytest

from pgoutput_fast.postgres import row_age
from pgoutput_fast.postgres.row_age import RowAgeError, has_row
from support import pg

pytestmark = pytest.mark.few_servers


def test_rows_before_a_transaction(database: pg.Database) -> None:
    database.execute("CREATE TABLE old_rows (id int)", "INSERT INTO old_rows VALUES (1)")
    ((xid,),) = database.execute("SELECT xmin::text::bigint FROM old_rows")
    assert has_row(database.dsn, "public.old_rows", xid) is False
    assert has_row(database.dsn, "public.old_rows", xid + 1) is True
    assert has_row(database.dsn, "public.old_rows") is True
    assert has_row(database.dsn, "public.no_such_table", xid) is None
    database.execute("DELETE FROM old_rows")
    assert has_row(database.dsn, "public.old_rows") is False


def test_a_table_that_somebody_has_locked(database: pg.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_age, "_LOCK_MS", 50)
    database.execute("CREATE TABLE locked (id int)")
    connection = database.connect()
    connection.autocommit = False
    try:
        connection.cursor().execute("LOCK TABLE locked")
        with pytest.raises(RowAgeError, match="lock timeout"):
            has_row(database.dsn, "public.locked")
    finally:
        connection.close()

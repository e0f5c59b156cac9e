"""Somebody swaps a table for a view that calls their function while a superuser reads it: the function never runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import psycopg2
import pytest

from pgoutput_fast.capture import Snapshot
from pgoutput_fast.postgres.row_age import RowAgeError, has_row
from pgoutput_fast.postgres.session import connect
from pgoutput_fast.snapshot.read import TableLostError
from support import pg
from support.forms import and_slow

pytestmark = pytest.mark.unsanitized

VERSIONS = (10, 14, 15, 18)
_READS = 200
_ROWS = 40
_SWAP = (
    "ALTER SCHEMA {0} RENAME TO {0}_away",
    "ALTER SCHEMA {0}_b RENAME TO {0}",
    "ALTER SCHEMA {0} RENAME TO {0}_b",
    "ALTER SCHEMA {0}_away RENAME TO {0}",
)
# What runs as a superuser in a read-only transaction may start programs and write files, so it need not even try.
_TRAP = """
CREATE FUNCTION {0}.trap(int) RETURNS int {1} LANGUAGE plpgsql AS
$$ BEGIN IF current_setting('is_superuser') = 'on' THEN RAISE EXCEPTION 'trapped'; END IF; RETURN $1; END $$
"""
# The operators of a row filter are the server's own. But the role may say how a type of its own becomes another one.
_CAST = (
    "CREATE TYPE {0}.odd AS (i int)",
    "CREATE FUNCTION {0}.to_int({0}.odd) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'trapped'; END $$",
    "CREATE CAST ({0}.odd AS int) WITH FUNCTION {0}.to_int AS IMPLICIT",
)


class Swapper:
    """Two schemas of an ordinary role: `table.t` and, under its name for moments, another thing called `t`."""

    def __init__(self, database: pg.Database, trap: str) -> None:
        self.database = database
        self.role, self.schema = f"{database.name}_r", f"{database.name}_a"
        database.execute(
            f"CREATE ROLE {self.role}",
            f"GRANT CREATE ON DATABASE {database.name} TO {self.role}",
            f"SET ROLE {self.role}",
            *(f"CREATE SCHEMA {name}" for name in (self.schema, f"{self.schema}_b", f"{self.schema}_f")),
            f"CREATE TABLE {self.schema}.t (id int PRIMARY KEY, note text)",
            f"INSERT INTO {self.schema}.t SELECT i, 'x' FROM generate_series(1, {_ROWS}) i",
            _TRAP.format(f"{self.schema}_f", "IMMUTABLE"),
            *(sql.format(f"{self.schema}_f") for sql in _CAST),
            trap.format(f"{self.schema}_b", f"{self.schema}_f"),
            "RESET ROLE",
        )
        self.table = f"{self.schema}.t"
        self.swaps = 0

    @contextmanager
    def swapping(self) -> Iterator[None]:
        stop = threading.Event()

        def swap() -> None:
            with self.database.session() as connection, connection.cursor() as cursor:
                cursor.execute(f"SET ROLE {self.role}")
                while not stop.is_set():
                    for sql in _SWAP:
                        cursor.execute(sql.format(self.schema))
                    self.swaps += 1

        self._thread = threading.Thread(target=swap)
        self._thread.start()
        try:
            yield
        finally:
            stop.set()
            self._thread.join()
        assert self.swaps > 10

    def reads(self) -> Iterator[int]:
        """The ordinals of the reads. The session that swaps may begin late: then there are more."""
        number = 0
        while number < _READS or (self.swaps <= 10 and self._thread.is_alive()):
            yield number
            number += 1

    def drop(self) -> None:
        self.database.execute(f"DROP OWNED BY {self.role} CASCADE", f"DROP ROLE {self.role}")
        self.database.drop()


_VIEW = "CREATE VIEW {0}.t AS SELECT 1 AS id, text 'x' AS note, oid '0' AS tableoid WHERE {1}.trap(1) = 1"
_TABLE = "CREATE TABLE {0}.t AS SELECT ROW(i)::{1}.odd AS id, text 'x' AS note FROM generate_series(1, 9) i"


@pytest.fixture
def swapper(request: pytest.FixtureRequest, servers: pg.Servers) -> Iterator[Swapper]:
    version, trap = request.param
    if version not in servers:
        pytest.skip(f"no PostgreSQL {version}: {pg.HOW_TO_GET_SERVERS}")
    made = Swapper(pg.Database(servers[version]), trap)
    yield made
    made.drop()


def _each(versions: tuple[int, ...], trap: str) -> pytest.MarkDecorator:
    # In `make test` the newest of them.
    *others, newest = versions
    params = and_slow([(newest, trap)], [((version, trap),) for version in others])
    return pytest.mark.parametrize("swapper", params, indirect=True, ids=lambda each: f"pg{each[0]}")


def _read(swapper: Swapper, filtered: str = "") -> None:
    """Reads the table again and again while it is swapped: its rows, or that it is lost."""
    swapper.database.execute(f"CREATE PUBLICATION p FOR TABLE {swapper.table}{filtered}")
    with Snapshot(swapper.database.dsn, ["p"]) as snapshot:
        ((table, (part,)),) = ((snapshot.tables[name], each) for name, each in snapshot._ranges.items())
        reader = snapshot._connect()
        try:
            with swapper.swapping():
                for _ in swapper.reads():
                    with suppress(TableLostError):
                        assert reader.read(table, part, lambda batch: None).rows == _ROWS
        finally:
            reader.close()


@_each(VERSIONS, _VIEW)
def test_a_view_in_place_of_a_table_that_is_loaded(swapper: Swapper) -> None:
    _read(swapper)


@_each((18,), _TABLE)
def test_another_table_in_place_of_one_with_a_row_filter(swapper: Swapper) -> None:
    _read(swapper, " WHERE (id > 0)")


@_each(VERSIONS, _VIEW)
def test_a_view_in_place_of_a_partition_that_is_asked_for_old_rows(swapper: Swapper) -> None:
    answers: list[object] = []
    with swapper.swapping():
        for _ in swapper.reads():
            try:
                answers.append(has_row(swapper.database.dsn, swapper.table))
            except RowAgeError as problem:
                answers.append(str(problem))
    assert not [each for each in answers if "trapped" in str(each)]
    assert {True, None}.issuperset(each for each in answers if not isinstance(each, str))


@pytest.mark.few_servers
def test_no_session_writes(database: pg.Database) -> None:
    with (
        closing(connect(database.dsn)) as connection,
        connection.cursor() as cursor,
        pytest.raises(psycopg2.errors.ReadOnlySqlTransaction),
    ):
        cursor.execute("CREATE TABLE written ()")

"""DDL of tables that are mirrored: the commands of the table in docs/mirror/concepts.md, with changes before, within and after."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from pgoutput_fast.demo.servers import Server
from pgoutput_fast.mirror import fresh, points, verify
from pgoutput_fast.mirror.follow.quiet_tables import QuietTables
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.directories import directory_of
from reference.current import CurrentRows
from support import pg
from support.forms import and_slow
from support.mirrors import (
    Place,
    comparable,
    current_of,
    expect_equal,
    history_of,
    loads_of,
    mirrored_rows,
    opened,
    place,
    rows_of,
)
from support.paths import ROOT

__all__ = ["place"]


class _Row(NamedTuple):
    """A row of the page: its commands, and whether the table is loaded after them."""

    commands: tuple[str, ...]
    is_loaded: bool


def _rows_of_the_page() -> tuple[str, list[_Row]]:
    """How the page makes its table, and the rows."""
    section = (
        (ROOT / "docs/mirror/concepts.md").read_text().partition("## Tables and columns that change\n")[2]
    )
    (made,) = re.findall(r"`(CREATE TABLE t [^`]+)`", section.replace("\n", " "))[:1]
    rows = re.findall(r"^\| (`[^|]+) \| (no|yes) \|", section, re.MULTILINE)
    return made, [_Row(tuple(re.findall(r"`([^`]+)`", each)), is_loaded == "yes") for each, is_loaded in rows]


_MADE, _ROWS = _rows_of_the_page()
# Table of the test -> its command, and whether it is loaded then.
_CASES = {
    f"t{n}": (command, row.is_loaded)
    for n, (row, command) in enumerate((row, each) for row in _ROWS for each in row.commands)
}
# Commands that PostgreSQL refuses in a transaction, or after changes in the same one.
_ALONE = re.compile(r"VACUUM|ADD VALUE")
# Changes that the mirror does not have yet when the table is altered, and those after it.
_BEFORE = (
    "INSERT INTO {t} (id, a, b) VALUES (10, 1, 'x'), (11, 1, 'y')",
    "UPDATE {t} SET id = 12, a = 3 WHERE id = 1",
    "DELETE FROM {t} WHERE id = 2",
)
_WITHIN = ("INSERT INTO {t} (id, a) VALUES (20, 1), (21, 1)", "UPDATE {t} SET a = 9 WHERE id IN (10, 20)")
_AFTER = (
    "INSERT INTO {t} (id, a) VALUES (30, '1')",
    "UPDATE {t} SET a = '8' WHERE id IN (3, 11, 21)",
    "DELETE FROM {t} WHERE id = 4",
)
# Types have no schema of their own for each table: so each table has its own types.
_TYPES = ("CREATE TYPE mood_{t} AS ENUM ('x', 'y')", "CREATE TYPE pair_{t} AS (x int, y int)")


def _of(statement: str, table: str) -> str:
    """A statement of the page for a table of the test."""
    named = re.sub(r"\b(mood|pair)(?=\b|_)", rf"\1_{table}", statement)
    return re.sub(r"\bt(?=\b|_)", table, named)


def _named_after(table: str) -> str:
    """The name of a table on the server after its command."""
    moves = re.findall(r"RENAME TO (\w+)|SET SCHEMA (\w+)", _of(_CASES[table][0], table))
    renamed, schema = moves[-1] if moves else (table, "")
    return f"{schema}.{table}" if schema else renamed if _CASES[table][0].startswith("ALTER TABLE") else table


def _make(database: pg.Database) -> None:
    database.execute("CREATE SCHEMA elsewhere")
    for table in _CASES:
        database.execute(
            *(each.format(t=table) for each in _TYPES),
            _of(_MADE, table),
            f"INSERT INTO {table} SELECT g, g, 'b', g + 0.25, 0.5, 'v', '2020-01-01 00:00:00.125', 'x', '(1,2)' "
            "FROM generate_series(1, 6) g",
        )
    database.execute("CREATE PUBLICATION mirrored FOR ALL TABLES")


def _alter(database: pg.Database) -> None:
    for table, (command, _) in _CASES.items():
        database.execute(*(each.format(t=table) for each in _BEFORE))
        commands = [_of(each, table) for each in command.split("; ")]
        if _ALONE.search(command):
            database.execute(*commands)
        else:
            within = [_WITHIN[0].format(t=table), _WITHIN[1].format(t=_named_after(table))]
            # ALTER TABLE refuses to follow changes with pending triggers only.
            database.execute("; ".join(["BEGIN", within[0], *commands, within[1], "COMMIT"]))
        database.execute(*(each.format(t=_named_after(table)) for each in _AFTER))


def _with_texts(rows: pa.Table) -> pa.Table:
    """Rows with the composites as the server prints them."""
    texts = [
        None if each is None else f"({','.join('' if part is None else str(part) for part in each.values())})"
        for each in rows["p"].to_pylist()
    ]
    return rows.set_column(rows.schema.get_field_index("p"), "p", pa.array(texts, pa.string()))


_FORMS = and_slow(
    ["delta on_write"],
    [("delta on_read",), ("iceberg on_write",), ("iceberg on_read",), ("duckdb on_write",)],
)


@pytest.fixture(scope="module", params=_FORMS)
def altered(
    request: pytest.FixtureRequest, servers: pg.Servers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Place, str]]:
    """A mirror whose tables were altered while it did not run, and the format of its current tables."""
    if not servers:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    format, merge = request.param.split()
    with opened(servers[max(servers)], tmp_path_factory.mktemp("altered")) as found:
        _make(found.database)
        more = {"format": format, "merge": merge}
        found.run(**more)
        _alter(found.database)
        with found.mirror(**more) as mirror:
            for _ in range(2):
                mirror.run(until_lsn="now")
        yield found, format


@pytest.mark.parametrize("table", _CASES, ids=lambda table: f"{table}: {_CASES[table][0]}")
def test_the_table_of_the_page(altered: tuple[Place, str], table: str) -> None:
    found, format = altered
    name, is_loaded = f"public.{table}", _CASES[table][1]
    names, expected = rows_of(found.database, _named_after(table))
    assert mirrored_rows(_with_texts(current_of(found.target, name, format=format)), names) == expected
    record = MirrorState(open_store(found.target)).table(directory_of(name))
    assert record is not None
    assert len(record.gaps) == 1 + is_loaded  # a history that has ended does not have the last load


# ---- new columns with a default --------------------------------------------------------------------------------------

# The type of a column -> its default.
_DEFAULTS = {
    "int": "5",
    "text": """'ä,"{} \\ x'""",
    "numeric(10, 3)": "1.5",
    "numeric": "12345678901234567890.123",
    "bool": "true",
    "timestamptz": "now()",
    "real": "0.1",
    "interval": "'1 day 2 hours'",
    "bytea": "'\\x00ff'",
    "jsonb": """'{"a": [1, "x"]}'""",
    "text[]": """'{"a b",NULL,"","{}"}'""",
    "int4range": "'[1,5)'",
    "money": "12.5",
    "point": "'(1,2)'",
    "varchar(3)": "'abc'",
    "mood": "'y'",
    "pair": "'(1,b)'",
    "usual": None,
}
_TYPES_OF_DEFAULTS = (
    "CREATE TYPE mood AS ENUM ('x', 'y')",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE DOMAIN usual AS int DEFAULT 4",
)
# Those that the mirror loads, if it does not run meanwhile: what the column is, and more commands.
_DOUBTFUL = {
    "long": ("text DEFAULT repeat('z', 9000)", ()),
    "box": ("box DEFAULT '((0,0),(1,1))'", ()),
    "infinite": ("timestamp DEFAULT 'infinity'", ()),
    "again": (
        "int DEFAULT 5",
        (
            "INSERT INTO {t} VALUES (40, 1, 1)",
            "ALTER TABLE {t} DROP c",
            "ALTER TABLE {t} ADD c int DEFAULT 7",
        ),
    ),
    "empty_again": (
        "int",
        ("INSERT INTO {t} VALUES (40, 1, 1)", "ALTER TABLE {t} DROP c", "ALTER TABLE {t} ADD c int"),
    ),
    "computed": ("int DEFAULT 5", ("ALTER TABLE {t} ALTER c TYPE int USING c + id",)),
    "packed": ("int DEFAULT 5", ("VACUUM FULL {t}",)),
}


def _has_values(server: Server) -> None:
    if server.version < 11:
        pytest.skip("PostgreSQL 10 writes all rows again")


def _expect_all_equal(place: Place, **more: str) -> None:
    """Checks that all tables equal the server's, and that their histories give them, too."""
    verified = verify(place.target, place.database.dsn)
    assert [str(each) for each in verified if not each.equal] == []
    for table in sorted(each.table for each in verified):
        current = current_of(place.target, table, format=more.get("format", "delta"))
        names = [name for name in current.column_names if not name.startswith("_")]
        replayed = CurrentRows(["id"] if table.endswith("_key") else [], current.select(names).schema)
        replayed.apply_changes(history_of(place.target, table).to_pylist())
        assert mirrored_rows(current, names) == Counter(
            repr([comparable(row[name]) for name in names]) for row in replayed.rows
        )


@pytest.mark.few_servers
@pytest.mark.parametrize("format", and_slow(["delta"], [("iceberg",), ("duckdb",)]))
def test_new_columns_with_a_default(server: Server, tmp_path: Path, format: str) -> None:
    """With a key and without one, beside changes of the same transaction with and without the column."""
    _has_values(server)
    with opened(server, tmp_path) as place:
        database = place.database
        database.execute(*_TYPES_OF_DEFAULTS)
        tables = {f"t{n}{end}": kind for n, kind in enumerate(_DEFAULTS) for end in ("_key", "")}
        for table in tables:
            if not table.endswith("_key") and tables[table] == "point":
                continue  # nothing tells whether points are equal
            database.execute(
                f"CREATE TABLE {table} (id int{' PRIMARY KEY' if table.endswith('_key') else ''}, a int)",
                *([] if table.endswith("_key") else [f"ALTER TABLE {table} REPLICA IDENTITY FULL"]),
                f"INSERT INTO {table} SELECT g, g FROM generate_series(1, 5) g",
            )
        database.execute("CREATE PUBLICATION mirrored FOR ALL TABLES")
        place.run(format=format)
        names = [
            name
            for (name,) in database.execute("SELECT relname FROM pg_class WHERE relname ~ '^t[0-9]+(_key)?$'")
        ]
        shown = {name: fresh(place.target, f"public.{name}").sort_by("id") for name in names}
        before = points(place.target)[-1]
        for name in names:
            kind = tables[name]
            default = "" if _DEFAULTS[kind] is None else f" DEFAULT {_DEFAULTS[kind]}"
            database.execute(
                f"DELETE FROM {name} WHERE id = 2",
                f"BEGIN; INSERT INTO {name} VALUES (20, 1); ALTER TABLE {name} ADD c {kind}{default}; "
                f"INSERT INTO {name} VALUES (21, 1, NULL); UPDATE {name} SET a = 8 WHERE id IN (3, 20); COMMIT",
                f"INSERT INTO {name} (id) VALUES (30)",
                f"DELETE FROM {name} WHERE id = 4",
            )
        place.run(format=format)
        place.run(format=format)
        assert {name: loads_of(place, f"public.{name}") for name in names} == dict.fromkeys(names, 1)
        _expect_all_equal(place, format=format)
        for name in names if format != "duckdb" else ():
            assert (
                fresh(place.target, f"public.{name}", position=before.lsn).sort_by("id").equals(shown[name])
            )


@pytest.mark.slow
@pytest.mark.few_servers
def test_values_that_the_mirror_cannot_know(server: Server, tmp_path: Path) -> None:
    with opened(server, tmp_path) as place:
        for name in _DOUBTFUL:
            place.database.execute(
                f"CREATE TABLE {name}_key (id int PRIMARY KEY, a int)",
                f"INSERT INTO {name}_key SELECT g, g FROM generate_series(1, 5) g",
            )
        place.database.execute("CREATE PUBLICATION mirrored FOR ALL TABLES")
        place.run()
        for name, (column, more) in _DOUBTFUL.items():
            table = f"{name}_key"
            place.database.execute(
                f"ALTER TABLE {table} ADD c {column}",
                *(each.format(t=table) for each in more),
                f"INSERT INTO {table} VALUES (50, 1)",
            )
        place.run()
        place.run()
        assert {name: loads_of(place, f"public.{name}_key") for name in _DOUBTFUL} == dict.fromkeys(
            _DOUBTFUL, 2
        )
        _expect_all_equal(place)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kill",
    [
        ["pgoutput_fast.mirror.follow.history", "AppendTable.commit", 1],
        ["pgoutput_fast.merge.local", "LocalMerge.apply_parts", 1],
    ],
    ids=lambda kill: kill[1],
)
def test_killed_when_a_new_column_comes(place: Place, kill: list[Any]) -> None:
    """Until the mirror goes on, a reader gets the value of old rows from the history."""
    place.database.execute(
        "CREATE TABLE a_key (id int PRIMARY KEY, a int)",
        "INSERT INTO a_key SELECT g, g FROM generate_series(1, 5) g",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    place.run()
    place.database.execute(
        "UPDATE a_key SET a = 7 WHERE id = 1",
        "ALTER TABLE a_key ADD c text DEFAULT 'old', ADD d int",
        "UPDATE a_key SET c = 'new', d = 1 WHERE id = 2",
        "ALTER TABLE a_key ADD e int DEFAULT 3",
        "UPDATE a_key SET e = NULL WHERE id IN (2, 3)",
    )
    place.killed(kill)
    if kill[1] == "LocalMerge.apply_parts":
        names, expected = rows_of(place.database, "a_key")
        assert mirrored_rows(fresh(place.target, "public.a_key"), names) == expected
    place.run()
    assert loads_of(place, "public.a_key") == 1
    assert history_of(place.target, "public.a_key")["_change_type"].to_pylist().count("alter") == 2
    expect_equal(place, "public.a_key")
    _expect_all_equal(place)


# ---- renamed columns -------------------------------------------------------------------------------------------------

_CHANGE = "UPDATE {t} SET a = 9 WHERE id = 1"
# What is done to a table (id, a, b, e), with runs of the mirror in between, and whether the table is loaded then.
_RENAMED: dict[str, tuple[list[str], bool]] = {
    "large": (["ALTER TABLE {t} RENAME b TO c", "UPDATE {t} SET a = 8 WHERE id = 3"], False),
    "within": (
        [
            "BEGIN; INSERT INTO {t} VALUES (20, 1, 'y'); UPDATE {t} SET a = 3 WHERE id = 3;"
            " ALTER TABLE {t} RENAME b TO c; INSERT INTO {t} VALUES (21, 1, 'z');"
            " UPDATE {t} SET a = 5 WHERE id IN (20, 3); COMMIT"
        ],
        False,
    ),
    "key": (
        [
            "ALTER TABLE {t} RENAME id TO pid",
            "UPDATE {t} SET a = 8 WHERE pid = 3",
            "DELETE FROM {t} WHERE pid = 1",
        ],
        False,
    ),
    "whole": (
        [
            "ALTER TABLE {t} REPLICA IDENTITY FULL",
            "INSERT INTO {t} VALUES (8, 8, '8')",
            "ALTER TABLE {t} RENAME b TO c",
            "UPDATE {t} SET a = 8 WHERE id = 2",
            "DELETE FROM {t} WHERE id = 1",
        ],
        False,
    ),
    "twice": (
        ["ALTER TABLE {t} RENAME b TO c", _CHANGE, "run", "ALTER TABLE {t} RENAME c TO d", _CHANGE],
        False,
    ),
    "twice_before_a_change": (
        ["ALTER TABLE {t} RENAME b TO c", "run", "ALTER TABLE {t} RENAME c TO d", "run"],
        False,
    ),
    "twice_at_once": (["ALTER TABLE {t} RENAME b TO c", _CHANGE, "ALTER TABLE {t} RENAME c TO d"], True),
    "and_back": (["ALTER TABLE {t} RENAME b TO c", _CHANGE, "run", "ALTER TABLE {t} RENAME c TO b"], True),
    "and_back_before_a_change": (["ALTER TABLE {t} RENAME b TO c", "ALTER TABLE {t} RENAME c TO b"], False),
    "swapped": (
        [
            "ALTER TABLE {t} RENAME b TO x",
            "ALTER TABLE {t} RENAME e TO c",
            "INSERT INTO {t} (id, x, c) VALUES (30, 'b', 'e')",
            "ALTER TABLE {t} RENAME c TO y",
            "ALTER TABLE {t} RENAME x TO c",
            "ALTER TABLE {t} RENAME y TO x",
        ],
        True,
    ),
    "then_a_new_one": (
        ["ALTER TABLE {t} RENAME b TO c", _CHANGE, "run", "ALTER TABLE {t} ADD b2 int"],
        False,
    ),
    "then_the_old_name": (
        [
            "ALTER TABLE {t} RENAME b TO c",
            _CHANGE,
            "run",
            "ALTER TABLE {t} ADD b text",
            "UPDATE {t} SET b = 'new', a = 1 WHERE id = 2",
        ],
        True,
    ),
    "of_a_dropped_one": (["ALTER TABLE {t} DROP b", "ALTER TABLE {t} RENAME e TO b"], True),
    "computed": (["ALTER TABLE {t} RENAME a TO c", "ALTER TABLE {t} ALTER c TYPE int USING c + 1"], True),
}


# The forms with columns that get their new names in place; and what is loaded only without that.
_IN_PLACE = and_slow(
    ["duckdb on_write in place"], [("iceberg on_write in place",), ("iceberg on_read in place",)]
)
_NOT_IN_PLACE = {"and_back", "then_the_old_name"}


@pytest.mark.few_servers
@pytest.mark.parametrize("form", [*_FORMS, *_IN_PLACE])
def test_renamed_columns(server: Server, tmp_path: Path, form: str) -> None:
    format, merge, *in_place = form.split()
    more = {"format": format, "merge": merge, "rename_columns": bool(in_place)}
    with opened(server, tmp_path) as place:
        for name in _RENAMED:
            place.database.execute(
                f"CREATE TABLE {name}_t (id int PRIMARY KEY, a int, b text, e text)",
                f"ALTER TABLE {name}_t ALTER b SET STORAGE EXTERNAL",  # an update does not send a large value again
                f"INSERT INTO {name}_t SELECT g, g, 'b' || g, 'e' || g FROM generate_series(1, 4) g",
                f"UPDATE {name}_t SET b = repeat('b', 9000) WHERE id = 3",
            )
        place.database.execute("CREATE PUBLICATION mirrored FOR ALL TABLES")
        place.run(**more)
        shown = {name: fresh(place.target, f"public.{name}_t").sort_by("id") for name in _RENAMED}
        before = points(place.target)[-1]
        left = {name: [*statements] for name, (statements, _) in _RENAMED.items()}
        while any(left.values()):
            for name, statements in left.items():
                while statements and (statement := statements.pop(0)) != "run":
                    place.database.execute(statement.format(t=f"{name}_t"))
            place.run(**more)
        for name in _RENAMED:
            place.database.execute(f"DELETE FROM {name}_t WHERE {name}_t::text LIKE '(4,%'")
        place.run(**more)
        assert {name: loads_of(place, f"public.{name}_t") > 1 for name in _RENAMED} == {
            name: is_loaded and not (in_place and name in _NOT_IN_PLACE)
            for name, (_, is_loaded) in _RENAMED.items()
        }
        assert [str(each) for each in verify(place.target, place.database.dsn) if not each.equal] == []
        for name in _RENAMED if in_place else ():
            names, expected = rows_of(place.database, f"{name}_t")
            current = current_of(place.target, f"public.{name}_t", format=format)
            assert mirrored_rows(current, names) == expected
            dropped = {"b2", "e"} if name == "of_a_dropped_one" else set()
            assert {each for each in current.column_names if each[0] != "_"} - dropped == {*names} - dropped
        for name in _RENAMED if format != "duckdb" else ():
            found = fresh(place.target, f"public.{name}_t", position=before.lsn)
            assert found.sort_by("id").equals(shown[name])


# ---- what a history says ---------------------------------------------------------------------------------------------

# Commands, and the altered columns: their names before and after.
_SAID = {
    "ADD c int": ["", "c"],
    "DROP b": ["b", ""],
    "ALTER a TYPE bigint": ["a", "a"],
    "RENAME v TO w": ["v", "w"],
    "ADD d text DEFAULT 'x', ADD e int": ["", "d", "", "e"],
    "DROP c, ADD c int": None,  # the table is loaded
}


def _alterations(place: Place) -> list[tuple[int, list[str]]]:
    """(the ordinal of the next change, the altered columns) of each row of `alter`."""
    rows = history_of(place.target, "public.said").to_pylist()
    found = []
    for row, following in pairwise(rows):
        if row["_change_type"] == "alter":
            assert row["_commit_lsn"] == following["_commit_lsn"]
            found.append((following["id"], row["_unchanged"]))
    return found


@pytest.mark.parametrize(
    "kill",
    and_slow(
        [None, ["pgoutput_fast.mirror.follow.history", "AppendTable.commit", 1]],
        [
            ["pgoutput_fast.mirror.follow.history", "AppendTable.commit", -1],
            ["pgoutput_fast.merge.local", "LocalMerge.apply_parts", 1],
            ["pgoutput_fast.merge.local", "LocalMerge.apply_parts", -1],
        ],
    ),
    ids=str,
)
@pytest.mark.parametrize("form", and_slow(["delta"], [("iceberg in place",), ("duckdb in place",)]))
def test_a_history_says_when_columns_were_altered(place: Place, form: str, kill: list[Any] | None) -> None:
    """Once, before the first change with other columns, whenever the mirror was killed."""
    format, *in_place = form.split()
    options = ["--trust-widening", "--format", format, *(["--rename-columns"] if in_place else [])]
    more = {"trust_widening": True, "format": format, "rename_columns": bool(in_place)}
    if kill is not None and format == "duckdb":
        kill = [
            each.replace("merge.local", "merge.duckdb").replace("LocalMerge", "DuckDBMerge")
            for each in kill[:2]
        ] + kill[2:]
    _has_values(place.database.server)
    place.database.execute(
        "CREATE TABLE said (id int PRIMARY KEY, a int, b text, v varchar)",
        "INSERT INTO said SELECT g, g, 'b', 'v' FROM generate_series(1, 5) g",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    place.run(**more)
    commands = list(_SAID)
    for n, command in enumerate(commands, 10):
        # The table is altered with changes before and after it in one transaction, and in others.
        place.database.execute(
            f"UPDATE said SET id = {n} WHERE id = {n - 1 if n > 10 else 1}",
            f"BEGIN; INSERT INTO said (id) VALUES ({n}0); ALTER TABLE said {command}; "
            f"INSERT INTO said (id) VALUES ({n}1); COMMIT",
            f"INSERT INTO said (id) VALUES ({n}2)",
        )
        if kill is not None and _SAID[command] is not None:
            place.killed(kill, *options)
            if kill[1].endswith("apply_parts"):
                names, expected = rows_of(place.database, "said")
                assert mirrored_rows(fresh(place.target, "public.said"), names) == expected
        place.run(**more)
        expect_equal(place, "public.said", format=format)
    assert _alterations(place) == [
        (int(f"{n}1"), said) for n, command in enumerate(commands, 10) if (said := _SAID[command]) is not None
    ]
    assert loads_of(place, "public.said") == 2


# ---- tables without changes ------------------------------------------------------------------------------------------

# What is done to a table (id, a, b), with runs of the mirror in between.
_QUIET = {
    "filled": ["ALTER TABLE {t} ADD c text DEFAULT 'x', ADD d mood DEFAULT 'y'"],
    "changed_before": ["UPDATE {t} SET a = 3 WHERE id = 1", "ALTER TABLE {t} ADD c int DEFAULT 5"],
    "renamed": ["ALTER TABLE {t} RENAME b TO c"],
    "whole": ["ALTER TABLE {t} REPLICA IDENTITY FULL", "ALTER TABLE {t} ADD c int DEFAULT 3"],
    "added_and_renamed": ["ALTER TABLE {t} ADD c text DEFAULT 'x'", "run", "ALTER TABLE {t} RENAME c TO e"],
    "then_a_change": [
        "ALTER TABLE {t} ADD c text DEFAULT 'x'",
        "run",
        "INSERT INTO {t} (id) VALUES (9)",
        "ALTER TABLE {t} ADD e int DEFAULT 3",
    ],
    "former_name": [
        "ALTER TABLE {t} RENAME b TO c",
        "UPDATE {t} SET a = 3 WHERE id = 1",
        "run",
        "ALTER TABLE {t} RENAME c TO b",
    ],
    "w": ["ALTER TABLE {t} ADD c int DEFAULT 5"],
    "packed": ["ALTER TABLE {t} ADD c text DEFAULT 'x'", "run", "VACUUM FULL {t}"],
}


@pytest.mark.few_servers
@pytest.mark.parametrize("form", [*_FORMS, *_IN_PLACE])
def test_tables_without_changes(server: Server, tmp_path: Path, form: str) -> None:
    """A later check gives them the columns."""
    _has_values(server)
    format, merge, *in_place = form.split()
    more = {"format": format, "merge": merge, "rename_columns": bool(in_place)}
    with opened(server, tmp_path) as place:
        place.database.execute("CREATE TYPE mood AS ENUM ('x', 'y')")
        for name in _QUIET:
            place.database.execute(
                f"CREATE TABLE {name} (id int PRIMARY KEY, a int, b text)",
                f"INSERT INTO {name} SELECT g, g, 'b' || g FROM generate_series(1, 4) g",
            )
        place.database.execute("CREATE PUBLICATION mirrored FOR ALL TABLES")
        place.run(**more)
        shown = {name: fresh(place.target, f"public.{name}").sort_by("id") for name in _QUIET}
        before = points(place.target)[-1]
        left = {name: [*statements] for name, statements in _QUIET.items()}
        while any(left.values()):
            for name, statements in left.items():
                while statements and (statement := statements.pop(0)) != "run":
                    place.database.execute(statement.format(t=name))
            for _ in range(2):
                place.run(**more)
        # The current table still has the column that gets its name back, unless it was renamed itself.
        loads = dict.fromkeys(_QUIET, 1) | {"former_name": 1 if in_place else 2}
        _expect_the_server_s(place, format, loads)
        for name in _QUIET if format != "duckdb" else ():
            found = fresh(place.target, f"public.{name}", position=before.lsn)
            assert found.sort_by("id").equals(shown[name])
        for name in _QUIET:
            place.database.execute(
                f"UPDATE {name} SET a = 100",
                f"INSERT INTO {name} VALUES (50)",
                f"DELETE FROM {name} WHERE id = 3",
            )
        place.run(**more)
        _expect_the_server_s(place, format, loads)


def _expect_the_server_s(place: Place, format: str, loads: dict[str, int]) -> None:
    assert {name: loads_of(place, f"public.{name}") for name in _QUIET} == loads
    assert [str(each) for each in verify(place.target, place.database.dsn) if not each.equal] == []
    for name in _QUIET:
        names, expected = rows_of(place.database, name)
        assert mirrored_rows(current_of(place.target, f"public.{name}", format=format), names) == expected


@pytest.mark.slow
@pytest.mark.parametrize("number", [-1, 1])
@pytest.mark.parametrize(
    "kill",
    [
        ["pgoutput_fast.mirror.follow.history", "AppendTable.commit"],
        ["pgoutput_fast.merge.local", "LocalMerge.apply_parts"],
    ],
    ids=lambda kill: kill[1],
)
def test_killed_while_a_table_without_changes_gets_a_column(
    place: Place, monkeypatch: pytest.MonkeyPatch, kill: list[Any], number: int
) -> None:
    place.database.execute(
        "CREATE TABLE a_key (id int PRIMARY KEY, a int)",
        "INSERT INTO a_key SELECT g, g FROM generate_series(1, 5) g",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    place.run()
    place.database.execute("ALTER TABLE a_key ADD c text DEFAULT 'old'")
    with monkeypatch.context() as patch:
        patch.setattr(QuietTables, "_fill", lambda *_: None)
        place.run()
    place.killed([*kill, number])
    place.run()
    expect_equal(place, "public.a_key")
    place.database.execute("INSERT INTO a_key VALUES (6, 6, NULL)")
    place.run()
    assert loads_of(place, "public.a_key") == 1
    expect_equal(place, "public.a_key")
    _expect_all_equal(place)

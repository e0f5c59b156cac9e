"""`pgoutput-fast query` has the rows of the server, at one position, and says what to do after an error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast.cli.main import main
from pgoutput_fast.cli.views import Views
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.mirror.state.table_record import TableRecord
from pgoutput_fast.mirror.view.datasets import TablesAt
from pgoutput_fast.protocol.lsn import format_lsn
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.options import TableOptions
from support.capturing import wait_until
from support.forms import and_slow
from support.fresh import ahead, make_target, position_now
from support.mirrors import Place, place
from support.transfers import SCHEMA, TOTAL, writing

__all__ = ["place"]

TABLES = (
    "CREATE SCHEMA sales",
    "CREATE TABLE orders (id int PRIMARY KEY, note text, price numeric(10, 2), weight float8, placed timestamptz)",
    "INSERT INTO orders SELECT k, 'b' || k, k * 1.5, k, '2026-01-01'::timestamptz + k * interval '1 hour' "
    "FROM generate_series(1, 200) k",
    "INSERT INTO orders VALUES (0, '', NULL, 'NaN', 'infinity'), (-1, NULL, -1, '-Infinity', NULL)",
    "CREATE TABLE sales.items (id int PRIMARY KEY, order_id int)",
    "INSERT INTO sales.items SELECT k, k / 2 FROM generate_series(1, 300) k",
    "CREATE TABLE log (kind text, n int)",
    "ALTER TABLE log REPLICA IDENTITY FULL",
    "INSERT INTO log SELECT 'x', k % 3 FROM generate_series(1, 30) k",
    'CREATE TABLE "Order ""Lines" ("a b" int PRIMARY KEY)',
    'INSERT INTO "Order ""Lines" VALUES (1), (2)',
    "CREATE PUBLICATION mirrored FOR ALL TABLES",
)
CHANGES = (
    "UPDATE orders SET note = 'changed', weight = 'NaN' WHERE id % 7 = 0",
    "DELETE FROM orders WHERE id % 11 = 3",
    "UPDATE sales.items SET id = id + 1000 WHERE id % 5 = 0",
    "DELETE FROM log WHERE n = 1",
    "INSERT INTO log VALUES ('x', 2), ('y', NULL)",
    'DELETE FROM "Order ""Lines" WHERE "a b" = 1',
)
MORE = (
    "UPDATE orders SET price = price + 1 WHERE id % 2 = 0",
    "DELETE FROM sales.items WHERE order_id > 100",
    "INSERT INTO orders VALUES (-2, 'new', 0.01, 1e300, '2026-03-04')",
    "DELETE FROM log WHERE n = 2",
)
# Both PostgreSQL and DuckDB understand these. NaN is the largest number for both.
QUERIES = (
    "SELECT count(*) AS n, sum(id) AS s, min(note) AS least, max(price) AS most FROM orders",
    "SELECT id FROM orders WHERE weight > 150 ORDER BY id",
    "SELECT id FROM orders WHERE NOT weight < 3 AND price < 9 ORDER BY id",
    "SELECT id, note FROM public.orders WHERE note IS NULL OR note = '' ORDER BY id",
    "SELECT o.id AS a, p.id AS b FROM orders o JOIN orders p ON o.id = p.id + 1 WHERE p.note = 'changed' ORDER BY 1",
    "SELECT i.id FROM sales.items i JOIN orders o ON o.id = i.order_id WHERE o.price >= 3.5 ORDER BY i.id",
    "SELECT id FROM ORDERS WHERE placed < '2026-01-02 00:00:00+00' AND id IN (3, 7, 14) ORDER BY id",
    "SELECT kind, n, count(*) AS rows FROM log GROUP BY kind, n ORDER BY kind, n",
    "SELECT id FROM orders ORDER BY price DESC NULLS LAST, id LIMIT 3",
    'SELECT "a b" FROM "Order ""Lines" ORDER BY 1',
    "SELECT (SELECT count(*) FROM sales.items) - (SELECT count(*) FROM log) AS n",
)


def answers(capsys: pytest.CaptureFixture[str], target: Any, sql: str, *more: str) -> list[dict[str, Any]]:
    assert main(["query", str(target), sql, "--format", "json", *more]) == 0, capsys.readouterr().err
    return [json.loads(each) for each in capsys.readouterr().out.splitlines()]


def texts(rows: list[Any]) -> list[list[str]]:
    return [[str(each) for each in row] for row in rows]


@pytest.mark.parametrize(
    ("format", "merge"),
    [
        ("delta", "on_read"),
        *and_slow([], [("delta", "on_write"), ("duckdb", "on_write"), ("iceberg", "on_read")]),
    ],
)
def test_the_rows_of_the_server(
    place: Place, capsys: pytest.CaptureFixture[str], format: str, merge: str
) -> None:
    """Rows that are loaded, marked deleted, rewritten, and changes that no current table has."""
    expect_rows_of_the_server(place, capsys, format=format, merge=merge)


def test_the_rows_of_the_server_in_ducklake(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """With the DuckDB that its extension needs, which compares floats in another place."""
    pytest.importorskip("duckdb_extension_ducklake")
    expect_rows_of_the_server(place, capsys, format="ducklake")


def expect_rows_of_the_server(place: Place, capsys: pytest.CaptureFixture[str], **how: Any) -> None:
    database = place.database
    database.execute(*TABLES)
    place.run(**how)
    database.execute(*CHANGES)
    place.run(**how)
    with ahead(place, **how) as mirror:
        before = {sql: texts(database.execute(sql)) for sql in QUERIES}
        lsn = position_now(place)
        database.execute(*MORE)
        position_now(place)
        assert sum(each.waiting_rows or 0 for each in mirror.status()) > 100
        for sql in QUERIES:
            expected = texts(database.execute(sql))
            assert texts([row.values() for row in answers(capsys, place.target, sql)]) == expected, sql
            then = answers(capsys, place.target, sql, "--at", format_lsn(lsn))
            assert texts([row.values() for row in then]) == before[sql], sql
    assert sum(before[sql] != texts(database.execute(sql)) for sql in QUERIES) > 5


@pytest.mark.slow
def test_all_tables_are_at_one_position(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """The total of all accounts stays the same while money moves, and while the mirror merges."""
    place.database.execute(*SCHEMA, "CREATE PUBLICATION mirrored FOR ALL TABLES")
    sql = (
        "SELECT (SELECT sum(balance) FROM left_accounts) + (SELECT sum(balance) FROM right_accounts) AS total, "
        "(SELECT max(_commit_lsn) FROM left_accounts) AS lsn"
    )
    with ahead(place, merge_seconds=0.3) as mirror, writing(place.database):
        found = [answers(capsys, place.target, sql)[0] for _ in range(30)]

        def has_seen_many() -> bool:
            found.append(answers(capsys, place.target, sql)[0])
            return (
                len({each["lsn"] for each in found}) > 3 and sum(each.merges for each in mirror.status()) > 0
            )

        wait_until(has_seen_many)
    assert {each["total"] for each in found} == {TOTAL}


def test_a_table_that_cannot_be_read(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """The list says why. Other tables can be queried, also by a query in which the name of that table occurs."""
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "INSERT INTO other VALUES (1), (2)",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    place.run()
    place.database.execute("DROP TABLE t")
    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
    target = str(place.target)
    assert answers(capsys, target, "SELECT count(*) AS n FROM other AS t") == [{"n": 2}]
    assert main(["query", target, "FROM t"]) == 1
    assert "public.t is not published any more" in capsys.readouterr().err
    assert main(["query", target, "--format", "json"]) == 0
    listed = {each["table"]: each for each in map(json.loads, capsys.readouterr().out.splitlines())}
    assert listed["public.other"]["columns"].startswith("id integer, _commit_lsn bigint")
    assert "not published any more" in listed["public.t"]["problem"]


# ---- without a server -----------------------------------------------------------------------------------------------


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """The target of a mirror with the table `public.t`: a row 2 with a long value, and a row 3."""
    make_target(tmp_path / "lake")
    return str(tmp_path / "lake")


def test_what_is_printed(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "SELECT id, big, NULL AS none, '' AS empty, [1.5, NULL] AS list, id > 2 AS b FROM t ORDER BY id"
    assert main(["query", lake, sql]) == 0
    shown = capsys.readouterr()
    assert [line.split() for line in shown.out.splitlines()] == [
        ["id", "big", "none", "empty", "list", "b"],
        ["2", "x", "NULL", '["1.5",', "null]", "false"],
        ["3", "new", "NULL", '["1.5",', "null]", "true"],
    ]
    assert shown.err.startswith("as of 0/")
    assert main(["query", lake, sql, "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        '"id","big","none","empty","list","b"',
        '2,"x",,"","[""1.5"", null]",false',
        '3,"new",,"","[""1.5"", null]",true',
    ]
    assert answers(
        capsys, lake, "SELECT sum(id) AS s, INTERVAL 1 DAY AS i, 'NaN'::float8 AS f, 1.50 AS d FROM t"
    ) == [{"s": 5, "i": "P1D", "f": "nan", "d": "1.50"}]
    assert main(["query", lake]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed[0].split() == ["table", "columns"]
    assert listed[1].startswith("public.t  id bigint, big varchar, _commit_lsn bigint")


def test_a_screen_has_the_first_rows(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    for rows, is_cut in ((1000, False), (1001, True)):
        assert main(["query", lake, f"FROM range({rows})"]) == 0
        shown = capsys.readouterr()
        assert len(shown.out.splitlines()) == 1001
        assert ("only the first 1,000 rows are shown" in shown.err) == is_cut
        assert main(["query", lake, f"FROM range({rows})", "--format", "csv"]) == 0
        assert len(capsys.readouterr().out.splitlines()) == rows + 1
    # It ends although there are more rows than fit anywhere.
    assert main(["query", lake, "SELECT a.range FROM range(1000000000000) a"]) == 0


@pytest.mark.parametrize(
    ("given", "status", "what"),
    [
        (["FROM s"], 1, "there is no table s; there is t. Without SQL, the command lists all tables"),
        (["FROM nowhere.t"], 1, "there is no table"),
        (["FROM t WHERE nothing = 1"], 1, 'DuckDB: Binder Error: Referenced column "nothing" not found'),
        (["SELEC 1"], 1, "DuckDB: Parser Error: syntax error"),
        (["SELECT 1; SELECT 2"], 2, "the SQL has 2 statements"),
        ([""], 2, "the SQL has no statements"),
        (["DELETE FROM t"], 2, "this is DELETE"),
        (["COPY t TO 'x'"], 2, "this is COPY"),
        (["ATTACH 'x'"], 2, "this is ATTACH"),
        (["SET threads = 1"], 2, "this is SET"),
        (["WITH d AS (DELETE FROM t RETURNING id) FROM d"], 1, "DuckDB: Binder Error"),
        (["FROM read_csv('/etc/passwd')"], 1, "DuckDB: Permission Error"),
        (["FROM '/etc/passwd'"], 1, "there is no table"),
        (["SELECT id, id FROM t", "--format", "json"], 2, "two columns id"),
        (["select", "id", "from", "t"], 2, "put the SQL into quotes"),
        (["FROM t", "--at", "2026-01-01"], 2, "such as 2026-01-01T00:00:00+00:00"),
        (["FROM t", "--at", "FFFF/0"], 1, "run the mirror"),
        (["SELECT 'x'::int FROM t"], 1, "DuckDB: Conversion Error"),
    ],
)
def test_errors(
    lake: str, capsys: pytest.CaptureFixture[str], given: list[str], status: int, what: str
) -> None:
    assert main(["query", lake, *given]) == status
    said = capsys.readouterr().err
    assert what in said
    assert said.count("\n") == 1


def test_no_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query"]) == 2
    assert "TARGET" in capsys.readouterr().err
    assert main(["query", str(tmp_path), "SELECT 1"]) == 1
    assert "is not the target of a mirror, or its first load has not begun" in capsys.readouterr().err


def test_a_file_that_is_gone(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    for each in Path(lake, "current").rglob("*.parquet"):
        each.unlink()
    assert main(["query", lake, "SELECT count(*) FROM t"]) == 1
    assert "run the query again" in capsys.readouterr().err


def test_names_that_duckdb_does_not_distinguish(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    MirrorState(open_store(lake)).set_table("public.T", TableRecord('public."T"', stage="follow"))
    for name in ("t", "T", 'public."T"'):
        assert main(["query", lake, f"FROM {name}"]) == 1
        assert 'DuckDB ignores case: tables public."T" and public.t are the same' in capsys.readouterr().err


def test_without_duckdb(lake: str) -> None:
    program = (
        "import sys; sys.modules['duckdb'] = None; from pgoutput_fast.cli.main import main; "
        f"sys.exit(main(['query', {lake!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "pgoutput-fast: duckdb is missing: pip install 'pgoutput_fast[duckdb]'\n"


def test_a_pipe_that_ends(lake: str) -> None:
    command = (
        f"{sys.executable} -m pgoutput_fast query {lake} 'FROM range(10000000)' --format {{}} | head -n 1"
    )
    for form, first in (("csv", '"range"'), ("json", '{"range": 0}')):
        done = subprocess.run(
            ["bash", "-c", command.format(form)], capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.stderr) == (f"{first}\n", "")


def test_sql_from_the_standard_input(lake: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pgoutput_fast", "query", lake, "-", "--format", "csv"],
        input="SELECT id\nFROM t -- a comment\nORDER BY id;\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == '"id"\n2\n3\n'


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_query(lake: str, tmp_path: Path, number: int, status: int) -> None:
    """While DuckDB computes. Its temporary directory goes."""
    (tmp_path / "temporary").mkdir()
    sql = "SELECT count(*) FROM range(10000000) a, range(10000000) b, t WHERE a.range * b.range = 7 * t.id"
    process = subprocess.Popen(
        [sys.executable, "-m", "pgoutput_fast", "query", lake, sql],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
    )
    try:
        # Python looks whether it can write there, with a file that it removes.
        wait_until(lambda: any((tmp_path / "temporary").glob("pgoutput-fast-*")))
        process.send_signal(number)
        process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == status
    assert list((tmp_path / "temporary").iterdir()) == []


def test_an_interrupt_before_duckdb_computes(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the call is handed to the other thread."""
    submit = ThreadPoolExecutor.submit

    def interrupted(self: ThreadPoolExecutor, call: Any) -> None:
        monkeypatch.undo()
        submit(self, lambda: (time.sleep(0.3), call()))
        raise KeyboardInterrupt

    sql = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range = 7"
    with Views(TablesAt(lake, "latest", TableOptions()), sql) as views:
        monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            views.run(sql)

"""`pgoutput-fast decode` makes tables of what `inspect` shows, and they are there as a whole or not at all."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import create_slot, find_slot
from pgoutput_fast.cli import payloads
from pgoutput_fast.cli.main import main
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.tables import files
from support.message_files import CUSTOMERS, ORDERS, lines, stream, write_all, write_segments
from support.mirrors import Place, place

__all__ = ["place"]

Shown = pytest.CaptureFixture[str]


def rows(path: Path, *names: str) -> list[tuple[Any, ...]]:
    table = pq.read_table(path)
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


def error(arguments: list[str], capsys: Shown, status: int = 1) -> str:
    assert main(["decode", *arguments]) == status
    said = capsys.readouterr().err
    assert said.startswith("pgoutput-fast: ")
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize("kind", ["recvlogical", "raw", "psql", "hex", "parquet", "arrow"])
def test_each_kind_of_file(kind: str, tmp_path: Path, capsys: Shown) -> None:
    out = tmp_path / "out"
    assert main(["decode", str(write_all(tmp_path)[kind]), "--out", str(out)]) == 0
    assert names(out) == ["public.customers.parquet", "public.orders.parquet"]
    assert rows(out / "public.orders.parquet", "_change_type", "id", "note") == [
        ("insert", 1, "two\nlines"),
        ("update_postimage", 1, "paid"),
        ("delete", 1, None),
    ]
    shown = capsys.readouterr()
    assert [line.split() for line in shown.out.splitlines()] == [
        ["table", "rows"],
        ["public.customers", "1"],
        ["public.orders", "3"],
    ]
    assert shown.err == ""


def types_stream() -> list[bytes]:
    """A table with a list, bytes, a time and a float that is not finite."""
    spec = RelationSpec(
        16403,
        "public",
        "kinds",
        (
            ColumnSpec("id", 23, key=True),
            ColumnSpec("tags", 1009),
            ColumnSpec("raw", 17),
            ColumnSpec("at", 1083),
            ColumnSpec("f", 701),
        ),
    )
    server = Writer()
    wal = server.begin(7, 100, 0)
    wal += server.change(spec, "insert", new=["1", '{a,"b,c"}', "\\x00ff", "12:30:00", "NaN"])
    wal += server.change(spec, "insert", new=["2", None, None, None, None])
    return wal + server.commit(100, 108, 0)


def test_formats(tmp_path: Path) -> None:
    path = tmp_path / "changes"
    path.write_bytes(lines(types_stream()))
    for form in ("parquet", "csv", "jsonl", "duckdb"):
        assert main(["decode", str(path), "--to", form, "--out", str(tmp_path / f"out.{form}")]) == 0
    assert rows(tmp_path / "out.parquet" / "public.kinds.parquet", "tags", "raw", "at")[0] == (
        ["a", "b,c"],
        b"\0\xff",
        "12:30:00.000000",
    )
    (first, second) = (tmp_path / "out.jsonl" / "public.kinds.jsonl").read_text().splitlines()
    found = json.loads(first)
    assert (found["tags"], found["raw"], found["f"]) == ('["a", "b,c"]', "\\x00ff", "nan")
    assert json.loads(second)["f"] is None
    table = pyarrow.csv.read_csv(tmp_path / "out.csv" / "public.kinds.csv")
    assert table.column("tags").to_pylist() == ['["a", "b,c"]', ""]
    assert table.column("raw").to_pylist() == ["\\x00ff", ""]
    with duckdb.connect(str(tmp_path / "out.duckdb"), read_only=True) as database:
        assert database.execute("SELECT id, tags FROM public.kinds ORDER BY id").fetchall() == [
            (1, ["a", "b,c"]),
            (2, None),
        ]


def test_the_name_of_the_target_tells_the_format(tmp_path: Path) -> None:
    out = tmp_path / "shop.duckdb"
    assert main(["decode", str(write_all(tmp_path)["raw"]), "--out", str(out)]) == 0
    with duckdb.connect(str(out), read_only=True) as database:
        assert database.execute("SELECT count(*) FROM public.orders").fetchall() == [(3,)]


@pytest.mark.parametrize(
    ("name", "form"), [("o.csv", "csv"), ("o.JSON", "jsonl"), ("o.ndjson", "jsonl"), ("o.parquet", "parquet")]
)
def test_a_target_that_looks_like_one_file(name: str, form: str, tmp_path: Path, capsys: Shown) -> None:
    source, out = str(write_all(tmp_path)["raw"]), tmp_path / name
    assert main(["decode", source, "--out", str(out)]) == 2
    assert f"give --to {form} --out {tmp_path / 'o'}\n" in capsys.readouterr().err
    assert not out.exists()
    # Somebody who gives the format may want this name.
    assert main(["decode", source, "--out", str(out), "--to", form]) == 0
    assert (out / f"public.orders.{form}").exists()


def test_committed_and_as_sent(tmp_path: Path, capsys: Shown) -> None:
    path = tmp_path / "changes"
    path.write_bytes(lines(stream()[:-1]))  # the second transaction has no commit
    out = tmp_path / "out"
    assert main(["decode", str(path), "--out", str(out)]) == 0
    assert len(rows(out / "public.orders.parquet", "id")) == 1
    assert "left out: 1 transaction without an end" in capsys.readouterr().err
    assert main(["decode", str(path), "--out", str(out), "--overwrite", "--as-sent"]) == 0
    assert len(rows(out / "public.orders.parquet", "id")) == 3
    assert capsys.readouterr().err == ""


def test_only_some_tables(tmp_path: Path, capsys: Shown) -> None:
    path, out = str(write_all(tmp_path)["raw"]), tmp_path / "out"
    assert main(["decode", path, "--out", str(out), "--table", "public.customers"]) == 0
    assert names(out) == ["public.customers.parquet"]
    capsys.readouterr()
    before = names(tmp_path)
    said = error([path, "--out", str(tmp_path / "other"), "--table", "public.order"], capsys)
    assert "there is public.customers, public.orders" in said
    assert names(tmp_path) == before


def test_rejects(tmp_path: Path, capsys: Shown) -> None:
    server = Writer()
    wal = server.begin(7, 100, 0) + server.change(ORDERS, "insert", new=["1", "a"])
    wal += server.change(ORDERS, "insert", new=["no number", "b"])
    dated = RelationSpec(16402, "public", "dated", (ColumnSpec("day", 1082),))
    wal += server.change(dated, "insert", new=["infinity"]) + server.commit(100, 108, 0)
    path, out = tmp_path / "changes", tmp_path / "out"
    path.write_bytes(lines(wal))
    assert main(["decode", str(path), "--out", str(out)]) == 0
    assert names(out) == ["_rejects.parquet", "public.dated.parquet", "public.orders.parquet"]
    assert set(rows(out / "_rejects.parquet", "seq", "column")) == {(3, "id"), (5, "day")}
    said = capsys.readouterr().err
    assert "could not be decoded: 1 message: see _rejects" in said
    assert "without an Arrow form: 1 value: see _rejects" in said


@pytest.mark.parametrize("form", ["parquet", "duckdb"])
def test_a_place_that_cannot_be_written(tmp_path: Path, capsys: Shown, form: str) -> None:
    """The error names what was asked for, and no temporary name."""
    path = tmp_path / "changes"
    path.write_bytes(lines(Writer().begin(7, 100, 0)))
    said = error([str(path), "--out", "/proc/no/out", "--to", form], capsys)
    assert "/proc/no" in said
    said = error([str(path), "--out", "/proc/out", "--to", form], capsys)
    assert "/proc/out" in said
    assert "/." not in said


@pytest.mark.parametrize("open_files", [100, 1])
def test_a_table_that_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_files: int) -> None:
    """Versions become one table, also where they come in different pieces, by turns, and in several files."""
    monkeypatch.setattr(files, "_MOST_WAITING", 1)
    monkeypatch.setattr(files, "_MOST_OPEN", open_files)
    wide = RelationSpec(16401, "public", "orders", (*ORDERS.columns, ColumnSpec("paid", 16)))
    server, wal = Writer(), []
    for n, spec in enumerate([ORDERS, wide, ORDERS, wide]):
        wal += server.begin(7 + n, 100 * n + 100, 0)
        cells = [str(n), "a", "t"][: len(spec.columns)]
        wal += server.change(spec, "insert", new=cells) + server.commit(100 * n + 100, 100 * n + 108, 0)
    path = tmp_path / "changes"
    # More than one read of the file.
    padding = server.begin(90, 900, 0) + server.change(CUSTOMERS, "insert", new=["1", "x" * (5 << 20)])
    padding += server.commit(900, 908, 0)
    path.write_bytes(lines(wal[:7] + wal[7:]) + lines(padding))
    for form in ("parquet", "csv", "duckdb"):
        assert main(["decode", str(path), "--to", form, "--out", str(tmp_path / form)]) == 0
    found = rows(tmp_path / "parquet" / "public.orders.parquet", "id", "paid")
    assert found == [(0, None), (1, True), (2, None), (3, True)]
    with duckdb.connect(str(tmp_path / "duckdb"), read_only=True) as database:
        assert database.execute("SELECT id, paid FROM public.orders ORDER BY _seq").fetchall() == found


def test_a_column_that_gets_another_type(
    tmp_path: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No table can have both, whether they come in one piece or in two."""
    text = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 25, key=True), ColumnSpec("note", 25)))
    server = Writer()
    first = (
        server.begin(7, 100, 0) + server.change(ORDERS, "insert", new=["1", "a"]) + server.commit(100, 108, 0)
    )
    then = (
        server.begin(8, 200, 0) + server.change(text, "insert", new=["x", "a"]) + server.commit(200, 208, 0)
    )
    path, out = tmp_path / "changes", tmp_path / "out"
    for rows_of_a_piece in (1 << 14, 3):
        monkeypatch.setattr(payloads, "_MOST_ROWS", rows_of_a_piece)
        path.write_text("".join(f"{each.hex()}\n" for each in first + then))
        said = error([str(path), "--out", str(out)], capsys)
        assert "column 'id' is int32 in version" in said
        assert "--table" in said
        assert names(tmp_path) == ["changes"]


def test_segments(tmp_path: Path, capsys: Shown) -> None:
    directory = write_segments(tmp_path / "segments")
    for arguments in ([], ["--as-sent"]):
        out = tmp_path / f"out{len(arguments)}"
        assert main(["decode", str(directory), "--out", str(out), *arguments]) == 0
        assert names(out) == ["public.customers.parquet", "public.orders.parquet"]
        assert rows(out / "public.orders.parquet", "_change_type", "id") == [
            *(("insert", n) for n in range(4)),
            ("truncate", None),
        ]
    capsys.readouterr()
    sorted(directory.iterdir())[1].unlink()
    said = error([str(directory), "--out", str(tmp_path / "gap")], capsys)
    assert "messages 6 to 9 are missing" in said
    assert not (tmp_path / "gap").exists()


def test_logical_messages_of_segments(tmp_path: Path) -> None:
    from pgoutput_fast.segments import Source, write_segment

    server = Writer(4, streaming="on")
    wal = server.begin(7, 100, 0) + server.message(50, "kept", b"1") + server.commit(100, 108, 0)
    wal += server.stream_start(8) + server.message(150, "rolled back", b"2") + server.stream_stop()
    wal += server.stream_abort(8, 8)
    directory = tmp_path / "segments"
    directory.mkdir()
    tagged, state = pgo.tag(wal)
    write_segment(directory, tagged, state, source=Source("1", "shop", "slot"))
    (tmp_path / "raw").write_bytes(b"".join(wal))
    for name in ("segments", "raw"):
        out = tmp_path / f"{name}.out"
        assert main(["decode", str(tmp_path / name), "--out", str(out)]) == 0
        assert rows(out / "_messages.parquet", "prefix", "content") == [("kept", b"1")]


def test_an_existing_target(tmp_path: Path, capsys: Shown) -> None:
    path, out = str(write_all(tmp_path)["raw"]), tmp_path / "out"
    assert main(["decode", path, "--out", str(out)]) == 0
    capsys.readouterr()
    assert "--overwrite" in error([path, "--out", str(out)], capsys, 2)
    assert main(["decode", path, "--out", str(out), "--overwrite", "--to", "csv"]) == 0
    assert names(out) == ["public.customers.csv", "public.orders.csv"]
    capsys.readouterr()
    (out / "notes.txt").write_text("mine")
    assert "notes.txt" in error([path, "--out", str(out), "--overwrite"], capsys)
    assert "--out" in error([path], capsys, 2)
    notes = out / "notes.txt"
    assert "is not a DuckDB file" in error([path, "--out", str(notes), "--overwrite"], capsys)
    assert notes.read_text() == "mine"


def test_after_an_error_nothing_is_there(tmp_path: Path, capsys: Shown) -> None:
    path, out = tmp_path / "cut", tmp_path / "out"
    path.write_bytes(lines(stream())[:-10])
    text = error([str(path), "--out", str(out)], capsys)
    assert "ends within its last message" in text
    assert "--drop-cut-off" in text
    assert names(tmp_path) == ["cut"]
    for data in (lines(stream()), b"".join(stream())):
        path.write_bytes(data[:-10])
        assert main(["decode", str(path), "--out", str(out), "--overwrite", "--drop-cut-off"]) == 0
        assert len(rows(out / "public.orders.parquet", "id")) == 1
        assert f"left out: the last message of {path}" in capsys.readouterr().err
    path.write_bytes(lines(stream())[:10])
    assert main(["decode", str(path), "--out", str(out), "--overwrite", "--drop-cut-off"]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines()[-1] == "no changes committed in the input"


def test_more_tables_than_a_process_may_have_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_MOST_WAITING", 1)
    server, count = Writer(), 300
    wal = server.begin(7, 100, 0)
    for oid in range(16500, 16500 + count):
        relation = RelationSpec(oid, "public", f"t{oid}", (ColumnSpec("id", 23, key=True),))
        wal += server.change(relation, "insert", new=["1"])
    path, out = tmp_path / "changes", tmp_path / "out"
    path.write_bytes(lines(wal + server.commit(100, 108, 0)))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        assert main(["decode", str(path), "--out", str(out)]) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(names(out)) == count


@pytest.mark.unsanitized
def test_a_full_disk(tmp_path: Path) -> None:
    source, target = tmp_path / "wal", tmp_path / "tables"
    server = Writer()
    values = [os.urandom(5_000).hex() for _ in range(100)]
    wal = server.begin(7, 100, 0)
    wal += [each for value in values for each in server.change(CUSTOMERS, "insert", new=["1", value])]
    source.write_bytes(lines([*wal, *server.commit(100, 108, 0)]))
    limited = "import resource, sys; from pgoutput_fast.cli.main import main; "
    limited += "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); sys.exit(main(sys.argv[1:]))"
    words = ["decode", str(source), "--out", str(target)]
    done = subprocess.run([sys.executable, "-c", limited, *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"There is no space for files of tables in {tmp_path}." in done.stderr
    assert "/." not in done.stderr
    assert not any(value[:20] in done.stderr for value in values)
    assert list(tmp_path.iterdir()) == [source]


SIGNALLED = """
import os, signal, sys
from pgoutput_fast.cli.main import main
from pgoutput_fast.cli.parts import Parts

def signalled(parts):
    os.kill(os.getpid(), int(sys.argv[1]))

Parts.finish = signalled
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.unsanitized
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_nothing(tmp_path: Path, number: signal.Signals, status: int) -> None:
    source, target = tmp_path / "wal", tmp_path / "tables"
    source.write_bytes(lines(stream()))
    words = ["decode", str(source), "--out", str(target)]
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, str(int(number)), *words], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [source]


def test_names_are_as_sql_writes_them(tmp_path: Path, capsys: Shown) -> None:
    lines_of = RelationSpec(16403, "public", "Order Lines", (ColumnSpec("id", 23, key=True),))
    server = Writer()
    wal = server.begin(7, 100, 0) + server.change(lines_of, "insert", new=["1"]) + server.commit(100, 108, 0)
    path, out = tmp_path / "changes", tmp_path / "out"
    path.write_bytes(lines(wal))
    assert main(["decode", str(path), "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split("  ")[0] == 'public."Order Lines"'
    assert main(["decode", str(path), "--out", str(out), "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tables"] == {'public."Order Lines"': 1}
    assert names(out) == ["public.Order%20Lines.parquet"]


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ([("public", "t", "id"), ("public", "T", "id")], 'tables public.t and public."T" are the same'),
        ([("a", "t", "id"), ("A", "t", "id")], 'tables a.t and "A".t are the same'),
        ([("public", "t", "id"), ("public", "t", "ID")], "columns id and ID of public.t are the same"),
        ([("temp", "t", "id")], "cannot have the table temp.t"),
    ],
)
def test_names_that_duckdb_cannot_have(
    tables: list[tuple[str, str, str]], said: str, tmp_path: Path, capsys: Shown
) -> None:
    server = Writer()
    wal = server.begin(7, 100, 0)
    for oid, (namespace, name, column) in enumerate(tables, 16500):
        columns = [ColumnSpec(each, 23, key=True) for each in dict.fromkeys([tables[0][2], column])]
        relation = RelationSpec(oid, namespace, name, tuple(columns))
        wal += server.change(relation, "insert", new=["1"] * len(columns))
    wal += server.commit(100, 108, 0)
    path, out = tmp_path / "changes", tmp_path / "out"
    path.write_bytes(lines(wal))
    text = error([str(path), "--to", "duckdb", "--out", str(out)], capsys)
    assert said in text
    assert "Choose --to parquet, or the tables with --table" in text
    assert not out.exists()
    assert main(["decode", str(path), "--out", str(out)]) == 0


def test_a_slot(place: Place) -> None:
    database = place.database
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)", "CREATE PUBLICATION mirrored FOR TABLE orders"
    )
    create_slot(database.dsn, place.slot)
    database.execute("INSERT INTO orders VALUES (1), (2)")
    before = find_slot(database.dsn, place.slot)
    out = place.target
    words = ["--dsn", database.dsn, "--slot", place.slot, "--publication", "mirrored"]
    assert main(["decode", *words, "--out", str(out)]) == 0
    assert rows(out / "public.orders.parquet", "id") == [(1,), (2,)]
    after = find_slot(database.dsn, place.slot)
    assert before is not None
    assert after is not None
    assert after.confirmed_flush_lsn == before.confirmed_flush_lsn

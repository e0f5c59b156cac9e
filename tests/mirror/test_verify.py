"""A mirror is compared with its server at one position, while both go on."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgoutput_fast.capture import find_slot
from pgoutput_fast.cli.main import main
from pgoutput_fast.mirror import MirrorError, verify
from pgoutput_fast.schema.options import Options
from support.mirrors import Following, Place, current_of, place

__all__ = ["place"]

TABLES = (
    "CREATE TABLE orders (id int PRIMARY KEY, note text, at timestamptz, amount numeric)",
    "INSERT INTO orders SELECT k, 'note ' || k, now() - k * interval '1 day', k / 7.0 FROM generate_series(1, 1000) k",
    "INSERT INTO orders VALUES (0, NULL, 'infinity', 'NaN')",
    "CREATE TABLE pairs (a text, b int[], v float8, PRIMARY KEY (a, b))",
    "INSERT INTO pairs SELECT 'k' || k, ARRAY[k, NULL], 'NaN' FROM generate_series(1, 300) k",
    "CREATE TABLE lines (line text, n int)",
    "ALTER TABLE lines REPLICA IDENTITY FULL",
    "INSERT INTO lines SELECT 'same', NULL FROM generate_series(1, 200)",
    "CREATE TABLE bare (id int PRIMARY KEY)",
    "INSERT INTO bare VALUES (1)",
    "CREATE PUBLICATION mirrored FOR ALL TABLES",
)


def test_a_mirror_that_runs(place: Place) -> None:
    """Its rows change all the time, and no difference is seen."""
    place.database.execute(*TABLES)
    stop = threading.Event()

    def change() -> None:
        with place.database.session() as connection, connection.cursor() as cursor:
            for k in itertools.count():
                if stop.is_set():
                    return
                cursor.execute(f"UPDATE orders SET note = 'n{k}', amount = {k} WHERE id % 50 = {k % 50}")
                cursor.execute("INSERT INTO lines VALUES ('same', NULL)")
                cursor.execute("DELETE FROM pairs WHERE a = %s", (f"k{k % 300}",))
                cursor.execute("INSERT INTO pairs VALUES (%s, ARRAY[%s], %s)", (f"n{k}", k, k))
                connection.commit()
                stop.wait(0.02)

    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
        with Following(mirror) as following:
            writer = threading.Thread(target=change)
            writer.start()
            try:
                following.until(lambda: find_slot(place.database.dsn, place.slot).active_pid)  # type: ignore[union-attr]
                for threads in (1, 3):
                    found = verify(place.target, place.database.dsn, threads=threads)
                    assert [str(each) for each in found if not each.equal] == []
                    assert not any(each.is_behind for each in found)
            finally:
                stop.set()
                writer.join()
            # Nothing happens any more.
            found = verify(place.target, place.database.dsn)
    names = ["public.bare", "public.lines", "public.orders", "public.pairs"]
    assert [each.table for each in found] == names
    assert all(each.equal and not each.is_behind for each in found)
    assert [each.rows for each in found] == [each.mirror_rows for each in found]
    assert found[2].rows == 1001
    assert found[2].ranges >= 15


def test_differences(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.database.execute(*TABLES)
    place.run()
    target, dsn = str(place.target), place.database.dsn
    assert main(["verify", target, "--dsn", dsn]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert [row.split()[-1] for row in said.out.splitlines()[1:]] == ["equal"] * 4
    # Somebody changes the files of the mirror.
    _change(place.target, "public.orders", lambda rows: _without(rows, 17))
    _change(place.target, "public.lines", lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]))
    bare = pa.table({"id": [5], "_commit_lsn": [1], "_unrepresentable": [None]})
    _change(place.target, "public.bare", lambda rows: pa.concat_tables([rows, bare.cast(rows.schema)]))
    assert main(["verify", target, "--dsn", dsn, "--json"]) == 1
    bare_, lines, orders, pairs = map(json.loads, capsys.readouterr().out.splitlines())
    assert (pairs["equal"], pairs["samples"]) == (True, [])
    assert (lines["equal"], lines["different"], lines["samples"]) == (False, 1, [])
    assert bare_["samples"] == [{"what": "extra", "key": {"id": 5}}]
    assert (orders["rows"], orders["mirror_rows"], orders["different"]) == (1001, 1000, 2)
    assert orders["samples"] == [
        {"what": "missing", "key": {"id": 17}},
        {"what": "changed", "key": {"id": 900}},
    ]
    assert main(["verify", target, "--dsn", dsn, "--table", "orders"]) == 1
    assert "no mirrored table orders" in capsys.readouterr().err
    assert main(["verify", target, "--dsn", dsn, "--table", "public.orders"]) == 1
    said = capsys.readouterr()
    assert "public.orders: the row id=17 is missing in the mirror" in said.err
    assert "note" not in said.err
    # Such differences are what a repair by reload mends.
    with place.mirror() as mirror:
        for each in ("public.orders", "public.lines", "public.bare"):
            mirror.reload(each)
        mirror.run(until_lsn="now")
    assert all(each.equal for each in verify(place.target, dsn))


def _without(rows: pa.Table, gone: int) -> pa.Table:
    """The rows without one, and with another note in row 900."""
    notes = [
        "other" if k == 900 else note
        for k, note in zip(rows["id"].to_pylist(), rows["note"].to_pylist(), strict=True)
    ]
    rows = rows.set_column(
        rows.schema.get_field_index("note"),
        rows.schema.field("note"),
        pa.array(notes, rows.schema.field("note").type),
    )
    return rows.filter(pa.array([k != gone for k in rows["id"].to_pylist()]))


def _change(target: Path, table: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Rewrites the only file of a current table."""
    (file,) = (target / "current" / table).glob("*.parquet")
    pq.write_table(change(pq.read_table(file, partitioning=None)), file)


def test_a_mirror_that_does_not_run(place: Place) -> None:
    place.database.execute(*TABLES)
    place.run()
    # Equal rows are equal, however far the mirror is.
    found = verify(place.target, place.database.dsn, tables=["public.orders"])
    assert [each.equal for each in found] == [True]
    place.database.execute("UPDATE orders SET note = 'x' WHERE id = 3")
    (found,) = verify(place.target, place.database.dsn, tables=["public.orders"])
    assert found.is_behind
    assert not found.equal
    assert found.samples == (("changed", {"id": 3}),)
    assert "run the mirror meanwhile" in str(found)
    place.run()
    (found,) = verify(place.target, place.database.dsn, tables=["public.orders"])
    assert found.equal


def test_other_types(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.database.execute(*TABLES)
    given = ["--slot", place.slot, "--publication", "mirrored", "--target", str(place.target)]
    some = ["--table", "public.*", "--exclude", "public.bare"]
    process = subprocess.run(
        [
            sys.executable,
            "-m",
            "pgoutput_fast",
            "mirror",
            *given,
            "--until",
            "now",
            "--numeric",
            "38,6",
            *some,
        ],
        capture_output=True,
        text=True,
        env=place.environment,
    )
    assert process.returncode == 0, process.stderr
    amounts = current_of(place.target, "public.orders")["amount"]
    assert (amounts.type, amounts.null_count) == (pa.decimal128(38, 6), 1001 - 1000 // 7)
    check = ["verify", str(place.target), "--dsn", place.database.dsn]
    assert main([*check, "--numeric", "38,6"]) == 0
    assert "public.bare" not in capsys.readouterr().out
    assert main(check) == 1
    assert "its columns have changed" in capsys.readouterr().err
    assert main([*check, "--numeric", "39,6"]) == 2


def test_what_cannot_be_compared(place: Place) -> None:
    place.database.execute(*TABLES)
    place.run()
    dsn = place.database.dsn
    with pytest.raises(LookupError, match="not the target"):
        verify(place.target / "x", dsn)
    with pytest.raises(TypeError, match="list"):
        verify(place.target, dsn, tables="public.orders")
    with pytest.raises(MirrorError, match="names database 'postgres'"):
        verify(place.target, f"{dsn} dbname=postgres")
    place.database.execute("ALTER TABLE orders ADD COLUMN more int", "DROP TABLE bare")
    by_name = {each.table: each for each in verify(place.target, dsn)}
    assert by_name["public.orders"].problem == "its columns have changed"
    assert by_name["public.bare"].problem == "it is not published any more"
    assert not by_name["public.bare"].equal
    assert by_name["public.pairs"].equal
    (found,) = verify(
        place.target, dsn, tables=["public.pairs"], options=Options(on_error="quarantine", numeric="float64")
    )
    assert found.equal
    shutil.rmtree(place.target / "current")
    assert all(each.problem for each in verify(place.target, dsn))

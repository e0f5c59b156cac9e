"""Tables in a lake without Spark: files of limited size, their statistics, and commits that survive a kill at any point."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import re
import resource
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pgoutput_fast.storage.paths import open_file
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.advice import advised
from pgoutput_fast.tables.delta import joining
from pgoutput_fast.tables.delta.table import DeltaTable
from pgoutput_fast.tables.files import TableFiles, WrittenFile
from pgoutput_fast.tables.marker import end_marker, left_runs, put_marker, remove_marker
from pgoutput_fast.tables.parquet import MANIFEST, ParquetTable
from pgoutput_fast.tables.partitions import Partitioning
from pgoutput_fast.tables.statistics import measured, statistics_of
from pgoutput_fast.tables.table import Commit, CommitLsn, Ordinal, Table, TableRole
from support.appended import append, join_files, names_of, seq_of
from support.buckets import opened_bucket

SCHEMA = pa.schema([("_seq", pa.int64()), ("text", pa.string())])


def _batch(first: int, rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(range(first, first + rows)), pa.array([f"{k}" * 100 for k in range(rows)])], schema=SCHEMA
    )


def test_files_have_all_rows_and_limited_sizes(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    noise = random.Random(1)
    with TableFiles(store, "run", True, file_bytes=200_000) as files:
        for k in range(12):
            text = pa.array([noise.randbytes(4_000).hex() for _ in range(1_000)])
            batch = pa.RecordBatch.from_arrays(
                [pa.array(range(k * 1000, k * 1000 + 1000)), text], schema=SCHEMA
            )
            files.add("a" if k % 3 else "b", batch)
    found = {name: [each for each in files.written if each.directory == name] for name in "ab"}
    assert sum(each.rows for each in found["a"]) == 8_000
    assert sum(each.rows for each in found["b"]) == 4_000
    assert len(found["a"]) > 1
    for each in files.written:
        path = tmp_path / each.directory / each.name
        seqs = pq.read_table(path).column("_seq").to_pylist()
        assert (each.rows, each.first, each.last, each.nbytes) == (
            len(seqs),
            min(seqs),
            max(seqs),
            path.stat().st_size,
        )
        assert each.name.startswith(".part-run-")


def test_an_error_leaves_no_file(tmp_path: Path) -> None:
    def fail() -> None:
        with TableFiles(open_store(tmp_path), "run", True, file_bytes=1) as files:
            for k in range(20):
                text = pa.array(["x" * (8 << 20)])
                files.add("t", pa.RecordBatch.from_arrays([pa.array([k]), text], schema=SCHEMA))
            assert files.written
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]


def test_statistics_are_bounds_of_the_values(tmp_path: Path) -> None:
    values: dict[str, list[Any]] = {
        "small": [3, None, -7],
        "text": ["b", "é", None],
        "long": ["x" * 40, "y", "z" * 40],
        "body": ["a" * 9000, "c" * 35 + chr(0xD7FF) + "c" * 9000, "b"],
        "last": [chr(0x10FFFF) * 40, "", None],
        "float": [1.5, -2.5, None],
        "nan": [1.5, math.nan, None],
        "when": [datetime(2024, 2, 29, 1, 2, 3, 456_789, UTC), None, datetime(1, 1, 1, tzinfo=UTC)],
        "local": [datetime(2024, 2, 29, 1, 2, 3, 999_999), None, datetime(1999, 1, 1)],
        "day": [date(2024, 2, 29), date(1, 1, 1), None],
        "price": [Decimal("1.50"), None, Decimal("9.99")],
        "list": [[1, 2], None, [3]],
        "pair": [{"a": 1}, None, None],
        "none": [None, None, None],
    }
    types = {
        "small": pa.int32(), "text": pa.string(), "long": pa.string(), "body": pa.string(), "last": pa.string(),
        "float": pa.float64(), "nan": pa.float64(),
        "when": pa.timestamp("us", "UTC"), "local": pa.timestamp("us"), "day": pa.date32(), "price": pa.decimal128(10, 2),
        "list": pa.list_(pa.int32()), "pair": pa.struct({"a": pa.int32()}), "none": pa.int32(),
    }  # fmt: skip
    path = tmp_path / "f.parquet"
    rows = pa.table({k: pa.array(v, types[k]) for k, v in values.items()})
    pq.write_table(rows, path, row_group_size=2)
    groups = [measured(rows.slice(begin, 2)) for begin in (0, 2)]
    statistics = statistics_of(pq.read_metadata(path), groups, [pa.field("later", pa.int32())])
    assert '"price": 9.99' in statistics
    found = json.loads(statistics)
    assert found["unbounded"] == ["last", "nan"]
    assert found["numRecords"] == 3
    nulls = {name: values[name].count(None) for name in values if name not in ("list", "pair")}
    assert found["nullCount"] == {"later": 3, **nulls}
    assert found["minValues"] == {
        "small": -7, "text": "b", "when": "0001-01-01T00:00:00.000Z", "local": "1999-01-01T00:00:00.000", "day": "0001-01-01",
        "long": "x" * 36, "body": "a" * 36, "float": -2.5, "price": 1.5, "pair": {},
    }  # fmt: skip
    assert found["maxValues"] == {
        "small": 3, "text": "é", "when": "2024-02-29T01:02:03.457Z", "local": "2024-02-29T01:02:04.000", "day": "2024-02-29",
        "long": "z" * 35 + "{", "body": "c" * 35 + chr(0xE000), "float": 1.5, "price": 9.99, "pair": {},
    }  # fmt: skip


class _KilledError(BaseException):
    pass


def _write(store: Any, run: str, first: int) -> list[WrittenFile]:
    with TableFiles(store, run, True) as files:
        files.add("t", _batch(first, 10))
    return files.written


def _counted(function: Any, left: Iterator[int], at: int) -> Any:
    """The function, but the call that gets the number `at` from `left` ends as if the process was killed."""

    def counted(*args: Any) -> Any:
        if next(left) == at:
            raise _KilledError
        return function(*args)

    return counted


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_commit_that_is_killed_is_finished(
    tmp_path: Path, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(20):
        store = open_store(tmp_path / str(at))
        append(ParquetTable(store, "t"), _write(store, "one", 0), 9, SCHEMA, "append")
        files = _write(store, "two", 10)
        left = iter(range(100))
        with monkeypatch.context() as patch:
            for name in ("put", "rename", "remove"):
                patch.setattr(store, name, _counted(getattr(store, name), left, at))
            try:
                append(ParquetTable(store, "t"), files, 19, SCHEMA, mode)
                break
            except _KilledError:
                pass
        table = ParquetTable(store, "t")
        done = seq_of(table) == 19
        assert done == (at > 0)
        if not done:
            append(table, files, 19, SCHEMA, mode)
        names = {each.name for each in (tmp_path / str(at) / "t").glob("[!._]*.parquet")}
        assert names == names_of(table)
        rows = sorted(
            seq
            for name in names
            for seq in pq.read_table(tmp_path / str(at) / "t" / name)["_seq"].to_pylist()
        )
        assert rows == list(range(0 if mode == "append" else 10, 20))
    assert at >= 4


def test_a_damaged_manifest_is_an_error(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    append(ParquetTable(store, "t"), _write(store, "one", 0), 9, SCHEMA, "append")
    manifest = tmp_path / "t" / MANIFEST
    whole = manifest.read_text()
    manifest.write_text(whole[:-20])
    with pytest.raises(ValueError, match=r"_manifest\.json is damaged"):
        ParquetTable(store, "t").version()
    (file,) = json.loads(whole)["files"]
    for change in (
        *({"position": each} for each in (None, "9", 9.5, True, -1, 2**63)),
        *({"schema": each} for each in (None, 7, "", "00ff", "no hex")),
        *({"files": [{**file, "rows": each}]} for each in (None, "1", 1.5)),
        *({"files": each} for each in (7, [7], [{}], [{**file, "name": 7}])),
        {"partition_by": 7},
        {"partition_by": [7]},
        {"transactions": "sent"},
    ):
        manifest.write_text(json.dumps({**json.loads(whole), **change}))
        with pytest.raises(ValueError, match=r"_manifest\.json is damaged"):
            ParquetTable(store, "t").version()
    inside = "part-one-00-00001.parquet"
    for name in (
        "../other/x.parquet",
        "x.parquet",
        f".{inside}/../../y.parquet",
        f"../{inside}",
        f"a=b/../{inside}",
        f"a=b/c/{inside}",
        f"/a=b/{inside}",
        f"a=b//{inside}",
        f"a=b/../../x=y/{inside}",
        f"./a=b/{inside}",
    ):
        manifest.write_text(whole)
        pending = {"version": 1, "rename": [], "remove": [name], "manifest": json.loads(whole)}
        (tmp_path / "t" / "_pending.json").write_text(json.dumps(pending))
        with pytest.raises(ValueError, match=r"_pending\.json is damaged"):
            ParquetTable(store, "t").version()
    (tmp_path / "t" / "_pending.json").unlink()
    manifest.write_text(json.dumps({**json.loads(whole), "version": 9}))
    with pytest.raises(ValueError, match=r"written by a later version"):
        ParquetTable(store, "t").version()


@pytest.mark.parametrize("format", ["parquet", "delta"])
def test_rows_take_the_wider_types_of_a_table(tmp_path: Path, format: str) -> None:
    store = open_store(tmp_path)
    target: Table = (
        ParquetTable(store, "t") if format == "parquet" else DeltaTable(open_store(tmp_path), "t", "changes")
    )
    wide = pa.schema(
        [("a", pa.int64()), ("l", pa.list_(pa.float64())), ("p", pa.decimal128(12, 2)), ("s", pa.string())]
    )
    narrow = pa.schema(
        [("a", pa.int16()), ("l", pa.list_(pa.float32())), ("p", pa.decimal128(10, 2)), ("n", pa.bool_())]
    )
    assert target.fitted(wide) == wide
    append(target, [], 0, wide, "append")
    fitted = target.fitted(narrow)
    assert fitted.names == narrow.names
    assert fitted.types == [wide.field("a").type, wide.field("l").type, wide.field("p").type, pa.bool_()]
    for kind in (pa.string(), pa.float64(), pa.decimal128(38, 0)):
        with pytest.raises(
            ValueError, match=r"its column 'a' is int64, and the rows have .* use mode='overwrite'"
        ):
            target.fitted(pa.schema([("a", kind)]))


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_delta_table_gets_its_first_timestamps_without_a_zone(tmp_path: Path, mode: Any) -> None:
    """Delta counts them as a feature that a table must have."""
    store, later = open_store(tmp_path), SCHEMA.append(pa.field("at", pa.timestamp("us")))
    moment = datetime(2024, 2, 29, 12)
    steps = [(SCHEMA, [{"_seq": 1}], "append"), (later, [{"_seq": 2, "at": moment}], mode)]
    for schema, rows, how in steps:
        with TableFiles(store, f"run{rows[0]['_seq']}", False) as files:
            files.add("t", pa.RecordBatch.from_pylist(rows, schema))
        append(DeltaTable(open_store(tmp_path), "t", "changes"), files.written, rows[0]["_seq"], schema, how)
    table = deltalake.DeltaTable(str(tmp_path / "t"))
    found = {row["_seq"]: row["at"] for row in table.to_pyarrow_table().to_pylist()}
    assert found == ({1: None} if mode == "append" else {}) | {2: moment}
    assert table.transaction_version("pgoutput_fast") == 2


def test_a_delta_table_has_checkpoints(tmp_path: Path) -> None:
    """Without them, each commit costs more than the one before: delta-rs reads the log behind the last one."""
    place, target = tmp_path / "t", DeltaTable(open_store(tmp_path), "t", "changes")
    for k in range(25):
        with TableFiles(open_store(tmp_path), f"run{k}", False) as files:
            files.add("t", _batch(k, 1))
        append(target, files.written, k, SCHEMA, "append")
    last = json.loads((place / "_delta_log" / "_last_checkpoint").read_text())
    assert last["version"] == 19
    for path in sorted((place / "_delta_log").glob("*.json"))[:20]:
        path.unlink()
    table = deltalake.DeltaTable(str(place))
    assert sorted(table.to_pyarrow_table()["_seq"].to_pylist()) == list(range(25))
    assert seq_of(DeltaTable(open_store(tmp_path), "t", "changes")) == 24


_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def _deletion_vector() -> dict[str, Any]:
    """One that hides the first row of a file, in the form of Delta's log."""
    bitmap = struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, 0)
    whole = struct.pack("<Iq", 1681511377, 1) + struct.pack("<I", 0) + bitmap
    whole += b"\0" * (-len(whole) % 4)
    words = (int.from_bytes(whole[k : k + 4]) for k in range(0, len(whole), 4))
    text = "".join(_Z85[word // 85**n % 85] for word in words for n in range(4, -1, -1))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(whole), "cardinality": 1}


def _delete_first_row(log: Path) -> None:
    """What a DELETE of Spark does to a table with one commit, if deletion vectors are on."""
    made = map(json.loads, (log / f"{0:020}.json").read_text().splitlines())
    (add,) = [action["add"] for action in made if "add" in action]
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    actions = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"remove": {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}},
        {"add": {**add, "deletionVector": _deletion_vector()}},
    ]
    (log / f"{1:020}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))


def _map_columns(log: Path) -> None:
    action = {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}
    (log / f"{1:020}.json").write_text(json.dumps(action))


@pytest.mark.parametrize("role", ["changes", "history"])
@pytest.mark.parametrize(
    ("change", "feature"), [(_delete_first_row, "deletionVectors"), (_map_columns, "columnMapping")]
)
def test_tables_that_must_be_read_in_another_way_are_refused(
    tmp_path: Path, role: TableRole, change: Callable[[Path], None], feature: str
) -> None:
    """Rows that a user deleted must not come back with the next commit, and nobody may read them."""
    position: Ordinal | CommitLsn = Ordinal(9) if role == "changes" else CommitLsn(9)
    store, place = open_store(tmp_path), tmp_path / "t"
    table = DeltaTable(store, "t", role)
    table.commit(Commit(None, SCHEMA, position, _write(store, "one", 0)))
    change(place / "_delta_log")
    wider = SCHEMA.append(pa.field("new", pa.int32()))
    calls: tuple[Callable[[], object], ...] = (
        table.version,
        table.fix_statistics,
        lambda: join_files(table),
        lambda: table.fitted(wider),
        lambda: table.commit(Commit(table.known, wider, position, _write(store, "two", 10))),
        lambda: DeltaTable(store, "t", role).version(),
        lambda: DeltaTable(store, "t", role).version(1),
    )
    for call in calls:
        with pytest.raises(
            ValueError,
            match=rf"the table in .*/t was changed .* it has {feature}, .*Remove its directory, and",
        ):
            call()
    assert deltalake.DeltaTable(str(place)).version() == 1
    if feature == "deletionVectors":
        query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(place)))
        rows = pa.table(query.execute("SELECT _seq FROM t ORDER BY _seq"))
        assert rows["_seq"].to_pylist() == list(range(1, 10))
    assert DeltaTable(store, "t", role).version(0) is not None


# ---- files of a history that are joined ------------------------------------------------------------------------------

JOINED = pa.schema(
    [
        ("id", pa.int64()),
        ("amount", pa.decimal128(18, 10)),
        ("pair", pa.struct([("amount", pa.decimal128(38, 10)), ("note", pa.string())])),
        ("moment", pa.timestamp("us", "UTC")),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("ratio", pa.float64()),
        ("list", pa.list_(pa.int32())),
    ]
)


def _joinable(place: Path, rows: int = 10) -> list[dict[str, Any]]:
    """Makes a history of files with one row each. Returns the rows."""
    store, made = open_store(place), []
    for k in range(rows):
        amount = Decimal("12345678.0123456789") + k
        moment = datetime(2024, 2, 29, 1, 2, 3, 456_789 + k, UTC)
        row = {"id": k, "amount": amount, "pair": {"amount": amount, "note": "z" * 100}, "moment": moment}
        row |= {"text": "é" * 50 + str(k), "raw": b"\xff" * 99, "ratio": k / 3, "list": [k, None]}
        # The first file lacks a column.
        schema = JOINED if k else JOINED.remove(JOINED.names.index("text"))
        row = row if k else {**row, "text": None}
        with TableFiles(store, "0123", False, prefix=None) as files:
            files.add("t", pa.RecordBatch.from_pylist([row], schema))
        table = DeltaTable(store, "t", "history")
        table.commit(Commit(table.version(), schema, CommitLsn(k + 1), files.written))
        made.append(row)
    return made


def _expect_found(place: Path, rows: list[dict[str, Any]]) -> None:
    """Checks that readers find each row by its values, and once."""
    table = deltalake.DeltaTable(str(place / "t"))
    data = table.to_pyarrow_dataset()
    assert sorted(data.to_table(columns=JOINED.names).to_pylist(), key=lambda row: row["id"]) == rows
    engine = deltalake.QueryBuilder().register("t", table)
    for row in rows:
        for name in ("amount", "moment", "text", "ratio"):
            if row[name] is not None:
                wanted = pc.field(name) == pa.scalar(row[name], JOINED.field(name).type)
                assert row["id"] in data.to_table(filter=wanted)["id"].to_pylist(), (name, row["id"])
        for column in ("amount", "pair['amount']"):
            where = f"{column} = CAST('{row['amount']}' AS DECIMAL(38, 10))"
            found = pa.table(engine.execute(f"SELECT id FROM t WHERE {where}"))
            assert found["id"].to_pylist() == [row["id"]], (column, row["id"])


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_while_files_are_joined_hides_no_rows(
    tmp_path: Path, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before or after each commit: bounds are exact from the first commit on that has a file."""
    write = deltalake.DeltaTable.create_write_transaction
    for at in range(9):
        rows, left = _joinable(tmp_path / str(at)), [at]

        def killed(*arguments: Any, left: list[int] = left, **more: Any) -> None:
            left[0] -= 1
            if left[0] >= 0 or after:
                write(*arguments, **more)
            if left[0] < 0:
                raise _KilledError

        table = DeltaTable(open_store(tmp_path / str(at)), "t", "history")
        with monkeypatch.context() as patch:
            patch.setattr(deltalake.DeltaTable, "create_write_transaction", killed)
            try:
                join_files(table)
                break
            except _KilledError:
                pass
        _expect_found(tmp_path / str(at), rows)
        join_files(DeltaTable(open_store(tmp_path / str(at)), "t", "history"))
        _expect_found(tmp_path / str(at), rows)
    assert at >= 1
    _expect_found(tmp_path / str(at), rows)
    assert len(deltalake.DeltaTable(str(tmp_path / str(at) / "t")).file_uris()) == 1
    version = table.version()
    assert version is not None
    assert version.lsn == 10
    assert version.schema == JOINED.remove(4).append(JOINED.field("text"))
    bounds = [each.to_pylist() for each in version.bounds("amount")]
    assert bounds == [[rows[0]["amount"]], [rows[-1]["amount"]]]
    join_files(table)  # one file is not joined
    assert table.version() == version


def test_bounds_that_another_program_rounded_are_mended_once(tmp_path: Path) -> None:
    """So are those of an earlier version of this package that was killed between joining files and mending them."""
    rows, place = _joinable(tmp_path), str(tmp_path / "t")
    for _ in range(2):
        deltalake.DeltaTable(place).optimize.compact(writer_properties=deltalake.WriterProperties())
        with pytest.raises(AssertionError):
            _expect_found(tmp_path, rows)
        number = deltalake.DeltaTable(place).version()
        for _ in range(2):
            DeltaTable(open_store(tmp_path), "t", "history").fix_statistics()
            _expect_found(tmp_path, rows)
            assert deltalake.DeltaTable(place).version() == number + 1
        row = {**rows[-1], "id": len(rows), "amount": rows[-1]["amount"] + 1}
        row["pair"] = {"amount": row["amount"], "note": ""}
        table = DeltaTable(open_store(tmp_path), "t", "history")
        with TableFiles(open_store(tmp_path), "0123", False, prefix=None) as files:
            files.add("t", pa.RecordBatch.from_pylist([row], JOINED))
        table.commit(Commit(table.version(), JOINED, CommitLsn(9), files.written))
        rows.append(row)


def test_another_program_commits_while_files_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, place = _joinable(tmp_path), str(tmp_path / "t")
    write = joining.joined

    def disturbed(*arguments: Any) -> Any:
        deltalake.DeltaTable(place).optimize.compact()
        return write(*arguments)

    monkeypatch.setattr(joining, "joined", disturbed)
    table = DeltaTable(open_store(tmp_path), "t", "history")
    join_files(table)
    table.fix_statistics()
    _expect_found(tmp_path, rows)
    assert not list((tmp_path / "t").glob("part-joined-*"))


def test_files_are_joined_although_the_answer_is_lost() -> None:
    with opened_bucket("joined") as bucket:
        store = open_store(bucket.uri % "lake")
        table = DeltaTable(store, "t", "history")
        for k in range(9):
            with TableFiles(store, "0123", False) as files:
                files.add("t", _batch(k, 1))
            table.commit(Commit(table.known, SCHEMA, CommitLsn(k + 1), files.written))
        bucket.lose_answers("_delta_log/")
        join_files(table)
        assert bucket.to_lose == 0
        version = DeltaTable(store, "t", "history").version()
        assert version is not None
        (file,) = version.files
        assert (file.rows, version.lsn) == (9, 9)
        (data,) = [name for name in store.names("t") if "part-joined-" in name]
        with pq.ParquetFile(open_file(str(store.at(data)))) as joined:
            assert joined.read()["_seq"].to_pylist() == [*range(9)]


def test_partitions_that_a_killed_commit_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files below directories of partitions get their names, and those that are replaced go."""
    store = open_store(tmp_path)
    values = ["..", "a/b", None]
    rows = pa.record_batch({"_seq": pa.array(range(3)), "text": pa.array(values)})

    def write(run: str) -> list[WrittenFile]:
        with TableFiles(store, run, True, partitioning={"t": Partitioning(("text",), True, False)}) as files:
            files.add("t", rows)
        return files.written

    append(ParquetTable(store, "t"), write("one"), 2, rows.schema, "append", ("text",))
    with monkeypatch.context() as patch:
        patch.setattr(store, "rename", _counted(store.rename, iter(range(9)), 1))
        with pytest.raises(_KilledError):
            append(ParquetTable(store, "t"), write("two"), 5, rows.schema, "overwrite", ("text",))
    table = ParquetTable(store, "t")
    assert (seq_of(table), table.known and table.known.partition_by) == (5, ("text",))
    found = {each.relative_to(tmp_path / "t") for each in tmp_path.rglob("*.parquet")}
    assert {str(each) for each in found} == names_of(table)
    assert {each.parts[0] for each in found} == {"text=..", "text=a%2Fb", "text=__HIVE_DEFAULT_PARTITION__"}
    assert all(each.name.startswith("part-two-") for each in found)


def test_renaming(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put("d/a", b"1")
    store.rename("d/a", "d/b")
    assert store.names("d") == ["d/b"]
    with pytest.raises(FileNotFoundError):
        store.rename("d/a", "d/c")


def _many(directory: Path, tables: int, batches: int, text: int) -> tuple[int, int]:
    """Writes rows of many tables in turns, in a process of its own. Returns (most open files, most memory in KiB)."""
    script = """
import os, re, sys
from pathlib import Path
import pyarrow as pa
from pgoutput_fast.tables.delta.table import DeltaTable
from pgoutput_fast.tables.files import TableFiles
from pgoutput_fast.storage.stores import open_store

place, tables, batches, text = sys.argv[1], *map(int, sys.argv[2:])
most, value = 0, os.urandom(text // 2).hex()
with TableFiles(open_store(place), "run", True) as files:
    for n in range(batches):
        for k in range(tables):
            files.add(f"t{k}", pa.record_batch({"_seq": [n] * 4, "text": [value] * 4}))
            most = max(most, len(os.listdir("/proc/self/fd"))) if k % 20 == 0 else most
assert sum(each.rows for each in files.written) == 4 * batches * tables
# Not what getrusage says: that begins with the memory of the process that forked this one.
print(most, re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""
    command = [sys.executable, "-c", script, str(directory), str(tables), str(batches), str(text)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        # A process may have few files open.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)),
    )
    assert done.returncode == 0, done.stderr
    opened, memory = map(int, done.stdout.split())
    return opened, memory


@pytest.mark.slow
@pytest.mark.unsanitized
def test_many_tables_have_few_open_files_and_little_memory(tmp_path: Path) -> None:
    opened, once = _many(tmp_path / "once", 120, 10, 20_000)
    assert opened < 150
    opened, often = _many(tmp_path / "often", 120, 40, 20_000)
    assert opened < 150
    assert often < once * 1.2 + 20_000


def test_a_run_that_has_ended_leaves_no_file(tmp_path: Path) -> None:
    """A task that is too late removes its file."""
    store = open_store(tmp_path)
    put_marker(store, "run")
    with TableFiles(store, "run", False, checked=True) as files:
        files.add("t", _batch(0, 10))
    assert store.names("t") == [f"t/{files.written[0].name}"]
    end_marker(store, "run")
    with (
        pytest.raises(RuntimeError, match=r"this run may not write to .* any more"),
        TableFiles(store, "run", False, checked=True) as late,
    ):
        late.add("t", _batch(0, 10))
    assert store.names("t") == [f"t/{files.written[0].name}"]
    assert left_runs(store) == ["run"]
    remove_marker(store, "run")
    assert left_runs(store) == []


def test_files_that_are_gone_before_their_commit(tmp_path: Path) -> None:
    """The table is as before, and can be written again."""
    store = open_store(tmp_path)
    append(ParquetTable(store, "t"), _write(store, "one", 0), 9, SCHEMA, "append")
    files = _write(store, "two", 10)
    store.remove(f"t/{files[0].name}")
    with pytest.raises(
        RuntimeError, match=r"something else removed .* before it was committed.*The table is as before"
    ):
        append(ParquetTable(store, "t"), files, 19, SCHEMA, "append")
    table = ParquetTable(store, "t")
    assert seq_of(table) == 9
    append(table, _write(store, "two", 10), 19, SCHEMA, "append")
    assert seq_of(ParquetTable(store, "t")) == 19


def test_an_error_of_the_store_says_what_to_do(tmp_path: Path) -> None:
    for number, message in (
        (errno.ENOSPC, rf"There is no space for files of tables in {tmp_path}.*Make space, and run it again"),
        (errno.EROFS, rf"This process may not write to {tmp_path}.*use another target"),
        (errno.EIO, r"cannot be written.*Check the disk"),
    ):
        with pytest.raises(OSError, match=os.strerror(number)) as caught, advised(open_store(tmp_path)):
            raise OSError(number, os.strerror(number))
        (note,) = caught.value.__notes__
        assert re.search(message, note)

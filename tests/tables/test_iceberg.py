"""Iceberg tables: what was added is read back by pyiceberg, once, whatever is repeated, and whatever the columns are."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import date
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
import requests
import sqlalchemy.exc
from pyarrow import fs
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ForbiddenError

from pgoutput_fast.demo.servers import Server
from pgoutput_fast.storage.stores import Store, open_store
from pgoutput_fast.tables.errors import CatalogAwayError, CatalogError
from pgoutput_fast.tables.files import TableFiles
from pgoutput_fast.tables.iceberg import catalog as catalog_module
from pgoutput_fast.tables.iceberg.catalog import CATALOG, open_catalog
from pgoutput_fast.tables.iceberg.table import IcebergTable, IcebergTarget
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.parquet import ParquetTable
from pgoutput_fast.tables.partitions import Partitioning
from pgoutput_fast.tables.table import OutcomeUnknownError
from support.appended import append, names_of, seq_of
from support.pg import Database

SCHEMA = pa.schema([("_seq", pa.int64()), ("n", pa.int32()), ("text", pa.string())])


def _table(place: Path, directory: str = "public.t") -> IcebergTable:
    return IcebergTarget(open_store(place), TableOptions()).table(directory, "changes")


def _add(
    place: Path, rows: pa.Table, mode: Any = "append", directory: str = "public.t", by: tuple[str, ...] = ()
) -> int:
    """Adds rows as tasks and driver do. Returns how many files there are."""
    table = _table(place, directory)
    target = rows.schema if mode == "overwrite" else table.fitted(rows.schema)
    partitioning = {directory: Partitioning(by, table.partition_directories, table.partition_columns_stored)}
    with TableFiles(open_store(place), "run", IcebergTarget.hidden, partitioning=partitioning) as files:
        for batch in rows.cast(target).to_batches():
            files.add(directory, batch)
    append(table, files.written, rows["_seq"][-1].as_py(), target, mode, by)
    assert {each.name for each in files.written} <= names_of(table)
    return len(names_of(table))


def _read(place: Path, identifier: tuple[str, str] = ("public", "t")) -> pa.Table:
    """What a user reads with the catalog alone."""
    with open_catalog(open_store(place), {}) as catalog:
        rows = catalog.load_table(identifier).scan().to_arrow()
    return rows.sort_by("_seq")


def _rows(first: int, count: int, **more: pa.Array) -> pa.Table:
    seqs = range(first, first + count)
    columns = {"_seq": pa.array(seqs), "n": pa.array(seqs, pa.int32()), "text": pa.array(map(str, seqs))}
    return pa.table({**columns, **more})


def test_rows_position_and_columns_that_come_later(tmp_path: Path) -> None:
    assert _table(tmp_path).known is None
    _add(tmp_path, _rows(0, 10))
    _add(tmp_path, _rows(10, 5, added=pa.array([[date(2024, 2, 29)]] * 5)))
    table = _table(tmp_path)
    assert (seq_of(table), len(names_of(table))) == (14, 2)
    rows = _read(tmp_path)
    assert rows["_seq"].to_pylist() == list(range(15))
    assert rows["added"].to_pylist() == [None] * 10 + [[date(2024, 2, 29)]] * 5


def test_dates_and_times_that_python_does_not_have(tmp_path: Path) -> None:
    days, moments = (
        pa.array([-735_000, 0, 4_000_000], pa.int32()),
        pa.array([-(1 << 60), 0, 1 << 60], pa.int64()),
    )
    rows = _rows(0, 3, day=days.cast(pa.date32()), at=moments.cast(pa.timestamp("us", "UTC")))
    _add(tmp_path, rows)
    _add(tmp_path, _rows(3, 1))
    found = _read(tmp_path).slice(0, 3)
    assert found["day"].cast(pa.int32()).combine_chunks() == days
    assert found["at"].cast(pa.int64()).combine_chunks() == moments


def test_a_commit_without_files_moves_the_position(tmp_path: Path) -> None:
    for position in (3, 7):
        append(_table(tmp_path), [], position, SCHEMA)
        assert seq_of(_table(tmp_path)) == position
    assert _read(tmp_path).num_rows == 0


def test_overwrite_replaces_rows_and_types(tmp_path: Path) -> None:
    _add(tmp_path, _rows(0, 10))
    new = (
        _rows(20, 4)
        .set_column(2, "text", pa.array([1.5, 2.5, None, 4.5]))
        .append_column("x", pa.array([True] * 4))
    )
    assert _add(tmp_path, new.drop_columns("n"), "overwrite") == 1
    rows = _read(tmp_path)
    assert rows.to_pylist() == new.drop_columns("n").to_pylist()
    with open_catalog(open_store(tmp_path), {}) as catalog:
        found = catalog.load_table(("public", "t"))
        first, _ = found.snapshots()  # one for each commit
        before = found.scan(snapshot_id=first.snapshot_id).to_arrow()
        assert before["_seq"].to_pylist() == list(range(10))
        assert before["text"].null_count == 10
    _add(tmp_path, _rows(30, 1).drop_columns("text"))
    assert _read(tmp_path)["n"].to_pylist() == [None] * 4 + [30]


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (pa.array([1, None], pa.int32()), pa.array([1 << 40, 2])),
        (pa.array([1, None], pa.int16()), pa.array([1 << 20, 2], pa.int32())),
        (pa.array([1.5, None], pa.float32()), pa.array([1e300, 2.0])),
        (pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)), pa.array([Decimal("12345678901.25")] * 2)),
        (pa.array([[1], None], pa.list_(pa.int32())), pa.array([[1 << 40, None], []])),
        (
            pa.array([{"x": 1}, None], pa.struct({"x": pa.int32()})),
            pa.array([{"x": 1 << 40}, {"x": None}], pa.struct({"x": pa.int64()})),
        ),
    ],
    ids=lambda each: re.sub(r"\W+", "_", str(each.type)),
)
def test_types_become_wider(tmp_path: Path, narrow: pa.Array, wide: pa.Array) -> None:
    """And narrow rows that come later become wide."""
    for first, values in enumerate((narrow, wide, narrow)):
        _add(tmp_path, pa.table({"_seq": [first * 2, first * 2 + 1], "v": values}))
    assert _read(tmp_path)["v"].to_pylist() == [*narrow.to_pylist(), *wide.to_pylist(), *narrow.to_pylist()]


def test_types_that_iceberg_cannot_widen(tmp_path: Path) -> None:
    _add(tmp_path, pa.table({"_seq": [0], "v": pa.array([Decimal("1.5")], pa.decimal128(5, 1))}))
    for kind in (pa.decimal128(6, 2), pa.string()):
        with pytest.raises(
            ValueError, match=r"public\.t has another schema: its column 'v' .* mode='overwrite'"
        ):
            _table(tmp_path).fitted(pa.schema([("v", kind)]))


def test_partitions(tmp_path: Path) -> None:
    texts = ["a", "é/..", None, "", "é" * 500] * 4
    rows = _rows(0, 20).set_column(2, "text", pa.array(texts))
    assert _add(tmp_path, rows, by=("text", "n")) == 20
    assert _add(tmp_path, rows.slice(0, 1), by=("text", "n")) == 21
    known = _table(tmp_path).known
    assert known is not None
    assert known.partition_by == ("text", "n")
    with open_catalog(open_store(tmp_path), {}) as catalog:
        found = catalog.load_table(("public", "t"))
        for row_filter, count in (
            ("text = 'a' and n = 5", 1),
            (f"text = '{texts[4]}'", 4),
            ("text is null", 4),
        ):
            assert len(list(found.scan(row_filter=row_filter).plan_files())) == count
    assert _read(tmp_path).slice(1)["text"].to_pylist() == texts


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("rows", [_rows(5, 5), None], ids=["files", "no files"])
def test_one_of_two_commits_at_a_time(tmp_path: Path, mode: Any, rows: pa.Table | None) -> None:
    """pyiceberg tries commits again by itself. Then two runs would add the same rows."""
    store = open_store(tmp_path)
    added = []
    for run in ("one", "two"):
        with TableFiles(store, run, False) as files:
            for batch in [] if rows is None else rows.to_batches():
                files.add("public.t", batch)
        added.append(files.written)
    _add(tmp_path, _rows(0, 5))
    one, two = _table(tmp_path), _table(tmp_path)
    assert seq_of(one) == seq_of(two) == 4
    append(one, added[0], 12, SCHEMA, mode)
    with pytest.raises(
        RuntimeError,
        match=r"something else changed .* public\.t in .* during the commit, which did nothing: run it again",
    ):
        append(two, added[1], 11, SCHEMA, mode)
    assert seq_of(_table(tmp_path)) == 12
    with open_catalog(open_store(tmp_path), {}) as catalog:
        assert catalog.load_table(("public", "t")).properties.get("commit.retry.num-retries") is None
    wanted = [*(range(5) if mode == "append" else ()), *(range(5, 10) if rows else ())]
    assert _read(tmp_path)["_seq"].to_pylist() == wanted


def test_one_of_two_makes_the_table(tmp_path: Path) -> None:
    one, two = _table(tmp_path), _table(tmp_path)
    assert one.known is two.known is None
    append(one, [], 5, SCHEMA)
    with pytest.raises(RuntimeError, match=r"something else changed .* public\.t"):
        append(two, [], 3, SCHEMA)
    assert seq_of(_table(tmp_path)) == 5


def test_another_thread_makes_the_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or another program: the catalog looks for it, and then inserts it."""
    exists, looks = SqlCatalog.namespace_exists, iter([True])

    def looked(catalog: SqlCatalog, name: Any) -> bool:
        found = exists(catalog, name)
        if next(looks, False):
            catalog.create_namespace(name)
        return found

    monkeypatch.setattr(SqlCatalog, "namespace_exists", looked)
    _add(tmp_path, _rows(0, 10))
    assert _read(tmp_path).num_rows == 10


def test_first_tables_in_several_threads(tmp_path: Path) -> None:
    _table(tmp_path)  # makes the catalog
    names = [f"s{k % 2}.t{k}" for k in range(12)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda name: _add(tmp_path, _rows(0, 10), directory=name), names))
    for name in names:
        assert seq_of(_table(tmp_path, name)) == 9


@pytest.mark.slow
def test_a_catalog_that_another_program_locks(tmp_path: Path) -> None:
    """SQLite would wait for 5 seconds."""
    append(_table(tmp_path), [], 3, SCHEMA)
    table = _table(tmp_path)
    with (
        ThreadPoolExecutor(1) as pool,
        closing(sqlite3.connect(tmp_path / CATALOG, isolation_level=None)) as other,
    ):
        other.execute("BEGIN EXCLUSIVE")
        appended = pool.submit(append, table, [], 7, SCHEMA)
        time.sleep(6.5)
        other.execute("ROLLBACK")
        appended.result()
    assert seq_of(_table(tmp_path)) == 7


@pytest.mark.parametrize(
    "problem",
    [
        CommitStateUnknownException("gateway timeout"),
        requests.exceptions.ConnectionError("gateway timeout"),
        sqlalchemy.exc.OperationalError(
            "UPDATE", {"secret": 1}, psycopg2.OperationalError("gateway timeout")
        ),
    ],
    ids=lambda problem: type(problem).__name__,
)
def test_a_commit_whose_outcome_is_unknown(
    problem: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog has executed it, and its answer was lost."""
    commit = SqlCatalog.commit_table

    def lost(*arguments: Any) -> Any:
        commit(*arguments)
        raise problem

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", lost)
        with pytest.raises(
            OutcomeUnknownError,
            match=r"public\.t .* is unknown: the Iceberg catalog failed: gateway timeout\. Run it again",
        ):
            append(_table(tmp_path), [], 5, SCHEMA)
    assert seq_of(_table(tmp_path)) == 5


def test_a_commit_that_is_refused_after_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer was lost, and a transport asked again."""
    table, commit = _table(tmp_path), SqlCatalog.commit_table
    append(table, [], 4, SCHEMA)

    def refused(*arguments: Any) -> Any:
        commit(*arguments)
        raise CommitFailedException("it has another version")

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", refused)
        _add(tmp_path, _rows(5, 1))
    assert _read(tmp_path)["_seq"].to_pylist() == [5]


NAMES = ["a.b", "Größe", "a b", "1x", "x/y", "q'\"", "select", "%41", "+"]


def test_names_that_need_quotes(tmp_path: Path) -> None:
    columns = {name: pa.array([k, None]) for k, name in enumerate(NAMES)}
    nested = pa.array([{"p q": 1, "é": [2]}, None])
    rows = pa.table({"_seq": [0, 1], **columns, "s": nested})
    _add(tmp_path / "a b%41é", rows, directory="a+2Eb.o+22dd+20+C3+A9")
    found = _read(tmp_path / "a b%41é", ("a.b", 'o"dd é'))
    assert found.to_pylist() == rows.to_pylist()


def test_a_catalog_is_of_one_target(tmp_path: Path) -> None:
    _add(tmp_path / "one", _rows(0, 1))
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/one/_catalog.db"}
    other = IcebergTarget(open_store(tmp_path / "two"), TableOptions(iceberg_catalog=properties))
    with pytest.raises(ValueError, match=r"use another catalog \(or warehouse\) for each target"):
        other.table("public.t", "changes").version()
    remote = open_store("s3://key:secret@bucket/lake?region=eu-central-1")
    with pytest.raises(ValueError, match=r"need a catalog: pass iceberg_catalog="):
        IcebergTarget.check(remote, TableOptions(), "iceberg")


def test_in_an_object_store(tmp_path: Path) -> None:
    """Files go through pyarrow, metadata through pyiceberg: both must mean the same place."""
    if os.environ.get("CI") != "true":
        pytest.importorskip("moto")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        query = f"scheme=http&endpoint_override={host}:{port}&region=us-east-1"
        s3, _ = fs.FileSystem.from_uri(f"s3://key:secret@lake?{query}&allow_bucket_creation=true")
        s3.create_dir("lake")
        store = open_store(f"s3://key:secret@lake/a%20b/c?{query}")
        properties = {
            "type": "sql",
            "uri": f"sqlite:///{tmp_path}/catalog.db",
            "s3.endpoint": f"http://{host}:{port}",
            "s3.access-key-id": "key",
            "s3.secret-access-key": "secret",
            "s3.region": "us-east-1",
        }
        for first in (0, 10):
            target = IcebergTarget(store, TableOptions(iceberg_catalog=properties))
            table = target.table("public.o+C3+A9", "changes")
            with TableFiles(store, f"run{first}", target.hidden) as files:
                files.add("public.o+C3+A9", _rows(first, 5).to_batches()[0])
            append(table, files.written, first, SCHEMA)
        with load_catalog("pgoutput_fast", **properties) as catalog:
            found = catalog.load_table(("public", "oé"))
            assert found.location() == "s3://lake/a b/c/public.o+C3+A9"
            assert found.scan().to_arrow().sort_by("_seq")["_seq"].to_pylist() == [*range(5), *range(10, 15)]
        _check_directories_of_partitions(store, s3)
    finally:
        server.stop()


def _check_directories_of_partitions(store: Store, s3: fs.FileSystem) -> None:
    """The names of Parquet's partitions are the same for a store and for its readers."""
    texts = ["a b", "é/..", "%41+", None, "x=y?"]
    rows = _rows(0, 5).set_column(2, "text", pa.array(texts))
    with TableFiles(store, "run", True, partitioning={"p": Partitioning(("text",), True, False)}) as files:
        files.add("p", rows.to_batches()[0])
    append(ParquetTable(store, "p"), files.written, 4, rows.schema, partition_by=("text",))
    hive = ds.partitioning(pa.schema([("text", pa.string())]), flavor="hive")
    found = ds.dataset("lake/a b/c/p", filesystem=s3, partitioning=hive).to_table().sort_by("_seq")
    assert found.select(rows.schema.names).to_pylist() == rows.to_pylist()
    table = ParquetTable(store, "p")
    assert {entry.name.removeprefix("p/") for entry in store.entries("p", recursive=True)} == {
        "_manifest.json",
        *names_of(table),
    }


def _manifests(place: Path) -> set[str]:
    """The manifests and lists of manifests that the snapshots of a table name."""
    with open_catalog(open_store(place), {}) as catalog:
        table = catalog.load_table(("public", "t"))
        found = {each.manifest_list for each in table.snapshots()}
        found |= {m.manifest_path for each in table.snapshots() for m in each.manifests(table.io)}
    return {Path(each).name for each in found}


def _set(place: Path, **properties: str) -> None:
    with (
        open_catalog(open_store(place), {}) as catalog,
        catalog.load_table(("public", "t")).transaction() as transaction,
    ):
        transaction.set_properties(properties)


def test_old_snapshots_expire(tmp_path: Path) -> None:
    """Neither the rows nor what is kept depends on them, and their files are removed."""
    few = {"history.expire.min-snapshots-to-keep": "3", "commit.manifest.min-count-to-merge": "4"}
    _add(tmp_path, _rows(0, 1))
    _set(tmp_path, **few)
    most = 0
    for k in range(1, 20):
        _add(tmp_path, _rows(k, 1))
        with open_catalog(open_store(tmp_path), {}) as catalog:
            table = catalog.load_table(("public", "t"))
        most = max(most, len(table.snapshots()))
        assert len(table.snapshots()) >= min(k, 3)
        for each in table.snapshots():
            rows = table.scan(snapshot_id=each.snapshot_id).to_arrow()
            assert sorted(rows["_seq"].to_pylist()) == list(range(each.sequence_number))
    assert most == 5
    left = {each.name for each in (tmp_path / "public.t/metadata").glob("*.avro")}
    assert _manifests(tmp_path) <= left
    # When pyiceberg merges manifests, it leaves the one of the new file, which no snapshot names.
    assert len(left - _manifests(tmp_path)) <= 20 // 3
    assert seq_of(_table(tmp_path)) == 19


@pytest.mark.parametrize("what", ["overwritten", "without a summary", "tagged", "rolled back"])
def test_snapshots_that_stay(tmp_path: Path, what: str) -> None:
    """Those before rows were replaced, whose files no later one has, and all of a table that others arrange."""
    _add(tmp_path, _rows(0, 1))
    _set(tmp_path, **{"history.expire.min-snapshots-to-keep": "3"})
    _add(tmp_path, _rows(1, 1), "overwrite" if what == "overwritten" else "append")
    with open_catalog(open_store(tmp_path), {}) as catalog:
        table = catalog.load_table(("public", "t"))
        first, second = table.snapshots()
        if what == "tagged":
            table.manage_snapshots().create_tag(second.snapshot_id, "mine").commit()
        if what == "rolled back":
            table.manage_snapshots().set_current_snapshot(first.snapshot_id).commit()
        if what == "without a summary":  # which some programs leave out
            place = Path(table.metadata_location.removeprefix("file://"))
            metadata = json.loads(place.read_text())
            del metadata["snapshots"][1]["summary"]
            place.write_text(json.dumps(metadata))
    for k in range(2, 9):
        _add(tmp_path, _rows(k, 1))
    with open_catalog(open_store(tmp_path), {}) as catalog:
        table = catalog.load_table(("public", "t"))
        assert {first.snapshot_id, second.snapshot_id} <= {each.snapshot_id for each in table.snapshots()}
        assert (len(table.snapshots()) < 9) == (what in ("overwritten", "without a summary"))
        for each in table.snapshots():
            table.scan(snapshot_id=each.snapshot_id).to_arrow()
    expected = {"overwritten": [1], "rolled back": [0]}.get(what, [0, 1])
    assert _read(tmp_path)["_seq"].to_pylist() == [*expected, *range(2, 9)]


class _Answers(BaseHTTPRequestHandler):
    """A catalog that fails: it answers with a status, or not at all, to the requests that it does not know."""

    status = 0
    known: tuple[str, ...] = ()
    ended = threading.Event()

    def do_GET(self) -> None:
        if self.path.startswith(self.known):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"defaults": {}, "overrides": {}}')
        elif self.status:
            self.send_error(self.status)
        else:
            self.ended.wait(240)

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


@contextmanager
def _failing(status: int, *known: str) -> Iterator[dict[str, str]]:
    """Yields the properties of a catalog."""
    ended = threading.Event()
    answers = type("Answers", (_Answers,), {"status": status, "known": known, "ended": ended})
    with ThreadingHTTPServer(("127.0.0.1", 0), answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield {"type": "rest", "uri": f"http://127.0.0.1:{server.server_port}"}
        finally:
            ended.set()
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (403, ForbiddenError, "403"),
        *((status, CatalogAwayError, "the Iceberg catalog failed: .*") for status in (408, 429, 500, 503)),
    ],
)
def test_a_rest_catalog_that_fails(status: int, error: type[Exception], message: str, tmp_path: Path) -> None:
    with _failing(status) as properties, pytest.raises(error, match=message):
        open_catalog(open_store(tmp_path), properties)


def test_a_rest_catalog_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _failing(0, "/v1/config") as properties:
        options = TableOptions(iceberg_catalog=properties)
        table = IcebergTarget(open_store(tmp_path), options).table("public.t", "current")
        # Not before: what is answered may take longer on a slow machine.
        monkeypatch.setattr(catalog_module, "_ANSWER_SECONDS", 0.5)
        with pytest.raises(CatalogAwayError, match=r"the Iceberg catalog failed: .*[Rr]ead timed out"):
            table.version()
    with _failing(0) as properties, pytest.raises(CatalogAwayError, match=r"failed: .*[Rr]ead timed out"):
        open_catalog(open_store(tmp_path), properties)
    with pytest.raises(CatalogAwayError, match=r"the Iceberg catalog failed: .* refused"):
        table.version()


def test_errors_about_properties_have_no_password(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Could not infer the catalog type") as caught:
        open_catalog(open_store(tmp_path), {"uri": "mysql+pymysql://me:secret@db/c"})
    assert "secret" not in str(caught.value)


def test_a_catalog_in_a_server(
    servers: Mapping[int, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections have limits, and a lock that stays is noticed. Errors do not show statements."""
    database = Database(servers[max(servers)])
    try:
        # The password is not needed here.
        uri = f"postgresql+psycopg2://postgres:a?b%40@127.0.0.1:{database.server.port}/{database.name}"
        options = TableOptions(iceberg_catalog={"type": "sql", "uri": f"{uri}?connect_timeout=7"})
        target = IcebergTarget(open_store(tmp_path), options)
        table = target.table("public.t", "current")
        with closing(target._catalog.engine.raw_connection()) as connection:
            found = connection.get_dsn_parameters()
        assert (found["connect_timeout"], found["tcp_user_timeout"]) == ("7", "30000")
        with target._catalog.engine.begin() as connection:
            idle = connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar()
        assert idle == "1min"
        assert table.version() is None
        with database.session() as other, other.cursor() as cursor:
            cursor.execute("BEGIN; LOCK iceberg_tables")
            with monkeypatch.context() as patch:
                # If this process or the server were stopped for so long, another limit would end the session.
                patch.setattr(catalog_module, "_ANSWER_SECONDS", 10)
                with pytest.raises(CatalogAwayError, match="failed: canceling statement due to"):
                    table.version()
                # pyiceberg takes the timeout for tables that are missing, and finds them.
                open_catalog(open_store(tmp_path), options.iceberg_catalog or {}).close()
            cursor.execute("DROP TABLE iceberg_tables; COMMIT")
        with pytest.raises(
            CatalogError, match=r'^the Iceberg catalog failed: relation "iceberg_tables" does not'
        ):
            table.version()
        database.execute(f"ALTER DATABASE {database.name} SET default_transaction_read_only = on")
        with pytest.raises(CatalogAwayError, match="in a read-only transaction"):
            open_catalog(open_store(tmp_path), options.iceberg_catalog or {})
    finally:
        database.drop()

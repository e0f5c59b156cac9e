"""Tables written by the executors: the same rows as one process decodes, once, whatever is killed and repeated."""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.errors import StreamingQueryException

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.catalog.user_types import UserType, UserTypes
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, write_segment
from pgoutput_fast.spark.tables import run as runs
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.storage.table_directories import table_directory
from pgoutput_fast.tables import parquet
from pgoutput_fast.tables.files import TableFiles
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.partitions import Partitioning
from pgoutput_fast.tables.table import OutcomeUnknownError
from support.forms import and_exhaustive, and_slow
from support.lakes import running, settled

FORMATS = ["parquet", "delta", "iceberg"]
SOURCE = Source("7300000000000000001", "shop", "slot", ("all",), {"proto_version": "4"})
COLUMNS = (
    ColumnSpec("id", 23, key=True),
    ColumnSpec("note", 25),
    ColumnSpec("at", 1114),
    ColumnSpec("day", 1082),
)
TABLES = [RelationSpec(20000 + k, "public", f"t{k}", COLUMNS) for k in range(3)]
ODD = RelationSpec(
    20009,
    "a.b",
    'o"dd é',
    (
        ColumnSpec("id", 20, key=True),
        ColumnSpec("marks", 1007),
        ColumnSpec("for", 1186),
        ColumnSpec("price", 1700),
    ),
)
ALTERED = RelationSpec(20000, "public", "t0", (ColumnSpec("id", 23, key=True), ColumnSpec("added", 16)))


def _stream() -> list[bytes]:
    """Four tables, one of them altered, streams that are open over many messages, savepoints, an open end."""
    writer, noise = Writer(4, streaming="on"), random.Random(11)
    wal: list[bytes] = []
    for n in range(60):
        xid = 100 + n
        wal += writer.begin(xid, 1000 * n + 1000, n)
        for spec in TABLES:
            for k in range(5):
                if spec is TABLES[0] and n >= 50:
                    wal += writer.change(ALTERED, "insert", new=[str(k), "t"])
                else:
                    wal += writer.change(
                        spec,
                        "insert",
                        new=[str(n * 5 + k), noise.randbytes(20).hex(), "2024-02-29 12:00:00", None],
                    )
        wal += writer.change(ODD, "insert", new=[str(n), "{1,2,NULL}", "1 day 02:00:00", "1.50"])
        wal += writer.commit(1000 * n + 1000, 1000 * n + 1008, n)
        if n % 10 == 3:  # one that ends ten transactions later
            wal += writer.stream_start(900 + n)
            wal += writer.change(
                TABLES[1], "insert", new=[str(-n), "streamed", "infinity", "2024-01-01"], xid=900 + n
            )
            wal += writer.change(TABLES[1], "insert", new=[str(-n), "rolled back", None, None], xid=2000 + n)
            wal += writer.stream_stop() + writer.stream_abort(900 + n, 2000 + n)
        if n % 10 == 3 and n > 10:
            wal += writer.stream_commit(890 + n, 1000 * n + 1500, 1000 * n + 1508, n)
    return wal


PAYLOADS = _stream()
NAMES = ["public.t0", "public.t1", "public.t2", '"a.b"."o""dd é"']
DIRECTORIES = [*(table_directory("public", f"t{k}") for k in range(3)), table_directory("a.b", 'o"dd é')]


def _cuts(seed: int, pieces: int) -> list[int]:
    return [0, *sorted(random.Random(seed).sample(range(1, len(PAYLOADS)), pieces - 1)), len(PAYLOADS)]


def _write_segments(directory: Path, cuts: list[int]) -> Iterator[int]:
    """Writes a segment per piece. Yields how many payloads are written."""
    directory.mkdir(exist_ok=True)
    state = None
    for begin, end in itertools.pairwise(cuts):
        tagged, state = pgo.tag(PAYLOADS[begin:end], state)
        write_segment(directory, tagged, state, source=SOURCE, relation_bytes=2_000)
        yield end


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("segments")
    list(_write_segments(directory, _cuts(1, 5)))
    return directory


def place_of(format: str, directory: str) -> str:
    return directory if format == "parquet" else directory.replace("%", "+")


def read(format: str, target: Path, directory: str) -> pa.Table:
    """The table's rows, in the order of the stream."""
    place = target / place_of(format, directory)
    if format == "iceberg":
        names = tuple(unquote(each) for each in directory.split("."))
        with load_catalog("pgoutput_fast", type="sql", uri=f"sqlite:///{target}/_catalog.db") as catalog:
            table = catalog.load_table(names)
            assert table.location() == f"file://{place}"
            rows = table.scan().to_arrow()
    elif format == "delta":
        rows = pa.table(deltalake.DeltaTable(str(place)).to_pyarrow_table())
    else:
        manifest = json.loads((place / "_manifest.json").read_text())
        names = [each["name"] for each in manifest["files"]]
        # A reader that lists the directory sees the same.
        assert sorted(names) == sorted(
            each.name for each in place.glob("*.parquet") if each.name[0] not in "._"
        )
        rows = pa.concat_tables([pq.read_table(place / name) for name in names], promote_options="default")
        assert rows.num_rows == sum(each["rows"] for each in manifest["files"])
    return rows.sort_by([("_seq", "ascending"), ("_change_type", "ascending")])


def expected(wal: Any, name: str, transactions: Any) -> pa.Table:
    rows = pgspark.changes(wal, name, transactions=transactions).toArrow()
    return rows.sort_by([("_seq", "ascending"), ("_change_type", "ascending")])


@pytest.fixture(scope="module")
def wanted_of(spark: Any, stored: Path) -> Callable[..., pa.Table]:
    """Gives what a table of the stored segments must have: (name, transactions) -> rows."""
    wal = spark.read.parquet(str(stored))
    return functools.cache(lambda name, transactions="committed": expected(wal, name, transactions))


def assert_same(got: pa.Table, wanted: pa.Table) -> None:
    assert set(got.schema.names) == set(wanted.schema.names)
    assert got.select(wanted.schema.names).to_pylist() == wanted.to_pylist()


@pytest.mark.parametrize(
    ("format", "transactions", "tagged"),
    and_slow(
        [("parquet", "as_sent", True), ("delta", "committed", True), ("iceberg", "committed", False)],
        [("parquet", "committed", False), ("delta", "as_sent", False)],
    ),
)
def test_all_tables_equal_their_changes(
    spark: Any,
    stored: Path,
    wanted_of: Callable[..., pa.Table],
    tmp_path: Path,
    format: str,
    transactions: Any,
    tagged: bool,
) -> None:
    wal = spark.read.parquet(str(stored))
    written = pgspark.write_tables(
        wal if tagged else stored, tmp_path, format=format, transactions=transactions
    )
    directories = [place_of(format, each) for each in DIRECTORIES]
    assert [row.table for row in written] == sorted(
        directories, key=lambda each: NAMES[directories.index(each)]
    )
    for name, directory in zip(NAMES, DIRECTORIES, strict=True):
        wanted = wanted_of(name, transactions)
        got = read(format, tmp_path, directory)
        assert_same(got, wanted)
        (row,) = (each for each in written if each.table == place_of(format, directory))
        seqs = wanted.column("_seq").to_pylist()
        assert (row.rows, row.first, row.last) == (wanted.num_rows, min(seqs), max(seqs))
        assert row.files == len(list((tmp_path / place_of(format, directory)).glob("*.parquet")))
    left = {each.name for each in tmp_path.iterdir() if each.name not in directories}
    assert left - {"_catalog.db"} == {"_lock", "_runs", "_rejects"}  # infinity has no Arrow form
    assert not list((tmp_path / "_runs").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "transactions"),
    and_exhaustive([("parquet", "committed")], [("delta", "as_sent"), ("iceberg", "committed")]),
)
def test_a_source_that_grows_adds_what_is_new(
    spark: Any, tmp_path: Path, format: str, transactions: Any
) -> None:
    segments, target = tmp_path / "segments", tmp_path / "lake"
    for _ in _write_segments(segments, _cuts(5, 4)):
        late = target / DIRECTORIES[1] / ".part-00-00-00001.parquet"  # of a speculative task that ended late
        if format == "parquet" and target.exists():
            late.write_bytes(b"")
        before: set[str] = set()
        for _again in range(2):
            written = pgspark.write_tables(segments, target, format=format, transactions=transactions)
            files = {str(each) for each in target.rglob("*.parquet")}
            assert not _again or (files == before and all(row.rows == 0 for row in written))
            before = files
    assert not late.exists()
    wal = spark.read.parquet(str(segments))
    for name, directory in zip(NAMES, DIRECTORIES, strict=True):
        assert_same(read(format, target, directory), expected(wal, name, transactions))


class _KilledError(BaseException):
    """Stands for a process that ends at once: no handler of errors runs."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "format",
    ["delta", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("parquet", "iceberg"))],
)
def test_a_killed_driver_loses_and_repeats_nothing(
    spark: Any,
    stored: Path,
    wanted_of: Callable[..., pa.Table],
    tmp_path: Path,
    format: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed before and after each step of each commit: the next run ends with the right tables and no other file."""
    wanted = {directory: wanted_of(name) for name, directory in zip(NAMES[:2], DIRECTORIES[:2], strict=True)}
    for at in range(40):
        target = tmp_path / str(at)
        steps = iter(range(1000))

        def step(function: Any) -> Any:
            def counted(*args: Any, **keywords: Any) -> Any:
                if next(steps) == at:  # noqa: B023
                    raise _KilledError
                return function(*args, **keywords)

            return counted

        with monkeypatch.context() as patch:
            patch.setattr(runs.Run, "commit", step(runs.Run.commit))
            patch.setattr(runs, "_remove_orphans", step(runs._remove_orphans))
            patch.setattr(parquet.ParquetTable, "_write", step(parquet.ParquetTable._write))
            patch.setattr(SqlCatalog, "commit_table", step(SqlCatalog.commit_table))
            store = type(open_store(target))
            patch.setattr(store, "rename", step(store.rename))
            patch.setattr(runs, "_clean_up", lambda *_: None)
            try:
                pgspark.write_tables(stored, target, NAMES[:2], format=format)
                break
            except _KilledError:
                pass
        pgspark.write_tables(stored, target, NAMES[:2], format=format)
        for directory, rows in wanted.items():
            assert_same(read(format, target, directory), rows)
            with runs.begin_run(str(target), format, TableOptions()) as run:
                known = run.table(place_of(format, directory)).known
                assert known is not None
            assert known.names == {
                each.name
                for each in (target / place_of(format, directory)).iterdir()
                if each.suffix == ".parquet"
            }
        assert not list((target / "_runs").iterdir())
    assert at >= (15 if format == "parquet" else 4)


@pytest.mark.slow
@pytest.mark.classic("the process shares the JVM of the session")
@pytest.mark.parametrize(
    "call", [pytest.param(2, marks=pytest.mark.exhaustive, id="before"), pytest.param(-1, id="after")]
)
def test_a_process_killed_at_a_commit_of_iceberg(
    spark: Any, stored: Path, wanted_of: Callable[..., pa.Table], tmp_path: Path, call: int
) -> None:
    """Another process, ended by SIGKILL: the files are there, and the catalog has them, or has not."""
    job = {
        "source": str(stored),
        "target": str(tmp_path / "lake"),
        "arguments": {"format": "iceberg"},
        "kill": ("pyiceberg.catalog.sql", "SqlCatalog.commit_table", call),
    }
    with running(job, spark) as driver:
        assert driver.ended() == -9, driver.errors()
    settled(spark)
    assert list((tmp_path / "lake" / "_runs").iterdir())
    pgspark.write_tables(stored, tmp_path / "lake", format="iceberg")
    for name, directory in zip(NAMES, DIRECTORIES, strict=True):
        assert_same(read("iceberg", tmp_path / "lake", directory), wanted_of(name))
    with runs.begin_run(str(tmp_path / "lake"), "iceberg", TableOptions()) as run:
        for directory in (place_of("iceberg", each) for each in DIRECTORIES):
            files = {each.name for each in (tmp_path / "lake" / directory).glob("*.parquet")}
            known = run.table(directory).known
            assert known is not None
            assert files == known.names


def test_an_error_leaves_the_target_as_it_was(spark: Any, tmp_path: Path) -> None:
    segments, target = tmp_path / "segments", tmp_path / "lake"
    cuts = _write_segments(segments, _cuts(3, 3))
    next(cuts)
    pgspark.write_tables(segments, target)
    before = {str(each): each.read_bytes() for each in target.rglob("*") if each.is_file()}
    next(cuts)
    newest = max(segments.glob("*.parquet"))
    content = bytearray(newest.read_bytes())
    content[4:4000] = b"\0" * 3996
    newest.write_bytes(content)
    with pytest.raises(Exception, match=r"."):
        pgspark.write_tables(segments, target)
    assert {str(each): each.read_bytes() for each in target.rglob("*") if each.is_file()} == before


@pytest.mark.parametrize("format", FORMATS)
def test_modes(spark: Any, stored: Path, tmp_path: Path, format: str) -> None:
    pgspark.write_tables(stored, tmp_path, ["public.t2"], format=format, mode="error")
    first = read(format, tmp_path, DIRECTORIES[2])
    with pytest.raises(ValueError, match=r"public\.t2 exists: use mode='append' or mode='overwrite'"):
        pgspark.write_tables(stored, tmp_path, ["public.t2"], format=format, mode="error")
    (row,) = pgspark.write_tables(
        stored, tmp_path, ["public.t2"], format=format, mode="overwrite", transactions="as_sent"
    )
    assert row.rows == first.num_rows
    assert_same(read(format, tmp_path, DIRECTORIES[2]), first)
    assert not (tmp_path / DIRECTORIES[0]).exists()


def test_a_table_of_another_stream_or_schema_is_refused(spark: Any, stored: Path, tmp_path: Path) -> None:
    longer = tmp_path / "longer"
    list(_write_segments(longer, [0, len(PAYLOADS)]))
    shorter = tmp_path / "shorter"
    next(_write_segments(shorter, [0, 300, len(PAYLOADS)]))
    pgspark.write_tables(longer, tmp_path / "lake")
    with pytest.raises(ValueError, match=r"it is not the stream that the table was written from"):
        pgspark.write_tables(shorter, tmp_path / "lake")
    late = tmp_path / "late"
    pgspark.write_tables(shorter, tmp_path / "gap")
    list(_write_segments(late, [0, 300, 400, len(PAYLOADS)]))
    for each in sorted(late.glob("*.parquet"))[:2]:
        each.unlink()
    with pytest.raises(ValueError, match=r"what comes in between is gone"):
        pgspark.write_tables(late, tmp_path / "gap")
    pgspark.write_tables(shorter, tmp_path / "types")
    before = {str(each): each.read_bytes() for each in (tmp_path / "types").rglob("*") if each.is_file()}
    with pytest.raises(
        ValueError, match=r"has another schema: its column 'price' is string, and the rows have double"
    ):
        pgspark.write_tables(longer, tmp_path / "types", options=pgo.Options(numeric="float64"))
    assert {
        str(each): each.read_bytes() for each in (tmp_path / "types").rglob("*") if each.is_file()
    } == before


def test_what_was_rejected_is_written_beside(spark: Any, tmp_path: Path) -> None:
    writer = Writer()
    wal = writer.begin(1, 100, 0)
    wal += writer.change(TABLES[0], "insert", new=["1", "good", None, None])
    wal += writer.change(TABLES[0], "insert", new=["x", "bad", None, None])
    wal += writer.commit(100, 108, 0)
    tagged, state = pgo.tag(wal)
    (tmp_path / "segments").mkdir()
    write_segment(tmp_path / "segments", tagged, state, source=SOURCE)
    with pytest.raises(Exception, match=r"public\.t0"):
        pgspark.write_tables(tmp_path / "segments", tmp_path / "lake")
    (row,) = pgspark.write_tables(
        tmp_path / "segments", tmp_path / "lake", options=pgo.Options(on_error="quarantine")
    )
    assert row.rows == 1
    rejects = pq.read_table(next((tmp_path / "lake" / "_rejects" / "public.t0").glob("part-*.parquet")))
    assert [each["relation"] for each in rejects.to_pylist()] == ["public.t0"]


def test_wrong_arguments(spark: Any, stored: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"tables must be a list of names"):
        pgspark.write_tables(stored, tmp_path, "public.t0")
    with pytest.raises(ValueError, match=r"format must be one of 'parquet', 'delta', 'iceberg', not 'orc'"):
        pgspark.write_tables(stored, tmp_path, format="orc")
    with pytest.raises(ValueError, match=r"mode must be one of"):
        pgspark.write_tables(stored, tmp_path, mode="ignore")  # type: ignore[arg-type]
    with pytest.raises(KeyError, match=r"public\.t0"):
        pgspark.write_tables(stored, tmp_path / "new", ["public.missing"])
    assert not (tmp_path / "new").exists()
    (tmp_path / "public.t1").mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "public.t1" / "mine.parquet")
    pgspark.write_tables(stored, tmp_path / "delta", format="delta")
    with pytest.raises(ValueError, match=r"is a table of another format: use format='delta'"):
        pgspark.write_tables(stored, tmp_path / "delta")
    with pytest.raises(ValueError, match=r"public\.t1 has no position: something else wrote it"):
        pgspark.write_tables(stored, tmp_path, ["public.t1"])
    with (
        runs.begin_run(str(tmp_path), "parquet", TableOptions()),
        pytest.raises(RuntimeError, match=r"another process writes tables"),
    ):
        pgspark.write_tables(stored, tmp_path, ["public.t0"])


def test_files_stay_near_their_size(spark: Any, stored: Path, tmp_path: Path) -> None:
    (row,) = pgspark.write_tables(stored, tmp_path, ["public.t1"], file_bytes=1)
    assert row.files >= 1
    assert read("parquet", tmp_path, DIRECTORIES[1]).num_rows == row.rows


def _finishes(spark: Any, place: Path, sink: Any) -> bool:
    """Writes what is there. Returns whether no batch failed."""
    query = (
        spark.readStream.format("pgoutput")
        .option("emit", "files")
        .option("max_segments", "1")
        .load(str(place / "segments"))
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except StreamingQueryException as problem:
        if "killed after the commit" not in str(problem):
            raise
        return False
    finally:
        query.stop()
    return True


@pytest.mark.slow
@pytest.mark.parametrize("format", and_exhaustive(["delta"], ["parquet", "iceberg"]))
def test_a_stream_writes_each_batch_once(spark: Any, tmp_path: Path, format: str) -> None:
    """Some batches fail between their commit and the checkpoint, and come again."""
    target = tmp_path / "lake"
    by = {} if format == "parquet" else {"public.t1": ["day"]}
    sink = pgspark.table_sink(target, format=format, partition_by={**by, "public.comes_later": ["x"]})
    pgspark.register(spark)
    notes = tmp_path / "notes"

    def failing(batch: Any, batch_id: int) -> None:
        sink(batch, batch_id)
        # On Spark Connect this runs in another process.
        with open(notes, "a") as file:
            file.write(f"{batch_id} ")
        if notes.read_text().split().count(str(batch_id)) == 1 and batch_id % 2:
            raise RuntimeError("killed after the commit")

    for _ in _write_segments(tmp_path / "segments", _cuts(8, 3)):
        failures = 0
        while not _finishes(spark, tmp_path, failing):
            failures += 1
            assert failures < 5
    batches = notes.read_text().split()
    assert len(batches) > len(set(batches)) >= 3
    wal = spark.read.parquet(str(tmp_path / "segments"))
    for name, directory in zip(NAMES, DIRECTORIES, strict=True):
        assert_same(read(format, target, directory), expected(wal, name, "committed"))


@pytest.mark.slow
@pytest.mark.parametrize("transactions", and_exhaustive(["committed"], ["as_sent"]))
def test_a_stream_may_begin_later_and_end_within_a_joined_segment(
    spark: Any, tmp_path: Path, transactions: Any
) -> None:
    pgspark.register(spark)
    list(_write_segments(tmp_path / "segments", [0, 400, len(PAYLOADS)]))
    wal = spark.read.parquet(str(tmp_path / "segments"))
    sink = pgspark.table_sink(tmp_path / "lake", transactions=transactions)
    rows = {"directory": str(tmp_path / "segments"), "path": "one"}
    ends = [(200, 299), (300, 500), (501, len(PAYLOADS) - 1)]
    for number, (first, last) in enumerate(ends):
        frame = spark.createDataFrame([{**rows, "first": first, "last": last}]).select(
            "directory", "path", "first", "last"
        )
        sink(frame, number)
    ended = {row["txn"]: row["at_seq"] for row in pgspark.outcomes(wal).where("subxid is null").collect()}
    for name, directory in zip(NAMES, DIRECTORIES, strict=True):
        wanted = expected(wal, name, transactions)
        at = (
            [ended[txn] for txn in wanted["_txn"].to_pylist()]
            if transactions == "committed"
            else wanted["_seq"].to_pylist()
        )
        assert_same(
            read("parquet", tmp_path / "lake", directory),
            wanted.filter(pa.array([each >= 200 for each in at])),
        )


def _start(spark: Any, segments: Path, checkpoint: Path, options: dict[str, str]) -> None:
    reader = spark.readStream.format("pgoutput").options(**options).load(str(segments))
    reader.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start().awaitTermination()


@pytest.mark.slow
def test_wrong_streams(spark: Any, stored: Path, tmp_path: Path) -> None:
    pgspark.register(spark)
    sink = pgspark.table_sink(tmp_path)
    with pytest.raises(ValueError, match=r"table_sink needs the columns directory, path, first, last"):
        sink(spark.range(1), 0)
    with pytest.raises(TypeError, match=r"tables must be a list"):
        pgspark.table_sink(tmp_path, "public.t0")
    for options, message in (
        ({"emit": "names"}, "emit must be 'rows' or 'files'"),
        ({"emit": "files", "columns": "id"}, "has no option 'columns'"),
    ):
        with pytest.raises(Exception, match=message):
            _start(spark, stored, tmp_path / "c", options)
    with pytest.raises(Exception, match=r"has no option emit"):
        spark.read.format("pgoutput").option("emit", "files").load(str(stored)).collect()


# --- partitions and wider types ------------------------------------------------------------------------------

SALES = RelationSpec(
    20020,
    "public",
    "sales",
    (ColumnSpec("id", 23, key=True), ColumnSpec("country", 25), ColumnSpec("day", 1082), ColumnSpec("n", 21)),
)
NARROW = RelationSpec(
    20030,
    "public",
    "grown",
    (
        ColumnSpec("id", 23, key=True),
        ColumnSpec("ratio", 700),
        ColumnSpec("price", 1700, (10 << 16 | 2) + 4),
        ColumnSpec("name", 1043, 14),
        ColumnSpec("marks", 1007),
    ),
)
WIDE = RelationSpec(
    20030,
    "public",
    "grown",
    (
        ColumnSpec("id", 20, key=True),
        ColumnSpec("ratio", 701),
        ColumnSpec("price", 1700, (12 << 16 | 2) + 4),
        ColumnSpec("name", 25),
        ColumnSpec("marks", 1016),
    ),
)


def _write_inserts(
    directory: Path, first: int, spec: RelationSpec, rows: list[list[str | None]], state: Any
) -> Any:
    """Writes a segment with a transaction of inserts. Returns the state behind it."""
    writer = Writer()
    wal = writer.begin(first, first * 1000, 0)
    for row in rows:
        wal += writer.change(spec, "insert", new=row)
    tagged, state = pgo.tag(wal + writer.commit(first * 1000, first * 1000 + 8, 0), state)
    directory.mkdir(exist_ok=True)
    write_segment(directory, tagged, state, source=SOURCE)
    return state


def _sales(first: int) -> list[list[str | None]]:
    countries = ["DE", "a/b c", "é=%", None]
    days = ["2024-02-29", "0001-01-01", None]
    return [[str(first + k), countries[k % 4], days[k % 3], str(k % 2)] for k in range(24)]


@pytest.mark.parametrize("format", and_slow(["parquet"], [each for each in FORMATS if each != "parquet"]))
def test_partitions(spark: Any, tmp_path: Path, format: str) -> None:
    segments, target, by = tmp_path / "segments", tmp_path / "lake", {'"public".sales': ["country", "day"]}
    state = None
    for first in (0, 100):
        state = _write_inserts(segments, first + 1, SALES, _sales(first), state)
        (row,) = pgspark.write_tables(segments, target, format=format, partition_by=by)
        assert (row.rows, row.files) == (24, 12)
        left = target / "public.sales" / "country=DE" / ".part-00-00-00001.parquet"
        if format == "parquet":
            left.write_bytes(b"")  # of a task that ended late
    pgspark.write_tables(segments, target, format=format, partition_by=by, mode="overwrite")
    assert not left.exists()
    wanted = expected(spark.read.parquet(str(segments)), "public.sales", "committed")
    if format == "parquet":
        rows = spark.read.parquet(str(target / "public.sales")).orderBy("_seq")
        assert rows.schema["day"].dataType.simpleString() == "date"
        assert rows.select(wanted.schema.names).toArrow().to_pylist() == wanted.to_pylist()
        assert rows.where("country = 'a/b c'").count() == 12
    else:
        assert_same(read(format, target, "public.sales"), wanted)
    if format == "delta":
        table = deltalake.DeltaTable(str(target / "public.sales"))
        assert table.metadata().partition_columns == ["country", "day"]
        assert table.to_pyarrow_table(filters=[("country", "=", "DE")]).num_rows == 12
    for other in ({"public.sales": ["day"]}, ()):
        with pytest.raises(
            ValueError, match=r"is partitioned by \['country', 'day'\], not by .* or use another target"
        ):
            pgspark.write_tables(segments, target, format=format, partition_by=other)


def test_a_catalog_adds_what_the_server_says_of_types(spark: Any, tmp_path: Path) -> None:
    """A stream does not say how many digits a domain has."""
    spec = RelationSpec(
        16401, "public", "sales", (ColumnSpec("id", 23, key=True), ColumnSpec("total", 50_001))
    )
    writer = Writer()
    wal = [
        *writer.begin(7, 100, 0),
        *writer.change(spec, "insert", new=["1", "2.50"]),
        *writer.commit(100, 108, 0),
    ]
    tagged, state = pgo.tag(wal)
    write_segment(tmp_path / "segments", tagged, state, source=SOURCE)
    price = UserType(50_001, "public", "price", "domain", of=1700, typmod=(12 << 16 | 2) + 4)
    catalog = pgo.Catalog(types=UserTypes([price]))
    payloads = spark.read.parquet(str(tmp_path / "segments"))
    for name, source, given, kind in (
        ("stream", tmp_path / "segments", None, pa.string()),
        ("server", tmp_path / "segments", catalog, pa.decimal128(12, 2)),
        ("payloads", payloads, catalog, pa.decimal128(12, 2)),
    ):
        pgspark.write_tables(source, tmp_path / name, catalog=given)
        rows = read("parquet", tmp_path / name, "public.sales")
        assert rows.schema.field("total").type == kind
        assert str(rows.column("total")[0].as_py()) == "2.50"


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("error", [ValueError, _KilledError, OutcomeUnknownError])
def test_a_run_that_ends_early_leaves_no_file_in_a_partition(
    tmp_path: Path, format: str, error: type[BaseException]
) -> None:
    """If nobody knows whether files were committed, the next run removes them, and not this one."""

    def write() -> None:
        with runs.begin_run(str(tmp_path), format, TableOptions()) as run:
            table = run.table("public.t")
            partitioning = Partitioning(("a",), table.partition_directories, table.partition_columns_stored)
            with TableFiles(
                run.store, run.name, run.hidden, partitioning={"public.t": partitioning}
            ) as files:
                files.add("public.t", pa.record_batch({"a": pa.array(["..", "x"]), "b": pa.array([1, 2])}))
            raise (
                OutcomeUnknownError("t", OSError("ended")) if error is OutcomeUnknownError else error("ended")
            )

    with pytest.raises(error, match="ended"):
        write()
    assert len(list((tmp_path / "public.t").rglob("*.parquet"))) == (0 if error is ValueError else 2)
    with runs.begin_run(str(tmp_path), format, TableOptions()):
        assert not list((tmp_path / "public.t").rglob("*.parquet"))


def test_wrong_partitions(spark: Any, stored: Path, tmp_path: Path) -> None:
    for by, kind, message in (
        ("day", TypeError, r"partition_by must be a list"),
        ({"public.t1": "day"}, TypeError, r"partition_by must be a list"),
        (["at"], ValueError, r"cannot be partitioned by 'at', which is timestamp"),
        (["other"], ValueError, r"has no column 'other' to partition by"),
        ({"public.missing": ["day"]}, KeyError, r"partition_by names public\.missing, which is not written"),
    ):
        with pytest.raises(kind, match=message):
            pgspark.write_tables(stored, tmp_path, NAMES[:2], partition_by=by)
    with pytest.raises(ValueError, match=r"iceberg_catalog= is for format='iceberg'"):
        pgspark.write_tables(stored, tmp_path, format="delta", iceberg_catalog={})


@pytest.mark.parametrize("format", and_slow(["delta"], [each for each in FORMATS if each != "delta"]))
def test_a_type_that_became_wider(spark: Any, tmp_path: Path, format: str) -> None:
    segments, target = tmp_path / "segments", tmp_path / "lake"
    state = _write_inserts(segments, 1, NARROW, [["1", "1.5", "1.25", "a", "{1,NULL}"]], None)
    pgspark.write_tables(segments, target, format=format)
    _write_inserts(
        segments, 2, WIDE, [[str(1 << 40), "1e+300", "1234567890.25", "b" * 99, f"{{{1 << 40}}}"]], state
    )
    mode: Any = "append"
    if format == "delta":
        with pytest.raises(
            ValueError, match=r"'id' is int32, and the rows have int64. Tables of this kind cannot"
        ):
            pgspark.write_tables(segments, target, format=format)
        mode = "overwrite"
    pgspark.write_tables(segments, target, format=format, mode=mode)
    wanted = expected(spark.read.parquet(str(segments)), "public.grown", "committed")
    assert len(wanted) == 2
    if format == "parquet":
        schema = parquet.ParquetTable(open_store(target), "public.grown").known.schema
        place = target / "public.grown"
        assert_same(ds.dataset(place, schema).to_table().sort_by("_seq"), wanted)
        wal = spark.read.parquet(str(segments))
        rows = (
            spark.read.schema(pgspark.changes(wal, "public.grown").schema).parquet(str(place)).orderBy("_seq")
        )
        assert_same(rows.toArrow(), wanted)
    else:
        assert_same(read(format, target, "public.grown"), wanted)

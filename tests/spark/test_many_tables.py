"""Tables of which few change: those without new rows get no commit, and those that cannot go on stop alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import Options
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import ColumnSpec, RelationSpec
from pgoutput_fast.segments import write_segment
from pgoutput_fast.spark.tables.problems import TableProblems
from pgoutput_fast.tables.delta.table import DeltaTable
from pgoutput_fast.tables.progress import Progress
from pgoutput_fast.tables.table import Commit, ConflictError, OutcomeUnknownError
from support.forms import and_slow
from support.lakes import data_files, tables_of
from support.segment_streams import ORDERS, SOURCE, MadeSegments

TABLES = [replace(ORDERS, oid=16401 + k, name=f"t{k}") for k in range(4)]
NAMES = [f"public.{each.name}" for each in TABLES]
# The same relation with another type, which cannot have the rows of the version before.
ALTERED = replace(TABLES[1], columns=(ORDERS.columns[0], ColumnSpec("note", 1184)))


@pytest.fixture
def made(tmp_path: Path) -> MadeSegments:
    """Segments. The first one has a row of every table."""
    (tmp_path / "segments").mkdir()
    made = MadeSegments(tmp_path / "segments")
    made.cut(*(made.commit(1, spec=each) for each in TABLES))
    return made


def _cut(made: MadeSegments, *parts: list[bytes]) -> int:
    """Adds a segment. Returns the ordinal of its last message."""
    made.cut(*parts)
    assert made.state is not None
    return made.state.next_seq - 1


def _ids(lake: Path, format: str = "delta") -> dict[str, list[int]]:
    """The rows of each table."""
    tables = tables_of(format, lake).items()
    return {name: rows["id"].to_pylist() for name, rows in tables if not name.startswith("_rejects/")}


def _versions(lake: Path) -> list[int]:
    return [deltalake.DeltaTable(str(lake / name)).version() for name in NAMES]


class _Query:
    """A query that is started for each batch, as a job that runs every hour."""

    def __init__(self, spark: Any, place: Path, checkpoint: str = "checkpoint", **options: Any) -> None:
        pgspark.register(spark)
        self._spark, self._place, self._checkpoint, self._options = spark, place, checkpoint, options
        self.restart()

    def restart(self) -> None:
        """The next batches have a new sink, as after the end of the driver."""
        self._sink = pgspark.table_sink(self._place / "lake", **self._options)

    def run(self) -> None:
        query = (
            self._spark.readStream.format("pgoutput")
            .option("emit", "files")
            .load(str(self._place / "segments"))
            .writeStream.foreachBatch(self._sink)
            .option("checkpointLocation", str(self._place / self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()


def _status(spark: Any, lake: Path) -> dict[str, Any]:
    return {row["table"]: row for row in pgspark.table_status(lake, spark=spark).collect()}


def _batches(spark: Any, made: MadeSegments, sink: Any, first: int = 0) -> Callable[[], None]:
    """A function that passes everything since its last call to a sink, as a query does."""
    taken = [first]

    def take() -> None:
        assert made.state is not None
        first, taken[0] = taken[0], made.state.next_seq
        row = {"directory": str(made.directory), "path": "", "first": first, "last": taken[0] - 1, "began": 0}
        sink(spark.createDataFrame([row]).select(*row), 0)

    return take


def _by_calls(spark: Any, place: Path, made: MadeSegments) -> Callable[[], object]:
    return lambda: pgspark.write_tables(place / "segments", place / "lake", format="delta", spark=spark)


def _by_batches(spark: Any, place: Path, made: MadeSegments) -> Callable[[], object]:
    return _batches(spark, made, pgspark.table_sink(place / "lake", format="delta"))


@pytest.mark.parametrize("way", and_slow([_by_calls], [_by_batches]))
def test_a_table_without_new_rows_gets_no_commit(
    spark: Any, tmp_path: Path, made: MadeSegments, way: Any
) -> None:
    run, lake = way(spark, tmp_path, made), tmp_path / "lake"
    run()
    before = _versions(lake)
    last = _cut(made, made.commit(2, spec=TABLES[2]))
    run()
    assert _versions(lake) == [before[0], before[1], before[2] + 1, before[3]]
    status = _status(spark, lake)
    assert {row["position"] for row in status.values()} == {last}
    assert {(row["state"], row["lag"]) for row in status.values()} == {("follow", 0)}
    assert [status[name]["rows"] for name in NAMES] == [1, 1, 2, 1]
    run()
    assert _versions(lake) == [before[0], before[1], before[2] + 1, before[3]]
    assert _ids(lake) == {name: [1, 2] if name == NAMES[2] else [1] for name in NAMES}


@pytest.mark.parametrize("way", and_slow([_by_calls], [_by_batches]))
def test_rows_whose_commit_comes_later(spark: Any, tmp_path: Path, made: MadeSegments, way: Any) -> None:
    """A batch without a row of a table has the commit of rows that came before it."""
    run, lake = way(spark, tmp_path, made), tmp_path / "lake"
    made.cut(made.block(900, 7))
    run()
    made.cut(made.commit(2, spec=TABLES[2]))
    run()
    made.cut(made.stream_commit(900))
    run()
    assert _ids(lake)["public.orders"] == [7]


@pytest.mark.parametrize("format", ["delta", "parquet", "iceberg"])
def test_the_own_position_of_a_table_counts(
    spark: Any, tmp_path: Path, made: MadeSegments, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a run that ended between the commits and the record of how far the others were read."""
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    pgspark.write_tables(segments, lake, format=format)
    made.cut(made.commit(2, spec=TABLES[2]))

    def killed(progress: Progress) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "save", killed)
        with pytest.raises(OSError, match="no space left"):
            pgspark.write_tables(segments, lake, format=format)
    made.cut(made.commit(3, spec=TABLES[3]))
    rows = {row["table"]: row["rows"] for row in pgspark.write_tables(segments, lake, format=format)}
    assert rows == {NAMES[0]: 0, NAMES[1]: 0, NAMES[2]: 0, NAMES[3]: 1}


def test_a_table_that_is_replaced(
    spark: Any, tmp_path: Path, made: MadeSegments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another stream, up to the same ordinal, in a run that ended before it recorded that."""
    lake, other = tmp_path / "lake", MadeSegments(tmp_path / "other")
    (tmp_path / "other").mkdir()
    pgspark.write_tables(tmp_path / "segments", lake, format="delta")
    made.cut(made.commit(2, spec=TABLES[2]))
    pgspark.write_tables(tmp_path / "segments", lake, format="delta")
    other.cut(*(other.commit(1, spec=each) for each in TABLES))

    def killed(progress: Progress) -> None:
        if progress.tables:
            raise OSError("no space left")
        save(progress)

    with monkeypatch.context() as patch:
        save = Progress.save
        patch.setattr(Progress, "save", killed)
        with pytest.raises(OSError, match="no space left"):
            pgspark.write_tables(other.directory, lake, format="delta", mode="overwrite")
    other.cut(other.commit(3, spec=TABLES[0]))
    pgspark.write_tables(other.directory, lake, format="delta")
    assert _ids(lake) == {name: [1, 3] if name == NAMES[0] else [1] for name in NAMES}


def test_lack_of_memory_is_not_an_error_of_a_table() -> None:
    with pytest.raises(pa.ArrowMemoryError), TableProblems("skip").of(NAMES[0]):
        pa.allocate_buffer(1 << 62)


@pytest.mark.parametrize(
    "content",
    and_slow(
        [b"[]", b'{"version": 1, "positions": [3], "tables": []}', None],
        [b"", b'{"version": 1}', b"[" * 100_000],
    ),
)
def test_a_lost_or_damaged_record(
    spark: Any, tmp_path: Path, made: MadeSegments, content: bytes | None
) -> None:
    """Then every table has its own position."""
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    pgspark.write_tables(segments, lake, format="delta")
    made.cut(made.commit(2, spec=TABLES[2]))
    pgspark.write_tables(segments, lake, format="delta")
    if content is None:
        (lake / "_progress.json").unlink()
    else:
        (lake / "_progress.json").write_bytes(content)
    assert not any(row["rows"] for row in pgspark.write_tables(segments, lake, format="delta"))
    assert _ids(lake) == {name: [1, 2] if name == NAMES[2] else [1] for name in NAMES}


def test_a_table_that_was_removed(spark: Any, tmp_path: Path, made: MadeSegments) -> None:
    """It is written again as a whole, although it had no new rows for long."""
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    pgspark.write_tables(segments, lake, format="delta")
    made.cut(made.commit(2, spec=TABLES[2]))
    pgspark.write_tables(segments, lake, format="delta")
    shutil.rmtree(lake / NAMES[1])
    assert _status(spark, lake)[NAMES[1]]["state"] == "missing"
    pgspark.write_tables(segments, lake, format="delta")
    assert _ids(lake)[NAMES[1]] == [1]


def _damaged(made: MadeSegments, spec: RelationSpec) -> list[bytes]:
    """A transaction with a value that cannot be decoded."""
    made.lsn += 100
    wal: list[bytes] = made.writer.begin(made.lsn, made.lsn, 0)
    wal += made.writer.change(spec, "insert", new=["not a number", None])
    return wal + made.writer.commit(made.lsn, made.lsn + 8, 0)


@pytest.mark.parametrize("format", ["delta", "parquet"])
@pytest.mark.parametrize("kind", ["type", "value"])
def test_one_table_does_not_stop_the_others(
    spark: Any, tmp_path: Path, made: MadeSegments, format: str, kind: str
) -> None:
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    first = _cut(made, made.commit(2))
    pgspark.write_tables(segments, lake, format=format)
    wrong = (
        made.commit(3, spec=ALTERED)
        if kind == "type"
        else made.commit(3, spec=TABLES[1]) + _damaged(made, TABLES[1])
    )
    last = _cut(made, wrong, made.commit(3, spec=TABLES[2]))
    before = _ids(lake, format)
    # pyspark has the error of a task as its own
    with pytest.raises(Exception, match="note" if kind == "type" else "column 'id'"):
        pgspark.write_tables(segments, lake, format=format)
    assert _ids(lake, format) == before
    rows = {
        row["table"]: row
        for row in pgspark.write_tables(segments, lake, format=format, on_table_error="skip")
    }
    assert _ids(lake, format) == {**before, NAMES[2]: [1, 3]}
    status = _status(spark, lake)
    assert {name: row["state"] for name, row in status.items() if row["state"] != "follow"} == {
        NAMES[1]: "stopped"
    }
    stopped = status[NAMES[1]]
    assert (stopped["position"], stopped["rows"], stopped["lag"]) == (first, 1, last - first)
    assert ("note" if kind == "type" else "column 'id'") in stopped["reason"]
    assert "not a number" not in stopped["reason"]
    if kind == "value":
        assert (rows[NAMES[1]]["error"], rows[NAMES[1]]["position"]) == (stopped["reason"], first)
    assert len([*(lake / NAMES[1]).glob("*.parquet")]) == 1
    # A remedy: the table begins again, or the value goes to the rejects.
    if kind == "value":
        pgspark.write_tables(segments, lake, format=format, options=Options(on_error="quarantine"))
        assert _ids(lake, format)[NAMES[1]] == [1, 3]
        assert _status(spark, lake)[NAMES[1]]["state"] == "follow"


@pytest.mark.parametrize("way", and_slow(["calls"], ["batches"]))
def test_a_table_that_is_left_out(spark: Any, tmp_path: Path, made: MadeSegments, way: str) -> None:
    """Whether it was stopped or not. It keeps its position, and goes on from there when it is included again."""
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    options: dict[str, Any] = {"format": "parquet", "on_table_error": "skip"}
    first = pgspark.write_tables(segments, lake, **options)[0]["position"]
    made.cut(_damaged(made, TABLES[1]), made.commit(2, spec=TABLES[2]))
    pgspark.write_tables(segments, lake, **options)
    assert _status(spark, lake)[NAMES[1]]["state"] == "stopped"

    def run(**more: Any) -> dict[str, Any]:
        if way == "calls":
            pgspark.write_tables(segments, lake, **options, **more)
        else:
            _batches(spark, made, pgspark.table_sink(lake, **options, **more))()
        return _status(spark, lake)

    def rename(database: str | None, schema: str, table: str) -> str:
        return {name.partition(".")[2]: "public" for name in NAMES if name != NAMES[3]}[table]

    last = _cut(made, made.commit(3, spec=TABLES[2]))
    # The function does not know the table that is left out: then nothing is noted of it.
    assert run(exclude=[NAMES[3]], namespace=rename)[NAMES[3]]["state"] == "follow"
    left_out = run(exclude=[NAMES[1], "public.t3", "public.nowhere"])
    for name in (NAMES[1], NAMES[3]):
        row = left_out[name]
        assert (row["state"], row["reason"], row["rows"]) == ("excluded", None, 1)
        assert row["since"] is not None
    assert (left_out[NAMES[1]]["position"], left_out[NAMES[1]]["lag"]) == (first, last - first)
    assert left_out[NAMES[2]]["state"] == "follow"
    assert run(exclude=[NAMES[1]])[NAMES[1]]["since"] == left_out[NAMES[1]]["since"]
    again = run()
    assert {name: row["state"] for name, row in again.items() if row["state"] != "follow"} == {
        NAMES[1]: "stopped"
    }
    assert again[NAMES[1]]["since"] > left_out[NAMES[1]]["since"]
    run(options=Options(on_error="quarantine"))
    assert _ids(lake, "parquet") == {**{name: [1] for name in NAMES}, NAMES[2]: [1, 2, 3]}


@pytest.mark.slow
def test_a_query_goes_on_without_a_table(
    spark: Any, tmp_path: Path, made: MadeSegments, caplog: pytest.LogCaptureFixture
) -> None:
    lake, query = tmp_path / "lake", _Query(spark, tmp_path, format="delta")
    query.run()
    made.cut(_damaged(made, TABLES[1]), made.commit(2, spec=TABLES[2]))
    query.run()
    made.cut(made.commit(3, spec=TABLES[1]) + made.commit(3, spec=TABLES[2]))
    query.run()
    assert _ids(lake) == {**{name: [1] for name in NAMES}, NAMES[2]: [1, 2, 3]}
    first = _status(spark, lake)[NAMES[1]]
    assert first["state"] == "stopped"
    # Each start of the query has tried the table, although the sink is the same object.
    assert caplog.text.count(f"{NAMES[1]} is stopped, and the other tables go on") == 2
    # The next sink tries the table again, from its position on. It keeps the time of the stop.
    query.restart()
    made.cut(made.commit(4, spec=TABLES[2]))
    query.run()
    again = _status(spark, lake)[NAMES[1]]
    assert (again["state"], again["since"]) == ("stopped", first["since"])
    assert again["lag"] > first["lag"]
    pgspark.write_tables(tmp_path / "segments", lake, format="delta", tables=NAMES[2:3])
    assert _ids(lake)[NAMES[2]] == [1, 2, 3, 4]


def test_no_table_is_left(spark: Any, tmp_path: Path, made: MadeSegments) -> None:
    take = _batches(spark, made, pgspark.table_sink(tmp_path / "lake", format="delta", tables=[NAMES[1]]))
    take()
    made.cut(_damaged(made, TABLES[1]))
    with pytest.raises(ValueError, match="column 'id'"):
        take()


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_databases_share_a_target(spark: Any, tmp_path: Path, made: MadeSegments, format: str) -> None:
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    for namespace in ("north_", lambda database, schema, table: f"{database}.{schema}"):
        rows = pgspark.write_tables(segments, lake, format=format, namespace=namespace)
        assert [row["rows"] for row in rows] == [1, 1, 1, 1]
    quoted = "shop+2Epublic"
    assert {row["table"] for row in rows} == {f"{quoted}.t{k}" for k in range(4)}
    found = {each.name for each in lake.iterdir() if not each.name.startswith("_")}
    assert found == {f"{schema}.t{k}" for schema in ("north_public", quoted) for k in range(4)}
    (row,) = pgspark.write_tables(
        segments, lake, [NAMES[0]], format=format, namespace="south_", table_name="a_"
    )
    assert row["table"] == "south_public.a_t0"
    with pytest.raises(ValueError, match=r"give public\.t0 and public\.t1 the same name: public\.t"):
        pgspark.write_tables(segments, lake, format=format, table_name=lambda *names: "t")


def test_wrong_arguments(spark: Any, tmp_path: Path, made: MadeSegments) -> None:
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    with pytest.raises(ValueError, match="on_table_error must be 'stop' or 'skip', not 'ignore'"):
        pgspark.write_tables(segments, lake, on_table_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="namespace must be a prefix, or a function"):
        pgspark.write_tables(segments, lake, namespace=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"table_name returned an empty name for shop\.public\.t0"):
        pgspark.write_tables(segments, lake, table_name=lambda *names: "")
    with pytest.raises(
        ValueError, match=r"namespace returned a name that is no valid text for shop\.public\.t0"
    ):
        pgspark.write_tables(segments, lake, namespace=lambda *names: "\ud800")
    with pytest.raises(FileNotFoundError, match="has no record of tables: the next call of write_tables"):
        pgspark.table_status(lake)
    assert not lake.exists()


def test_the_record_is_small(spark: Any, tmp_path: Path, made: MadeSegments) -> None:
    """The position of the tables is there once."""
    pgspark.write_tables(tmp_path / "segments", tmp_path / "lake")
    values = json.loads((tmp_path / "lake/_progress.json").read_text())
    assert (len(values["positions"]), len(values["tables"]), len(values["ends"])) == (1, len(TABLES), 1)


@pytest.mark.slow
def test_queries_take_turns(spark: Any, tmp_path: Path, made: MadeSegments) -> None:
    """Each one looks only at its own tables that change, although the other writes in between."""
    lake = tmp_path / "lake"
    north = _Query(spark, tmp_path, format="delta", namespace="north_")
    south = _Query(spark, tmp_path, "south", format="delta", namespace="south_")
    with ThreadPoolExecutor() as pool:
        for n in range(2, 4):
            for query in [pool.submit(north.run), pool.submit(south.run)]:
                query.result()
            made.cut(made.commit(n, spec=TABLES[2]))
    expected = {name: [1, 2] if name == NAMES[2] else [1] for name in NAMES}
    found = _ids(lake)
    for schema in ("north_public", "south_public"):
        assert {name: found[f"{schema}.{name.partition('.')[2]}"] for name in NAMES} == expected
        assert deltalake.DeltaTable(str(lake / f"{schema}.t0")).version() == 0


def test_a_table_that_stopped_before_its_first_commit(spark: Any, tmp_path: Path, made: MadeSegments) -> None:
    """It does not begin later, as a new table of the server would, if its changes until then are gone."""
    lake = tmp_path / "lake"
    take = _batches(spark, made, pgspark.table_sink(lake, format="delta"))
    take()
    made.cut(_damaged(made, ORDERS), made.commit(2, spec=TABLES[2]))
    take()
    for each in (tmp_path / "segments").iterdir():
        each.unlink()
    assert made.state is not None
    first = made.state.next_seq
    made.cut(made.commit(3), made.commit(3, spec=TABLES[2]))
    _batches(spark, made, pgspark.table_sink(lake, format="delta"), first)()
    assert _ids(lake) == {**{name: [1] for name in NAMES}, NAMES[2]: [1, 2, 3]}
    found = _status(spark, lake)["public.orders"]
    assert (found["state"], found["position"], found["rows"]) == ("stopped", None, None)
    assert "public.orders is not there, and the query goes on" in found["reason"]


def test_a_table_in_two_spellings(spark: Any, tmp_path: Path, made: MadeSegments) -> None:
    """Also if the server has made it again, with another oid."""
    named = [TABLES[0].oid, NAMES[0], *NAMES[1:]]
    take = _batches(spark, made, pgspark.table_sink(tmp_path / "lake", named[1:] + named[:1], format="delta"))
    take()
    made.cut(made.commit(5, spec=replace(TABLES[0], oid=17000)), made.commit(5, spec=TABLES[1]))
    take()
    assert _ids(tmp_path / "lake") == {**{name: [1] for name in NAMES}, NAMES[0]: [1, 5], NAMES[1]: [1, 5]}


@pytest.mark.parametrize("begun", [False, True])
def test_segments_that_are_missing(spark: Any, tmp_path: Path, made: MadeSegments, begun: bool) -> None:
    """No table goes past them, with or without changes in what is there."""
    take = _batches(spark, made, pgspark.table_sink(tmp_path / "lake", format="delta"))
    take()
    if begun:
        gone = Path(made.cut(made.block(900, 7)))  # of public.orders
        made.cut(made.commit(2))
        take()
        made.cut(made.stream_commit(900), made.commit(3, spec=TABLES[2]))
    else:
        made.cut(made.commit(2, spec=TABLES[2]))
        gone = Path(made.cut(made.commit(3, spec=TABLES[1])))
        made.cut(made.commit(4, spec=TABLES[2]))
    gone.rename(tmp_path / gone.name)
    with suppress(ValueError):  # no table is left
        take()
    (tmp_path / gone.name).rename(gone)
    pgspark.write_tables(tmp_path / "segments", tmp_path / "lake", format="delta")
    expected = {name: [1] for name in NAMES}
    expected |= (
        {"public.orders": [7, 2], NAMES[2]: [1, 3]} if begun else {NAMES[1]: [1, 3], NAMES[2]: [1, 2, 4]}
    )
    assert _ids(tmp_path / "lake") == expected


def test_two_tables_with_one_name(spark: Any, tmp_path: Path) -> None:
    """The second one comes in a later batch."""
    (tmp_path / "segments").mkdir()
    made = MadeSegments(tmp_path / "segments")
    made.cut(made.commit(1, spec=TABLES[0]))
    sink = pgspark.table_sink(tmp_path / "lake", format="delta", table_name=lambda *names: "t")
    take = _batches(spark, made, sink)
    take()
    made.cut(made.commit(1, spec=TABLES[1]))
    with pytest.raises(ValueError, match=r"give public\.t0 and public\.t1 the same name"):
        take()


def test_a_table_that_others_take_up(spark: Any, tmp_path: Path, made: MadeSegments) -> None:
    """The running sink goes on with it."""
    lake = tmp_path / "lake"
    take = _batches(spark, made, pgspark.table_sink(lake, format="delta"))
    take()
    made.cut(_damaged(made, TABLES[1]), made.commit(2, spec=TABLES[2]))
    take()
    quarantine = Options(on_error="quarantine")
    pgspark.write_tables(tmp_path / "segments", lake, [NAMES[1]], format="delta", options=quarantine)
    made.cut(made.commit(3, spec=TABLES[1]))
    take()
    assert _ids(lake)[NAMES[1]] == [1, 3]
    assert {row["state"] for row in _status(spark, lake).values()} == {"follow"}


def test_a_change_by_others_during_the_commit(
    spark: Any, tmp_path: Path, made: MadeSegments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next batch tries the table again. No file of the failed commit stays."""
    lake, commit = tmp_path / "lake", DeltaTable.commit
    take = _batches(spark, made, pgspark.table_sink(lake, format="delta"))
    take()
    made.cut(made.commit(2, spec=TABLES[1]), made.commit(2, spec=TABLES[2]))

    def conflicts(table: DeltaTable, made_of: Commit) -> None:
        if table.directory == NAMES[1]:
            raise ConflictError(table)
        commit(table, made_of)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "commit", conflicts)
        take()
    assert (_ids(lake)[NAMES[1]], _status(spark, lake)[NAMES[1]]["state"]) == ([1], "stopped")
    assert len([*(lake / NAMES[1]).glob("*.parquet")]) == 1
    made.cut(made.commit(3, spec=TABLES[2]))
    take()
    assert _ids(lake) == {**{name: [1] for name in NAMES}, NAMES[1]: [1, 2], NAMES[2]: [1, 2, 3]}


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_rejects_of_a_table_that_is_stopped(
    spark: Any, tmp_path: Path, made: MadeSegments, format: str
) -> None:
    """Their files do not stay. A run that can write the table writes them, once."""
    segments, lake, spec = tmp_path / "segments", tmp_path / "lake", TABLES[1]
    by = {"options": Options(on_error="quarantine"), "partition_by": {NAMES[1]: ["note"]}}
    wal = _damaged(made, spec)
    made.lsn += 100
    wal += made.writer.begin(7, made.lsn, 0)
    wal += made.writer.change(spec, "insert", new=["2", ""])  # no partition can have this name
    made.cut(wal + made.writer.commit(made.lsn, made.lsn + 8, 0))
    rows = pgspark.write_tables(segments, lake, format=format, on_table_error="skip", **by)  # type: ignore[arg-type]
    assert [row["table"] for row in rows if row["error"]] == [NAMES[1]]
    assert not data_files(lake / "_rejects")
    assert not data_files(lake / NAMES[1])
    for _ in range(2):
        pgspark.write_tables(segments, lake, format=format, options=Options(on_error="quarantine"))
        assert tables_of(format, lake)[f"_rejects/{NAMES[1]}"].num_rows == 1
        assert _ids(lake, format)[NAMES[1]] == [1, 2]


def test_files_of_a_commit_that_may_be_made_stay(
    spark: Any, tmp_path: Path, made: MadeSegments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if another commit failed before it in the same outage."""
    lake = tmp_path / "lake"

    def fails(table: DeltaTable, made_of: Commit) -> None:
        raise OSError("away") if table.directory == NAMES[0] else OutcomeUnknownError(table, OSError("away"))

    monkeypatch.setattr(DeltaTable, "commit", fails)
    with pytest.raises(OutcomeUnknownError):
        pgspark.write_tables(tmp_path / "segments", lake, format="delta")
    assert all(list((lake / name).glob("*.parquet")) for name in NAMES[1:2])


def test_what_else_a_stopped_table_leaves_alone(spark: Any, tmp_path: Path, made: MadeSegments) -> None:
    """Arguments for it, the files of its rejects, the rows of the result, other streams."""
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    pgspark.write_tables(segments, lake, format="delta")
    made.cut(made.commit(2, spec=ALTERED), made.commit(2, spec=TABLES[2]))
    by = {NAMES[1]: ["note"]}
    rows = pgspark.write_tables(
        segments, tmp_path / "other", format="delta", on_table_error="skip", partition_by=by
    )
    assert [(row["table"], row["position"]) for row in rows if row["error"]] == [(NAMES[1], None)]
    with pytest.raises(ValueError, match="exists: use mode='append'"):
        pgspark.write_tables(segments, lake, format="delta", mode="error", on_table_error="skip")
    assert {row["state"] for row in _status(spark, lake).values()} == {"follow"}
    (tmp_path / "south").mkdir()
    south = MadeSegments(tmp_path / "south")
    wal = [message for _ in range(30) for message in south.commit(1, spec=TABLES[0])]
    write_segment(tmp_path / "south", *pgo.tag(wal), source=replace(SOURCE, database="south"))
    pgspark.write_tables(tmp_path / "south", lake, namespace="south_", format="parquet")
    status = _status(spark, lake)
    assert {(row["state"], row["lag"]) for row in status.values()} == {("follow", 0)}
    assert status["south_public.t0"]["rows"] == 30


@pytest.mark.parametrize("change", ["end", "seq", "time", "format"])
def test_an_edited_record(spark: Any, tmp_path: Path, made: MadeSegments, change: str) -> None:
    """`table_status` and the next run take it for lost, or name what they cannot read."""
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    pgspark.write_tables(segments, lake, format="delta")
    values = json.loads((lake / "_progress.json").read_text())
    if change == "end":
        values["ends"] = dict.fromkeys(values["ends"], 10**30)
    elif change == "seq":
        values["positions"][0][0] = -(10**30)
    elif change == "time":
        values["tables"][NAMES[0]] += ["why", "0001-01-01T00:00:00+00:00"]
    else:
        values["tables"][NAMES[0]][0] = "../parquet"
    (lake / "_progress.json").write_text(json.dumps(values))
    if change == "format":
        assert "'../parquet'" in _status(spark, lake)[NAMES[0]]["reason"]
    else:
        with pytest.raises(FileNotFoundError, match="has no record of tables"):
            pgspark.table_status(lake)
    assert not any(row["rows"] for row in pgspark.write_tables(segments, lake, format="delta"))
    assert {row["state"] for row in _status(spark, lake).values()} == {"follow"}

"""`write_raw`: raw payloads, in Parquet files or in a DataFrame, become the tables that their segments become."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from pgoutput_fast import spark as pgspark
from pgoutput_fast.spark.dataframes.tagged import DumpRows, FrameRows, untagged_of
from pgoutput_fast.spark.tagging.dump import ordered_row_groups
from pgoutput_fast.spark.tasks.dump import FileRows, ReadDump
from pgoutput_fast.spark.tasks.rows import joined
from support.forms import and_slow
from support.written_tables import DIRECTORIES, PAYLOADS, assert_same, read

# Here no transaction is open.
CUT = [k for k, payload in enumerate(PAYLOADS) if payload[:1] == b"B"][2]


def _dump(place: Path, first: int, last: int, *, rows: int = 90) -> Path:
    """Writes payloads as files in stream order, whose names are in another one, with two row groups each."""
    place.mkdir(exist_ok=True)
    for number, at in enumerate(range(first, last, rows)):
        some = range(at, min(at + rows, last))
        table = pa.table(
            {"place": pa.array(some), "payload": pa.array([PAYLOADS[k] for k in some], pa.binary())}
        )
        pq.write_table(
            table, place / f"{97 * (first + number) % 1009:04}-{at}.parquet", row_group_size=rows // 2
        )
    return place


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _dump(tmp_path_factory.mktemp("raw") / "dump", 0, len(PAYLOADS))


@pytest.fixture(scope="module")
def wanted(spark: Any, dump: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, pa.Table]:
    """The tables, written from tagged payloads."""
    target = tmp_path_factory.mktemp("wanted")
    tagged = pgspark.tag(spark.read.parquet(str(dump)), "place").select("*")
    assert untagged_of(tagged) is None
    pgspark.write_tables(tagged, target)
    return {directory: read("parquet", target, directory) for directory in DIRECTORIES}


def _assert_written(format: str, target: Path, wanted: dict[str, pa.Table]) -> None:
    for directory, rows in wanted.items():
        assert_same(read(format, target, directory), rows)


@pytest.mark.parametrize("format", and_slow(["parquet"], ["delta"]))
def test_files_in_order(
    spark: Any, dump: Path, wanted: dict[str, pa.Table], tmp_path: Path, format: str
) -> None:
    written = pgspark.write_raw(dump, tmp_path / "lake", order_by="place", format=format, spark=spark)
    assert sum(row.rows for row in written) == sum(rows.num_rows for rows in wanted.values())
    assert written.state.next_seq == len(PAYLOADS)
    _assert_written(format, tmp_path / "lake", wanted)
    again = pgspark.write_raw(dump, tmp_path / "lake", order_by="place", format=format, spark=spark)
    assert [row.rows for row in again] == [0] * len(DIRECTORIES)


def test_who_reads_the_payloads(spark: Any, dump: Path, tmp_path: Path) -> None:
    """The tasks, if statistics say that the files are in order; otherwise Spark."""

    def reader(source: Any, **more: Any) -> type:
        untagged = untagged_of(pgspark.tag(source, "place", spark=spark, **more))
        assert untagged is not None
        return type(untagged.payloads)

    assert reader(dump) is DumpRows
    assert reader([f"{dump}/*.parquet"]) is DumpRows
    assert reader(spark.read.parquet(str(dump))) is FrameRows
    assert reader(dump, partitions=3) is FrameRows
    whole = pq.read_table(dump).sort_by("place")
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    pq.write_table(
        whole.filter(pa.compute.equal(pa.compute.bit_wise_and(whole["place"], 1), 0)), mixed / "even.parquet"
    )
    pq.write_table(
        whole.filter(pa.compute.equal(pa.compute.bit_wise_and(whole["place"], 1), 1)), mixed / "odd.parquet"
    )
    assert reader(mixed) is FrameRows
    within = tmp_path / "within"  # a row group has them in another order, which statistics do not tell
    within.mkdir()
    pq.write_table(whole.take(pa.array(range(len(whole) - 1, -1, -1))), within / "all.parquet")
    assert reader(within) is FrameRows
    kinds = tmp_path / "kinds"
    kinds.mkdir()
    for number, kind in enumerate((pa.int64(), pa.int32())):
        some = whole.slice(number * 100, 100)
        pq.write_table(some.set_column(0, "place", some["place"].cast(kind)), kinds / f"{number}.parquet")
    assert ordered_row_groups(spark.read.parquet(str(kinds)), "place", ["payload", "place"]) == ()
    shared = tmp_path / "shared" / f"place={len(whole)}"  # Spark has one place for all rows
    shared.mkdir(parents=True)
    pq.write_table(whole, shared / "all.parquet")
    with pytest.raises(ValueError, match=f"two payloads have the same place: place = {len(whole)}"):
        reader(shared.parent)
    bare = tmp_path / "bare"
    bare.mkdir()
    pq.write_table(whole, bare / "all.parquet", write_statistics=False)
    assert reader(bare) is FrameRows


@pytest.mark.slow
def test_files_in_another_order(spark: Any, dump: Path, wanted: dict[str, pa.Table], tmp_path: Path) -> None:
    (tmp_path / "mixed").mkdir()
    rows = pq.read_table(dump)
    for k in range(3):
        pq.write_table(rows.take(pa.array(range(k, len(rows), 3))), tmp_path / "mixed" / f"{k}.parquet")
    pgspark.write_raw(tmp_path / "mixed", tmp_path / "lake", order_by="place", spark=spark)
    _assert_written("parquet", tmp_path / "lake", wanted)


@pytest.mark.slow
def test_the_next_payloads(spark: Any, wanted: dict[str, pa.Table], tmp_path: Path) -> None:
    """With the state of the first call, or with all payloads again."""
    first = _dump(tmp_path / "monday", 0, CUT)
    written = pgspark.write_raw(first, tmp_path / "apart", order_by="place", spark=spark)
    then = _dump(tmp_path / "tuesday", CUT, len(PAYLOADS))
    state = written.state.to_json()
    pgspark.write_raw(then, tmp_path / "apart", order_by="place", state=state, spark=spark)
    _assert_written("parquet", tmp_path / "apart", wanted)

    pgspark.write_raw([first], tmp_path / "grown", order_by="place", spark=spark)
    pgspark.write_raw([first, then], tmp_path / "grown", order_by="place", spark=spark)
    _assert_written("parquet", tmp_path / "grown", wanted)


def test_a_transaction_that_began_before(spark: Any, tmp_path: Path) -> None:
    """It commits in the next payloads, and its first rows are not there: an error before anything is written."""
    begun = next(k for k, payload in enumerate(PAYLOADS) if payload[:1] == b"S")
    cut = next(k for k in range(begun, len(PAYLOADS)) if PAYLOADS[k][:1] == b"B")
    first, then = _dump(tmp_path / "first", 0, cut), _dump(tmp_path / "then", cut, len(PAYLOADS))
    state = pgspark.write_raw(first, tmp_path / "lake", order_by="place", spark=spark).state
    with pytest.raises(ValueError, match="transaction that began at message"):
        pgspark.write_raw(then, tmp_path / "lake", order_by="place", state=state, spark=spark)
    with pytest.raises(ValueError, match="transaction that began at message"):  # in another target, too
        pgspark.write_raw(then, tmp_path / "new", order_by="place", state=state, spark=spark)
    written = pgspark.write_raw([first, then], tmp_path / "lake", order_by="place", spark=spark)
    assert sum(row.rows for row in written) > 0


def test_a_message_that_is_damaged(spark: Any, tmp_path: Path) -> None:
    """A change that is cut in its header fails the job that tags it, and one that is cut in a value the decoding."""
    change = next(k for k, payload in enumerate(PAYLOADS) if k > 200 and payload[:1] == b"I")
    for size, place in ((3, tmp_path / "header"), (25, tmp_path / "value")):
        table = pq.read_table(_dump(tmp_path / f"dump{size}", 0, len(PAYLOADS))).sort_by("place")
        payloads = table["payload"].to_pylist()
        payloads[change] = payloads[change][:size]
        place.mkdir()
        pq.write_table(table.set_column(1, "payload", pa.array(payloads, pa.binary())), place / "all.parquet")
        with pytest.raises((ValueError, PySparkException), match=f"message {change}[ ,:]"):
            pgspark.write_raw(place, tmp_path / "lake", order_by="place", spark=spark)


def test_files_that_change_meanwhile(spark: Any, tmp_path: Path) -> None:
    place = _dump(tmp_path / "dump", 0, len(PAYLOADS))
    wal = pgspark.tag(place, "place", spark=spark)
    lost, other = sorted(place.iterdir())[:2]
    kept = other.read_bytes()
    pq.write_table(pq.read_table(other).slice(0, 10), other, row_group_size=45)
    with pytest.raises(PySparkException, match=r"has changed since tag|tag\(\) read in its first pass"):
        pgspark.write_tables(wal, tmp_path / "lake")
    other.write_bytes(kept)
    lost.unlink()
    with pytest.raises(PySparkException, match="was removed since tag"):
        pgspark.write_tables(wal, tmp_path / "lake")


def test_wrong_arguments(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="format must be one of"):
        pgspark.write_raw(tmp_path, tmp_path / "lake", order_by="place", format="csv")
    with pytest.raises(TypeError, match="storage_options must be"):
        pgspark.write_raw(tmp_path, tmp_path / "lake", order_by="place", storage_options=7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there is no path"):
        pgspark.write_raw([], tmp_path / "lake", order_by="place")
    with pytest.raises(TypeError, match="a DataFrame of payloads, or paths of Parquet files"):
        pgspark.write_raw([7], tmp_path / "lake", order_by="place")  # type: ignore[list-item]
    with pytest.raises(TypeError, match="this takes a DataFrame of payloads, not"):
        pgspark.write_raw(7, tmp_path / "lake", order_by="place")  # type: ignore[arg-type]
    none: Any = None
    for order in (none, 7):
        with pytest.raises(TypeError, match="order_by must be the name of a column"):
            pgspark.write_raw(tmp_path, tmp_path / "lake", order_by=order)
    assert not (tmp_path / "lake").exists()


@pytest.mark.slow
def test_a_query_that_writes_tables(spark: Any, wanted: dict[str, pa.Table], tmp_path: Path) -> None:
    """Raw payloads in micro-batches, each with the state of the one before. A batch that runs again adds nothing."""
    landing, lake = tmp_path / "landing", tmp_path / "lake"
    # No transaction is open at these places.
    begins = [k for k, payload in enumerate(PAYLOADS) if payload[:1] == b"B"]
    places = [0, begins[1], CUT, len(PAYLOADS)]
    landing.mkdir()

    def write(wal: Any, batch: int) -> None:
        assert untagged_of(wal) is not None
        for _ in range(2):
            pgspark.write_tables(wal, lake)

    store = pgspark.tag_batches(tmp_path / "states", "place", write)
    for number, (first, last) in enumerate(pairwise(places)):
        table = pa.table(
            {"place": range(first, last), "payload": pa.array(PAYLOADS[first:last], pa.binary())}
        )
        pq.write_table(table, landing / f"{number}.parquet")
        raw = spark.readStream.schema("place bigint, payload binary").parquet(str(landing))
        query = raw.writeStream.foreachBatch(store).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()
    _assert_written("parquet", lake, wanted)


def test_batches_of_payloads_are_large_but_not_too_large(tmp_path: Path) -> None:
    """Equal payloads, which a file has once, count as often as they come."""
    for size, fewest, most in ((20, 50_000, 100_000), (1000, 1, 10_000)):
        table = pa.table({"payload": pa.array([b"x" * size] * 120_000, pa.binary())})
        pq.write_table(table, path := tmp_path / f"{size}.parquet", row_group_size=120_000)
        task = ReadDump(iter, ((FileRows(str(path), (0,)),),), (("payload", "payload"),), numbered=False)
        counts = [rows.num_rows for rows in joined(task(iter([pa.RecordBatch.from_pydict({"id": [0]})])))]
        assert sum(counts) == 120_000
        assert fewest <= max(counts) <= most

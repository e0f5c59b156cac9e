"""A table gets the changes of one stream. Another stream, whose ordinals begin at 0 as well, is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, compact, list_segments, newest_segment, write_segment
from pgoutput_fast.spark.tables.run import begin_run
from pgoutput_fast.spark.tables.streams import StreamCheck, stream_at
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.parquet import ParquetTable
from pgoutput_fast.tables.stream import Stream
from pgoutput_fast.tables.table import Commit, Ordinal
from support.appended import ordinal_of
from support.forms import and_exhaustive, and_slow

SOURCE = Source("7300000000000000001", "shop", "slot")
ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
SCHEMA = pa.schema([("_seq", pa.int64())])


def _write(directory: Path, count: int, source: Source = SOURCE, lsn: int = 1000, each: int = 2) -> None:
    """Writes the segments that the directory lacks. Transaction n has the LSNs from lsn + 100 n."""
    directory.mkdir(exist_ok=True)
    newest = newest_segment(directory)
    writer, state = Writer(), None
    for begin, end in pairwise([*range(0, count, each), count]):
        wal = []
        for n in range(begin, end):
            at = lsn + 100 * n
            wal += [(at, data) for data in writer.begin(n + 1, at + 90, 0)]
            wal += [
                (at, data) for data in writer.change(ORDERS, "insert", new=[str(n), f"{source.slot} {lsn}"])
            ]
            wal += [(at + 90, data) for data in writer.commit(at + 90, at + 98, 0)]
        lsns, payloads = [at for at, _ in wal], [data for _, data in wal]
        tagged, state = pgo.tag(payloads, state, lsns)
        if newest is None or tagged.column("seq")[0].as_py() > newest.last_seq:
            write_segment(directory, tagged, state, source=source, end_lsn=lsn + 100 * (end - 1) + 98)


def _check(directory: Path, there: Stream, place: Path) -> None:
    """Checks a table of a stream against segments."""
    table = ParquetTable(open_store(place), "t")
    table.commit(Commit(table.known, SCHEMA, Ordinal(there.seq, there)))
    StreamCheck(list_segments(directory)).check(table, ordinal_of(table))


def test_segments_of_the_same_stream(tmp_path: Path) -> None:
    """Whatever was added, joined or removed since."""
    segments = tmp_path / "segments"
    _write(segments, 12)
    found = list_segments(segments)
    reached = [stream_at(found[: n + 1], each.last_seq) for n, each in enumerate(found)]
    inside = [stream_at(found, seq) for seq in range(1, found[-1].last_seq, 5)]
    for there in (*reached, *inside):
        _check(segments, there, tmp_path)
    compact(segments, most_bytes=found[0].path.stat().st_size * 3, keep=2, grace=0)  # type: ignore[union-attr]
    joined = list_segments(segments)
    assert len(joined) == 4 < len(found)
    for there in (*reached, *inside):
        _check(segments, there, tmp_path)
    joined[0].path.unlink()  # type: ignore[union-attr]
    for there in reached:
        _check(segments, there, tmp_path)


def test_segments_of_another_stream(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    _write(first, 8)
    _write(second, 8, lsn=3000)
    for mine, other in ((first, second), (second, first)):
        for each in list_segments(mine):
            there = stream_at(list_segments(mine), each.last_seq)
            _check(mine, there, tmp_path)
            with pytest.raises(
                ValueError, match=r"/t belongs to another stream of slot 'slot' of .* at LSN 0/"
            ):
                _check(other, there, tmp_path)
    for changed in (
        replace(SOURCE, system_identifier="9"),
        replace(SOURCE, database="other"),
        replace(SOURCE, slot="other"),
    ):
        names = (changed.system_identifier, changed.database, changed.slot)
        there = Stream.of(names, 9)
        with pytest.raises(
            ValueError, match=r"/t belongs to another stream: .*write to another target, or replace"
        ):
            _check(first, there, tmp_path)
    # Nothing but names is known.
    _check(second, Stream.of((SOURCE.system_identifier, "shop", "slot"), 9), tmp_path)


def _state(target: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in target.rglob("*") if each.is_file()}


@pytest.mark.parametrize("format", and_exhaustive(and_slow(["delta"], ["parquet"]), ["iceberg"]))
def test_tables_of_one_stream(spark: Any, tmp_path: Path, format: str) -> None:
    """A longer stream of another server or of the next slot is refused, and nothing is written."""
    first, target = tmp_path / "first", tmp_path / "lake"
    server, following = tmp_path / "server", tmp_path / "following"
    _write(first, 6)
    _write(server, 20, replace(SOURCE, system_identifier="9"))
    _write(following, 20, lsn=5000)

    def rows(source: Any, mode: Any = "append") -> int:
        (row,) = pgspark.write_tables(source, target, format=format, mode=mode)
        return int(row.rows)

    assert rows(first) == 6
    assert rows(first) == 0
    before = _state(target)
    for other in (server, following):
        with pytest.raises(ValueError, match=r"public\.orders belongs to another stream"):
            rows(other)
    assert _state(target) == before
    _write(first, 10)
    compact(first, keep=1, grace=0)
    assert rows(first) == 4
    assert rows(following, "overwrite") == 20
    assert rows(following) == 0
    _write(first, 30)
    with pytest.raises(ValueError, match=r"public\.orders belongs to another stream of slot 'slot'"):
        rows(first)


def test_a_table_of_an_earlier_version_takes_the_stream_that_comes(spark: Any, tmp_path: Path) -> None:
    """So does one that was written from tagged payloads."""
    first, following, target = tmp_path / "first", tmp_path / "following", tmp_path / "lake"
    _write(first, 6)
    _write(following, 20, lsn=5000)
    pgspark.write_tables(spark.read.parquet(str(first)), target, format="delta")
    for added in (0, 2, 0):
        (row,) = pgspark.write_tables(first, target, format="delta")
        assert row.rows == added
        with begin_run(str(target), "delta", TableOptions()) as run:
            position = run.ordinal("public.orders")
            assert position is not None
            assert position.stream == stream_at(list_segments(first), row.position)
        with pytest.raises(ValueError, match=r"public\.orders belongs to another stream"):
            pgspark.write_tables(following, target, format="delta")
        _write(first, 8)

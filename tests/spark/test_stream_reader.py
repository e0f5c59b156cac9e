"""The streaming reader as Spark calls it, by hand: what it does when tables change, and how far batches go."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

import pgoutput_fast as pgo
from pgoutput_fast.capture.retention import Consumers
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, compact, list_segments, write_segment
from pyspark_pgoutput import DefaultSource

ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
WIDER = dataclasses.replace(ORDERS, columns=(*ORDERS.columns, ColumnSpec("more", 23)))
OTHERS = RelationSpec(16402, "public", "others", (ColumnSpec("id", 23, key=True),))
PINNED = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (("_seq", "long"), ("note", "string"), ("id", "long"), ("more", "integer"))
        ],
    }
)


class Directory:
    """Segments of one transaction each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer = Writer()
        self._state: pgo.StreamState | None = None
        self._n = 0
        self.end = 0

    def add(self, relation: RelationSpec, *rows: list[str | None]) -> int:
        """Inserts; gives the position behind them."""
        self._n += 1
        wal = self._writer.begin(700 + self._n, 100 * self._n, 0)
        for row in rows:
            wal += self._writer.change(relation, "insert", new=row)
        wal += self._writer.commit(100 * self._n, 100 * self._n + 8, 0)
        tagged, self._state = pgo.tag(wal, self._state)
        write_segment(self.path, tagged, self._state, source=Source("1", "shop", "slot"))
        self.end = self._state.next_seq
        return self.end


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    directory = Directory(tmp_path)
    directory.add(ORDERS, ["1", "old"])
    return directory


def _reader(directory: Directory, schema: str | None = None, **options: str) -> Any:
    """What Spark gets from the process that plans."""
    given = CaseInsensitiveDict({"table": "public.orders", "path": str(directory.path), **options})
    source = DefaultSource(given)
    if schema is not None:
        return source.streamReader(StructType.fromJson(json.loads(schema)))
    schema = source.schema()
    return pickle.loads(cloudpickle.dumps(source)).streamReader(schema)


def _refused(given: dict[str, str]) -> Any:
    """What Spark gets if the user has given a schema. An error of `streamReader` itself would be hidden."""
    return DefaultSource(CaseInsensitiveDict(given)).streamReader(StructType.fromJson(json.loads(PINNED)))


def _rows(reader: Any, start: int, end: int) -> list[dict[str, Any]]:
    """What tasks read, in order."""
    parts = pickle.loads(pickle.dumps(reader.partitions({"seq": start}, {"seq": end})))
    task = pickle.loads(cloudpickle.dumps(reader))  # as Spark pickles it
    batches = [batch for part in parts for batch in task.read(part)]
    rows = pa.Table.from_batches(batches).to_pylist() if batches else []
    return sorted(rows, key=lambda row: row["_seq"])


def test_latest_asks_for_a_restart(directory: Directory) -> None:
    first = _reader(directory)
    assert first.initialOffset() == {"seq": 0, "began": 0}
    end = first.latestOffset()["seq"]
    assert [row["note"] for row in _rows(first, 0, end)] == ["old"]
    later = directory.add(WIDER, ["2", "new", "3"])
    with pytest.raises(
        ValueError,
        match=r"public\.orders: the relation has a newer version .*catalog \w{16}.*Restart the query",
    ):
        first.partitions({"seq": end}, {"seq": later})
    again = _reader(directory)
    assert [row["more"] for row in _rows(again, end, later)] == [3]
    # What was read before comes as before, with the new schema.
    assert [(row["note"], row["more"]) for row in _rows(again, 0, end)] == [("old", None)]
    # Other tables are no concern of the query.
    assert [row["id"] for row in _rows(again, later, directory.add(OTHERS, ["7"]))] == []


def test_a_table_that_was_made_again(directory: Directory) -> None:
    """It has another oid, so that nothing of the old one tells of it but the name."""
    latest, pinned = _reader(directory), _reader(directory, PINNED, extra_columns="drop")
    begin = directory.add(ORDERS, ["2", "last"])
    end = directory.add(dataclasses.replace(WIDER, oid=16500), ["3", "another", None])
    with pytest.raises(ValueError, match=r"public\.orders: the relation has a newer version"):
        latest.partitions({"seq": begin}, {"seq": end})
    assert [row["note"] for row in _rows(pinned, 0, end)] == ["old", "last", "another"]
    # And one that has another name from then on.
    later = directory.add(dataclasses.replace(WIDER, name="former"), ["4", "elsewhere", None])
    with pytest.raises(ValueError, match=r"public\.orders: the relation has a newer version"):
        latest.partitions({"seq": end}, {"seq": later})
    assert _rows(pinned, end, later) == []


def test_union_takes_what_fits(directory: Directory) -> None:
    union = _reader(directory, schema_mode="union")
    end = directory.add(dataclasses.replace(ORDERS, replica_identity="f"), ["2", "as before"])
    assert [row["note"] for row in _rows(union, 0, end)] == ["old", "as before"]
    later = directory.add(WIDER, ["3", "new", "3"])
    with pytest.raises(
        ValueError, match=r"does not fit into the query's schema: .*'more'.*Restart the query with a schema"
    ):
        union.partitions({"seq": end}, {"seq": later})
    chosen = _reader(Directory(directory.path), schema_mode="union", columns="note,_seq")
    latest = directory.add(dataclasses.replace(WIDER, replica_identity="f"), ["4", "chosen", None])
    assert _rows(chosen, later, latest) == [{"note": "chosen", "_seq": latest - 2}]


def test_pinned_goes_on(directory: Directory) -> None:
    pinned = _reader(directory, PINNED)
    end = directory.add(WIDER, ["2", "new", "3"])
    assert [(row["id"], row["note"], row["more"]) for row in _rows(pinned, 0, end)] == [
        (1, "old", None),
        (2, "new", 3),
    ]
    widest = dataclasses.replace(WIDER, columns=(*WIDER.columns, ColumnSpec("extra", 25)))
    later = directory.add(widest, ["3", "newer", "3", "e"])
    with pytest.raises(ValueError, match=r"does not fit into the query's schema: .*'extra'"):
        pinned.partitions({"seq": end}, {"seq": later})
    dropping = _reader(directory, PINNED, extra_columns="drop")
    assert [row["id"] for row in _rows(dropping, 0, later)] == [1, 2, 3]


def test_a_directory_as_a_uri(directory: Directory) -> None:
    end = directory.add(ORDERS, ["2", "new"])
    plain, uri = _reader(directory), _reader(directory, path=directory.path.as_uri())
    assert uri.latestOffset({"seq": 0}) == {"seq": end}
    assert _rows(uri, 0, end) == _rows(plain, 0, end)
    assert len(_rows(uri, 0, end)) == 2


@pytest.mark.parametrize("transactions", ["committed", "as_sent"])
@pytest.mark.parametrize("limit", [{}, {"max_segments": "1"}, {"max_bytes": "1"}])
def test_a_stream_goes_on_when_segments_are_joined(
    directory: Directory, transactions: str, limit: dict[str, str]
) -> None:
    """Its position may lie in the middle of a joined segment, and so may the ends of a batch that it planned."""
    for n in range(2, 7):
        directory.add(ORDERS, [str(n), "small"])
    reader = _reader(directory, transactions=transactions, **limit)
    ends = [each.last_seq + 1 for each in list_segments(directory.path)]
    assert reader.latestOffset({"seq": 0})["seq"] == (ends[0] if limit else ends[-1])
    expected = _rows(reader, ends[1], ends[3])
    assert [row["id"] for row in expected] == [3, 4]
    planned = pickle.loads(pickle.dumps(reader.partitions({"seq": ends[1]}, {"seq": ends[3]})))
    compact(directory.path, keep=1, grace=600)
    # Tasks that were planned before find their files.
    batches = [batch for part in planned for batch in reader.read(part)]
    assert sorted(pa.Table.from_batches(batches).column("id").to_pylist()) == [3, 4]
    for path in set(directory.path.glob("*.parquet")) - {each.path for each in list_segments(directory.path)}:
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"removed while the query ran, by retention or by compact"):
        list(reader.read(planned[0]))
    time.sleep(0.5)  # the grace period is longer than a listing is used
    # The same batch again, and those behind it; in this process, which has read footers, and in a new one.
    for again in (reader, _reader(directory, transactions=transactions, **limit)):
        assert _rows(again, ends[1], ends[3]) == expected
        assert again.latestOffset({"seq": ends[3]})["seq"] == (ends[4] if limit else ends[-1])
        assert [row["id"] for row in _rows(again, ends[3], ends[-1])] == [5, 6]
        assert [row["id"] for row in _rows(again, 0, ends[-1])] == [1, 2, 3, 4, 5, 6]
    directory.add(ORDERS, ["7", "later"])
    assert [row["id"] for row in _rows(reader, ends[4], directory.end)] == [6, 7]


def test_a_consumer_is_noted(directory: Directory) -> None:
    end = directory.add(ORDERS, ["2", "new"])
    _reader(directory).commit({"seq": end})
    assert Consumers(directory.path).positions() == {}
    reader = _reader(directory, consumer="lake")
    reader.initialOffset()
    assert Consumers(directory.path).positions() == {"lake": -1}
    reader.commit({"seq": end})
    assert Consumers(directory.path).positions() == {"lake": end - 1}
    # Spark asks for the beginning again if the query was killed in its first batch, and reads that batch again.
    _reader(directory, consumer="lake", starting="latest").initialOffset()
    assert Consumers(directory.path).positions() == {"lake": end - 1}
    _reader(directory, consumer="lake").initialOffset()
    assert Consumers(directory.path).positions() == {"lake": -1}


def test_the_first_batch_again(directory: Directory) -> None:
    """The query began at the end of the stream, which is elsewhere now."""
    start = _reader(directory, starting="latest").initialOffset()
    directory.add(ORDERS, ["2", "in the first batch"])
    end = _reader(directory, starting="latest").latestOffset(start)
    assert (start["began"], end["began"]) == (start["seq"], start["seq"])
    directory.add(ORDERS, ["3", "later"])
    again = _reader(directory, starting="latest")
    begins = again.initialOffset()
    assert begins["seq"] > end["seq"]
    task = pickle.loads(cloudpickle.dumps(again))
    rows = [
        row
        for part in again.partitions(begins, end)
        for batch in task.read(part)
        for row in batch.to_pylist()
    ]
    assert [row["id"] for row in rows] == [2]
    # Without a new message an offset is the same text. What follows tells the beginning, too.
    assert again.latestOffset(end)["began"] == start["seq"]
    for at in ({"seq": directory.end}, {"seq": directory.end, "began": 0}):
        assert _reader(directory).latestOffset(at) == at
    # As Spark asks before 4.2: for the end of the first batch before it asks for the beginning.
    asked = _reader(directory, starting="latest")
    end, begins = {**end, "first": start["seq"]}, asked.initialOffset()
    del end["began"]
    assert asked.latestOffset({"seq": directory.end}) == {"seq": directory.end}
    assert asked.partitions(begins, end)
    assert asked.latestOffset(begins)["seq"] == directory.end
    new = _reader(directory, starting="earliest")
    assert new.latestOffset() == {"seq": directory.end, "first": 0}
    # And behind a restart.
    older = _reader(directory, starting="latest", max_segments="1")
    older.partitions(start, {"seq": end["seq"]})
    assert older.latestOffset() == {"seq": directory.end, "began": start["seq"]}


def test_checkpoints_of_earlier_versions(directory: Directory) -> None:
    """Offsets as three versions wrote them. A transaction that lies across batches comes with its commit, once."""
    begin = directory.end
    end = directory.add(ORDERS, ["2", "a"], ["3", "b"])
    for offset in ('{"seq": %d}', '{"seq": %d, "first": 0}', '{"seq": %d, "began": 0}'):
        reader = _reader(directory)
        done, half, whole = (json.loads(offset % seq) for seq in (begin, begin + 2, end))
        assert reader.latestOffset(done)["seq"] == end
        assert [
            row
            for part in reader.partitions(done, half)
            for rows in reader.read(part)
            for row in rows.to_pylist()
        ] == []
        assert [row["id"] for row in _rows(_reader(directory), begin + 2, end)] == [2, 3]
        found = [
            row["id"] for part in reader.partitions(half, whole) for rows in reader.read(part)
            for row in rows.to_pylist()
        ]  # fmt: skip
        assert found == [2, 3]


def test_several_tables(directory: Directory) -> None:
    directory.add(OTHERS, ["7"])
    reader = _reader(directory, table="public.orders, public.others", schema_mode="union")
    end = directory.add(dataclasses.replace(OTHERS, replica_identity="n"), ["8"])
    rows = [(row["_relation"], row["public.orders"], row["public.others"]) for row in _rows(reader, 0, end)]
    assert rows == [
        ("public.orders", {"id": 1, "note": "old"}, None),
        ("public.others", None, {"id": 7}),
        ("public.others", None, {"id": 8}),
    ]


def test_how_far_a_batch_goes(directory: Directory) -> None:
    ends = [directory.end, *(directory.add(ORDERS, [str(n), "more"]) for n in range(2, 6))]

    def walk(reader: Any) -> list[int]:
        found = [reader.initialOffset()["seq"]]
        while True:
            end = reader.latestOffset({"seq": found[-1]}, None)["seq"]
            if end == found[-1]:
                return found
            found.append(end)

    assert walk(_reader(directory)) == [0, ends[-1]]
    assert walk(_reader(directory, max_segments="2")) == [0, ends[1], ends[3], ends[4]]
    assert walk(_reader(directory, max_bytes="1")) == [0, *ends]
    assert walk(_reader(directory, max_bytes=str(1 << 30))) == [0, ends[-1]]
    assert walk(_reader(directory, max_segments="3", max_bytes="1")) == [0, *ends]
    # The names of Spark's own sources.
    assert walk(_reader(directory, maxFilesPerTrigger="2")) == [0, ends[1], ends[3], ends[4]]
    assert walk(_reader(directory, max_segments="2", maxFilesPerTrigger="2")) == [
        0,
        ends[1],
        ends[3],
        ends[4],
    ]
    assert walk(_reader(directory, maxBytesPerTrigger="1b")) == [0, *ends]
    assert walk(_reader(directory, maxBytesPerTrigger="1g", max_bytes=str(1 << 30))) == [0, ends[-1]]
    assert walk(_reader(directory, startingOffsets=str(ends[1]))) == [ends[1], ends[-1]]
    assert walk(_reader(directory, startingOffsets="latest")) == [ends[-1]]
    assert walk(_reader(directory, max_segments="2", starting=str(ends[0] + 1))) == [
        ends[0] + 1,
        ends[2],
        ends[4],
    ]
    # As Spark asks before 4.2: the reader knows how far Spark is.
    old = _reader(directory, max_segments="1")
    assert old.initialOffset() == {"seq": 0, "began": 0}
    assert old.latestOffset() == {"seq": ends[0], "began": 0}
    old.partitions({"seq": 0, "began": 0}, {"seq": ends[0], "began": 0})
    assert old.latestOffset() == {"seq": ends[1], "began": 0}
    # After a restart it does not know before it was given a batch, and cannot hold to limits.
    again = _reader(directory, max_segments="1")
    assert again.latestOffset() == {"seq": ends[-1], "first": 0}
    again.partitions({"seq": ends[0]}, {"seq": ends[1]})
    assert again.latestOffset() == {"seq": ends[2]}
    # Up to what was there when it was told to take what is there.
    now = _reader(directory)
    now.prepareForTriggerAvailableNow()
    directory.add(ORDERS, ["9", "late"])
    assert walk(now) == [0, ends[-1]]
    assert _reader(directory).reportLatestOffset()["seq"] > ends[-1]


def test_how_far_a_query_is_behind(directory: Directory) -> None:
    reader = _reader(directory, max_segments="1")
    start = reader.initialOffset()
    end = directory.add(ORDERS, ["2", "more"])
    paths = [Path(each.path) for each in list_segments(directory.path)]
    first, second = (path.stat().st_size for path in paths)
    os.utime(paths[0], (time.time() - 100,) * 2)
    reader._segments.listed(fresh=True)
    begun = reader.latestOffset(start)
    latest = reader.reportLatestOffset()
    assert (latest["seq"], latest["behind_bytes"]) == (end, first + second)
    assert 100 <= latest["behind_seconds"] < 1000
    assert reader.latestOffset(begun)["seq"] == end
    assert reader.reportLatestOffset()["behind_bytes"] == second
    reader.latestOffset({"seq": end})
    assert reader.reportLatestOffset() == {"seq": end, "behind_bytes": 0, "behind_seconds": 0}


def test_limits_of_spark(directory: Directory) -> None:
    streaming = pytest.importorskip("pyspark.sql.streaming.datasource")
    ends = [directory.add(ORDERS, [str(n), "more"]) for n in range(2, 6)]
    both = _reader(directory, max_segments="2", max_bytes="1000000000")
    assert both.getDefaultReadLimit() == streaming.ReadMaxFiles(2)
    assert both.latestOffset({"seq": 0}, streaming.ReadMaxFiles(1))["seq"] < ends[0]
    assert both.latestOffset({"seq": 0}, streaming.ReadMaxFiles(2)) == {"seq": ends[0]}
    assert both.latestOffset({"seq": 0}, streaming.ReadMaxBytes(1))["seq"] < ends[0]
    assert both.latestOffset({"seq": 0}, streaming.ReadAllAvailable()) == {"seq": ends[-1]}
    assert _reader(directory, max_bytes="5").getDefaultReadLimit() == streaming.ReadMaxBytes(5)
    assert _reader(directory).getDefaultReadLimit() == streaming.ReadAllAvailable()


def test_segments_that_are_not_those(directory: Directory, tmp_path: Path) -> None:
    end = directory.add(ORDERS, ["2", "more"])
    with pytest.raises(ValueError, match=rf"taken messages up to {end}, but the segments end at {end - 1}"):
        _reader(directory).latestOffset({"seq": end + 1})
    reader = _reader(directory)
    reader._resolved.given["slot"] = "another"
    with pytest.raises(ValueError, match="has segments of slot slot, not of slot another"):
        reader.partitions({"seq": 0}, {"seq": end})
    assert reader.partitions({"seq": end}, {"seq": end}) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"starting": "now"}, "starting must be earliest, latest or"),
        ({"max_segments": "0"}, "max_segments must be a number"),
        ({"slot": "s"}, "option slot needs the option dsn"),
        ({"dsn": "", "slot": "s"}, "needs the option publication"),
        (
            {"dsn": "", "slot": "s", "publication": "p", "capture": '{"colour": 1}'},
            "option capture must be a JSON",
        ),
        ({"starting": "1000"}, "option starting is 1000, but the segments have messages 0 to"),
        ({"startingOffsets": "1000"}, "option startingOffsets is 1000, but the segments have messages 0 to"),
    ],
)
def test_options_that_are_wrong(directory: Directory, options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _reader(directory, PINNED if "dsn" in options else None, **options).initialOffset()


def test_options_of_one_side_only(directory: Directory) -> None:
    given = {"table": "public.orders", "path": str(directory.path)}
    for option, word in (("max_segments", "max_segments"), ("MAXBYTESPERTRIGGER", "maxBytesPerTrigger")):
        source = DefaultSource(CaseInsensitiveDict({**given, option: "1"}))
        with pytest.raises(ValueError, match=rf"spark\.read has no option {word}: use spark\.readStream"):
            source.reader(source.schema())
    with pytest.raises(ValueError, match=r"has no option endingOffsets: use spark\.read"):
        _refused({**given, "endingOffsets": "latest"}).initialOffset()
    with pytest.raises(ValueError, match=r"has no option mode: use spark\.read"):
        _refused({"mode": "snapshot"}).initialOffset()
    with pytest.raises(ValueError, match="a stream reads one directory"):
        _refused({"table": "public.orders", "paths": json.dumps([str(directory.path)])}).initialOffset()


WRONG = [
    ({"Starting": "now"}, "option starting must be earliest, latest or"),
    ({"max_segments": "0"}, "option max_segments must be a number"),
    ({"max_bytes": "1 MB"}, "option max_bytes must be a number"),
    ({"startingOffsets": "now"}, "option startingOffsets must be earliest, latest or"),
    ({"maxFilesPerTrigger": "0"}, "option maxFilesPerTrigger must be a number"),
    ({"maxFilesPerTrigger": "99999999999"}, "option maxFilesPerTrigger must be a number"),
    ({"maxBytesPerTrigger": "many"}, "option maxBytesPerTrigger must be a number of bytes, such as"),
    (
        {"maxFilesPerTrigger": "2", "max_segments": "3"},
        "options max_segments and maxFilesPerTrigger are one option with two values",
    ),
    ({"starting": "0", "StartingOffsets": "earliest"}, "options starting and startingOffsets are one option"),
    ({"publication": "p"}, "option publication needs the option dsn"),
    ({"dsn": "", "slot": "s"}, "needs the option publication"),
    (
        {"max_segments": "1", "path": "/segments/*.parquet"},
        r"one directory, and /segments/\*\.parquet is a pattern",
    ),
    ({"max_segments": "1", "path": "s3://k:v@b/[ab]"}, r"one directory, and s3://b/\[ab\] is a pattern"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
@pytest.mark.parametrize("emit", ["rows", "files"])
def test_what_is_wrong_is_said_at_once(
    directory: Directory, options: dict[str, str], message: str, emit: str
) -> None:
    """`load` says it. With a schema of the user, Spark asks only for the reader, and hides what is wrong with it."""
    given = {"path": str(directory.path), "emit": emit, **options}
    if emit == "rows":
        given["table"] = "public.orders"
    with pytest.raises(ValueError, match=message):
        DefaultSource(CaseInsensitiveDict(given)).schema()
    reader = pickle.loads(cloudpickle.dumps(_refused(given)))
    for ask in (
        reader.initialOffset,
        reader.latestOffset,
        reader.getDefaultReadLimit,
        reader.prepareForTriggerAvailableNow,
        lambda: reader.partitions({}, {}),
        lambda: reader.read(None),
    ):
        with pytest.raises(ValueError, match=message):
            ask()
    reader.stop()


@pytest.mark.parametrize("path", ["{0}/*.parquet", "{0}/*"])
def test_a_pattern_without_other_options(directory: Directory, path: str) -> None:
    """Only the reader knows that it is a stream."""
    with pytest.raises(ValueError, match="is a pattern: pass the directory's path"):
        _reader(directory, path=path.format(directory.path)).initialOffset()

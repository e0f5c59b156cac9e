"""What a segment knows of relations: its cost follows what is new, and whatever lies beside it is there or missed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import retain
from pgoutput_fast.capture.recorder import Limits, Recorder
from pgoutput_fast.capture.segment_directory import SegmentDirectory
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.postgres.walsender import Received
from pgoutput_fast.segments import (
    Source,
    footer,
    list_segments,
    open_segment,
    read,
    read_segment,
    segment_catalog,
    write_segment,
)
from pgoutput_fast.segments import catalog as segment_catalogs
from pgoutput_fast.segments import write as segments
from pgoutput_fast.storage.paths import find_files
from support.paths import TESTS

SOURCE = Source("7300000000000000001", "shop", "slot", ("all",), {"proto_version": "4"})
CATALOG_DIRECTORY = segment_catalogs.CATALOG_DIRECTORY


def _table(oid: int, columns: int = 3, name: str | None = None) -> RelationSpec:
    names = ["id", *(f"a_column_with_a_name_{k}" for k in range(1, columns))]
    return RelationSpec(
        oid, "public", name or f"t{oid}", tuple(ColumnSpec(each, 25, key=each == "id") for each in names)
    )


class _Server:
    """Sends plain transactions: a row for each table, described where it is new to the session."""

    def __init__(self) -> None:
        self.writer, self._lsn = Writer(4), 100

    def transaction(self, tables: Sequence[RelationSpec], value: str = "x") -> list[bytes]:
        self._lsn += 100
        wal = list(self.writer.begin(7, self._lsn, 0))
        for spec in tables:
            wal += self.writer.change(spec, "insert", new=[value, *[None] * (len(spec.columns) - 1)])
        return wal + list(self.writer.commit(self._lsn, self._lsn + 8, 0))


def _received(wal: list[bytes], *, starts_session: bool = False) -> Received:
    lsns = pa.array([0] * len(wal), pa.int64())
    return Received(pa.array(wal, pa.binary()), lsns, sum(map(len, wal)), starts_session)


def _write(directory: Path, pieces: Sequence[list[bytes]]) -> list[tuple[Path, pgo.StreamState]]:
    found, state = [], None
    for piece in pieces:
        tagged, state = pgo.tag(piece, state)
        path = write_segment(directory, tagged, state, source=SOURCE)
        found.append((Path(path), state))
    return found


def _values(path: Path) -> list[tuple[str, Any]]:
    """(relation, id) of what a segment has, read by nothing but its path."""
    decoded = pgo.decode_tagged(
        read_segment(path).combine_chunks().to_batches()[0], segment_catalog(path), pgo.Options()
    )
    return [
        (each.relation.qualified_name, value)
        for each in decoded.changes
        for value in each.batch.column("id").to_pylist()
    ]


def _footer(path: Path) -> dict[str, Any]:
    found = pq.read_metadata(path).metadata
    return {key.decode().split(".", 1)[1]: json.loads(value) for key, value in found.items() if b"." in key}


@pytest.fixture
def _little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_catalogs, "INLINE_BYTES", 2000)


@pytest.mark.usefixtures("_little_room")
def test_what_lies_beside_a_segment_reads_as_if_it_were_inside(tmp_path: Path) -> None:
    server = _Server()
    tables = [_table(20000 + k) for k in range(60)]
    pieces = [server.transaction(tables[k : k + 3] + tables[:1], str(k)) for k in range(57)]
    (tmp_path / "a").mkdir()
    written = _write(tmp_path / "a", pieces)
    formats = [_footer(path)["format"] for path, _ in written]
    assert formats == sorted(formats)
    assert set(formats) == {1, 2}
    # Moved, it is the same; and a writer that knows nothing of what was there goes on.
    moved = tmp_path / "b"
    (tmp_path / "a").rename(moved)
    for k, (path, state) in enumerate(written):
        segment = open_segment(moved / path.name)
        assert segment.state == state
        assert segment.catalog == state.catalog
        assert segment.open_txns == state.open_txns
        assert ("public.t20000", str(k)) in _values(moved / path.name)
    assert [Path(each.path).name for each in find_files(moved)] == [path.name for path, _ in written]
    assert len(segment_catalog(moved)) == 60 - 1
    rest = server.transaction([tables[59], tables[0]], "then")
    tagged, state = pgo.tag(rest, open_segment(moved / written[-1][0].name).state)
    path = Path(write_segment(moved, tagged, state, source=SOURCE))
    assert open_segment(path).state == state
    assert list_segments(moved)[-1].catalog == state.catalog


@pytest.mark.slow
def test_no_footer_grows_with_the_number_of_tables(tmp_path: Path) -> None:
    """Readers refuse a footer with a text of 100 MB."""
    server, tables = _Server(), [_table(20000 + k, 100) for k in range(200)]
    pieces = [server.transaction(tables[k : k + 20]) for k in range(0, 200, 20)]
    written = _write(tmp_path, [*pieces, server.transaction(tables[:1])])
    for path, state in written:
        texts = pq.read_metadata(path).metadata
        assert max(map(len, texts.values())) < 2 * segment_catalogs.INLINE_BYTES
        assert open_segment(path).state == state
    assert written[-1][0].stat().st_size < 2 * segment_catalogs.INLINE_BYTES


def test_a_segment_costs_what_is_new_in_it(tmp_path: Path) -> None:
    costs = {}
    for count in (10, 600):
        server, tables = _Server(), [_table(20000 + k, 100) for k in range(count)]
        directory = tmp_path / str(count)
        with (target := SegmentDirectory(directory)).owned():
            target.newest()
            with Recorder(target, SOURCE, None, 0, Limits(rows=1)) as recorder:
                recorder.offer(_received(server.transaction(tables)), 100)
                recorder.make_durable()
                found = []
                for _ in range(12):
                    received = _received(server.transaction(tables[:1]))
                    begun = time.process_time()
                    recorder.offer(received, 100)
                    recorder.make_durable()
                    found.append(time.process_time() - begun)
        costs[count] = min(found[2:])
        assert len(list_segments(directory)[-1].catalog) == count
    assert costs[600] < 8 * costs[10], costs


@pytest.mark.usefixtures("_little_room")
def test_a_part_that_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    server = _Server()
    path, _ = _write(tmp_path, [server.transaction([_table(20000 + k) for k in range(60)])])[0]
    (part,) = (tmp_path / CATALOG_DIRECTORY).iterdir()
    whole = part.read_bytes()
    part.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match=f"{part.name}, is damaged.*Restore it"):
        segment_catalog(path)
    part.unlink()
    assert open_segment(path).last_seq > 0
    with pytest.raises(ValueError, match=f"{part.name}, is missing. Restore it"):
        segment_catalog(tmp_path)
    part.write_bytes(whole)
    assert len(segment_catalog(path)) == 60


@pytest.mark.usefixtures("_little_room")
def test_a_part_that_went_missing_under_a_writer_is_written_again(tmp_path: Path) -> None:
    server, tables = _Server(), [_table(20000 + k) for k in range(60)]
    with (target := SegmentDirectory(tmp_path)).owned():
        target.newest()
        with Recorder(target, SOURCE, None, 0, Limits(rows=1)) as recorder:
            recorder.offer(_received(server.transaction(tables)), 100)
            recorder.make_durable()
            shutil.rmtree(tmp_path / CATALOG_DIRECTORY)
            recorder.offer(_received(server.transaction(tables[:1])), 100)
            recorder.make_durable()
    newest = list_segments(tmp_path)[-1]
    assert len(newest.catalog) == 60
    assert _values(Path(newest.path)) == [("public.t20000", "x")]


def test_what_cannot_be_read_back_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, write = _Server(), segments.write_rows

    def damaged(file: Any, *rest: Any, **more: Any) -> None:
        write(file, *rest, **more)
        file.truncate(file.tell() - 3)

    with (target := SegmentDirectory(tmp_path)).owned():
        target.newest()
        recorder = Recorder(target, SOURCE, None, 0, Limits(rows=1))
        with recorder:
            recorder.offer(_received(server.transaction([_table(20000)])), 100)
            recorder.make_durable()
            durable = recorder.durable_lsn
            monkeypatch.setattr(segments, "write_rows", damaged)
            recorder.offer(_received(server.transaction([_table(20000)])), 100)
            with pytest.raises(OSError, match="cannot be read back"):
                recorder.make_durable()
            assert recorder.durable_lsn == durable
            recorder._error = None
    assert len(list_segments(tmp_path)) == 1
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".0")] == []


def test_a_state_that_no_footer_has_room_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footer, "_MOST_TEXT", 100)
    tagged, state = pgo.tag(_Server().transaction([_table(20000)]))
    with pytest.raises(ValueError, match=r"messages 0 to 3 cannot be written: its .* has .* can have 100"):
        write_segment(tmp_path, tagged, state, source=SOURCE)
    assert find_files(tmp_path) == []


@pytest.mark.slow
@pytest.mark.usefixtures("_little_room")
def test_versions_that_no_row_can_be_of_are_left_out(tmp_path: Path) -> None:
    """One table altered 200 times in a session: each segment is read, and what is known stays small."""
    server = _Server()
    with (target := SegmentDirectory(tmp_path)).owned():
        target.newest()
        with Recorder(target, SOURCE, None, 0, Limits(rows=1)) as recorder:
            for k in range(200):
                table = RelationSpec(20000, "public", "t", (ColumnSpec("id", 25), ColumnSpec(f"c{k}", 25)))
                recorder.offer(_received(server.transaction([table], str(k))), 100)
                recorder.make_durable()
    found = list_segments(tmp_path)
    for k in (0, 1, 100, 198, 199):
        assert _values(Path(found[k].path)) == [("public.t", str(k))]
    assert len(found[-1].catalog) < 100
    assert len(segment_catalog(tmp_path)) == 200


@pytest.mark.usefixtures("_little_room")
def test_retention_takes_parts_that_no_segment_needs(tmp_path: Path) -> None:
    server = _Server()
    tables = [_table(20000 + k) for k in range(300)]
    written = _write(tmp_path, [server.transaction(tables[k : k + 6], str(k)) for k in range(0, 300, 6)])
    before = len(list((tmp_path / CATALOG_DIRECTORY).iterdir()))
    for path, _ in written[:-3]:
        os.utime(path, (1, 1))
    assert len(retain(tmp_path, older_than=3600)) == len(written) - 3
    left = {path.name for path in (tmp_path / CATALOG_DIRECTORY).iterdir()}
    assert left == {part.name for each in list_segments(tmp_path) for part in each.known.parts}
    assert len(left) < before
    for path, state in written[-3:]:
        assert open_segment(path).state == state


@pytest.mark.usefixtures("_little_room")
def test_a_session_begins_without_what_outgrew_the_footer(tmp_path: Path) -> None:
    server, tables = _Server(), [_table(20000 + k) for k in range(60)]
    with (target := SegmentDirectory(tmp_path)).owned():
        target.newest()
        with Recorder(target, SOURCE, None, 0, Limits(rows=1)) as recorder:
            recorder.offer(_received(server.transaction(tables)), 100)
            recorder.make_durable()
        # Another process, which is sent a table anew; and then a session begins with rows that wait for a segment.
        newest = target.newest()
        assert newest is not None
        again = _Server()
        with Recorder(target, SOURCE, newest.state, 200, Limits(rows=1)) as recorder:
            recorder.offer(_received(again.transaction(tables[:1], "again")), 100)
            recorder.make_durable()
            assert {each.name for each in list_segments(tmp_path)[-1].catalog.relations} == {"t20000"}
            recorder.offer(_received(again.transaction(tables)), 100)
            recorder.make_durable()
        newest = target.newest()
        assert newest is not None
        assert len(newest.catalog) == 60
        with Recorder(target, SOURCE, newest.state, 200, Limits()) as recorder:
            for session in range(3):
                each = _Server().transaction(tables[session : session + 1], f"session {session}")
                recorder.offer(_received(each, starts_session=session > 0), 100)
    last = list_segments(tmp_path)[-1]
    assert _values(Path(last.path)) == [(f"public.t{20000 + k}", f"session {k}") for k in range(3)]
    assert len(segment_catalog(tmp_path)) == 60


@pytest.mark.usefixtures("_little_room")
def test_what_a_prepared_transaction_described_is_not_forgotten(tmp_path: Path) -> None:
    server, tables = _Server(), [_table(20000 + k) for k in range(60)]
    writer = Writer(4, streaming="on", two_phase=True)
    streamed = list(writer.stream_start(900)) + list(
        writer.change(_table(30000, name="s"), "insert", new=["1", None, None], xid=900)
    )
    streamed += list(writer.stream_stop()) + list(writer.stream_prepare(900, 5000, 5008, 0, "gid"))
    with (target := SegmentDirectory(tmp_path)).owned():
        target.newest()
        with Recorder(target, SOURCE, None, 0, Limits(rows=1)) as recorder:
            recorder.offer(_received(server.transaction(tables)), 100)
            recorder.offer(_received(streamed), 100)
            recorder.make_durable()
        newest = target.newest()
        assert newest is not None
        assert newest.known.parts
        with Recorder(target, SOURCE, newest.state, 200, Limits(rows=1)) as recorder:
            recorder.offer(_received(_Server().transaction(tables[:1])), 100)
            recorder.make_durable()
    last = list_segments(tmp_path)[-1]
    assert last.open_txns == newest.open_txns != []
    assert {each.name for each in last.catalog.relations} == {"s", "t20000"}


def test_segments_of_before_are_gone_on_from(tmp_path: Path) -> None:
    """A directory whose footers hold all there is, however much that is."""
    server, tables = _Server(), [_table(20000 + k, 100) for k in range(80)]
    tagged, state = pgo.tag(server.transaction(tables))
    document = json.loads(state.to_json())
    catalog = document.pop("catalog")
    last = state.next_seq - 1
    values = {
        "format": 1, "source": SOURCE.to_dict(), "first_seq": 0, "last_seq": last, "start_lsn": None,
        "end_lsn": 208, "catalog": catalog, "state": document,
    }  # fmt: skip
    path = tmp_path / f"{0:020}-{last:020}.parquet"
    with pq.ParquetWriter(path, pgo.TAGGED_SCHEMA) as writer:
        writer.write_batch(tagged)
        writer.add_key_value_metadata({f"pgoutput_fast.{k}": json.dumps(v) for k, v in values.items()})
    assert open_segment(path).state == state
    with (target := SegmentDirectory(tmp_path)).owned():
        newest = target.newest()
        assert newest is not None
        with Recorder(target, SOURCE, newest.state, 208, Limits(rows=1)) as recorder:
            recorder.offer(_received(server.transaction(tables[:1], "then")), 100)
            recorder.make_durable()
    segment = list_segments(tmp_path)[-1]
    assert segment.known.parts
    assert segment.first_seq == last + 1
    assert segment.catalog == state.catalog
    assert _values(Path(segment.path)) == [("public.t20000", "then")]


def test_how_much_a_footer_may_have_is_ours_to_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier versions wrote footers beyond the 100 MB that Arrow reads unless it is told otherwise."""
    assert read.MOST_READ > 2 * 100_000_000
    tagged, state = pgo.tag(_Server().transaction([_table(20000)]))
    path = Path(write_segment(tmp_path, tagged, state, source=SOURCE))
    monkeypatch.setattr(read, "MOST_READ", 100)
    for reader in (open_segment, read_segment):
        with pytest.raises((ValueError, OSError), match=r"(?i)limit|damaged"):
            reader(path)
    monkeypatch.undo()
    assert open_segment(path).state == state


_KILLED = """
import sys
import pgoutput_fast as pgo
from pgoutput_fast.segments import catalog as segment_catalogs
from pgoutput_fast.capture.recorder import Limits, Recorder
from pgoutput_fast.capture.segment_directory import SegmentDirectory
from segments.test_catalog import SOURCE, _Server, _received, _table

segment_catalogs.INLINE_BYTES = 1000
target = SegmentDirectory(sys.argv[1])
with target.owned():
    newest = target.newest()
    state = None if newest is None else newest.state
    begin = 0 if state is None else state.next_seq
    server = _Server()
    with Recorder(target, SOURCE, state, 0, Limits(rows=1)) as recorder:
        for k in range(100_000):
            recorder.offer(_received(server.transaction([_table(20000 + (begin + k) % 5000)], str(k))), 100)
            recorder.make_durable()
            if k == 0:
                print("wrote", flush=True)
"""


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_what_another_goes_on_from(tmp_path: Path) -> None:
    moment = random.Random(11)
    into = tmp_path / "segments"
    last = -1
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", _KILLED, str(into)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        )
        assert process.stdout is not None
        # On a loaded machine nothing but the first segment may be there at that moment.
        assert process.stdout.readline() == b"wrote\n"
        time.sleep(0.2 + moment.random() / 2)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        found = list_segments(into)
        assert found[-1].last_seq > last
        last = found[-1].last_seq
        assert all(len(each.catalog) for each in found)
    with (target := SegmentDirectory(into)).owned():
        target.newest()
    names = {path.name for path in (into / CATALOG_DIRECTORY).iterdir()}
    assert names >= {part.name for each in found for part in each.known.parts}
    assert all(int(name[:20]) <= last for name in names)
    for each in random.Random(3).sample(found, min(20, len(found))):
        assert len(_values(Path(each.path))) == 1

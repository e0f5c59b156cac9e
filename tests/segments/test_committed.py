"""Changes of segments in the order of the commits, however the stream is cut, and while segments are joined."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import committed as module
from pgoutput_fast.segments import compact, read_segment, write_segment
from pgoutput_fast.segments.committed import CommittedChanges
from pgoutput_fast.segments.names import named_segments
from pgoutput_fast.segments.read import open_segment
from pgoutput_fast.storage.stores import Store, open_store
from support.forms import and_exhaustive, and_slow
from support.oracle import plain_records
from support.segment_streams import SOURCE, cut_stream
from support.streams import ENRICHED, RandomChoices, make_stream

ITEMS = RelationSpec(16401, "public", "items", (ColumnSpec("id", 23, key=True),))


def _insert(writer: Writer, *ids: int, xid: int | None = None) -> list[bytes]:
    return [message for n in ids for message in writer.change(ITEMS, "insert", new=[str(n)], xid=xid)]


def _commit(writer: Writer, xid: int, *ids: int) -> list[bytes]:
    begin = writer.begin(xid, 100 * xid, 0)
    return begin + _insert(writer, *ids) + writer.commit(100 * xid, 100 * xid + 8, 0)


class _Reader:
    """Reads the changes of a directory as a mirror does: it knows the last message that it has read."""

    def __init__(self, store: Store, options: pgo.Options | None = None) -> None:
        self.read = -1
        self.released: list[tuple[pa.RecordBatch, pgo.Catalog]] = []
        self._store, self._options = store, options or pgo.Options()
        self.restart()

    def rows(self) -> pa.Table:
        decoded = [pgo.decode_tagged(*each) for each in self.released]
        return pa.Table.from_batches([change.batch for each in decoded for change in each.changes])

    def restart(self) -> None:
        self.changes = CommittedChanges(self._store, self._options)
        self.changes.resume([each for each in named_segments(self._store) if each.last_seq <= self.read])

    def take(self) -> None:
        for each in named_segments(self._store):
            if each.last_seq > self.read:
                path = self._store.at(each.name)
                state = open_segment(path).state
                self.released += self.changes.of(read_segment(path), state, self.read)
                self.read = each.last_seq


def _rows(decoded: list[pgo.Decoded]) -> dict[int, list[str]]:
    """{relation version: its changes, in the order of the commits}."""
    rows: dict[int, list[str]] = {}
    for each in decoded:
        for change in each.changes:
            own = rows.setdefault(change.relation.version, [])
            own += map(repr, plain_records(pa.Table.from_batches([change.batch])))
    return rows


@pytest.mark.parametrize("seed", and_exhaustive(and_slow(range(4), range(4, 8)), range(8, 20)))
def test_they_are_the_committed_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Of random streams, cut anywhere and read by processes that end anywhere."""
    dice = random.Random(seed)
    # Some transactions are released in pieces, and wait in files.
    monkeypatch.setattr(module, "_PIECE_ROWS", dice.choice([1, 5, 1 << 16]))
    options = pgo.Options(on_error="quarantine", memory_limit=dice.choice([1, 1 << 20]))
    stream = make_stream(RandomChoices(seed), steps=40)
    size = len(stream.payloads)
    (tmp_path / "all").mkdir()
    paths = cut_stream(
        tmp_path / "all", stream, {dice.randrange(1, size) for _ in range(dice.choice([2, 10]))}, ENRICHED
    )
    directory = tmp_path / "grown"
    directory.mkdir()
    reader = _Reader(open_store(directory), options)
    for path in paths:
        shutil.copy2(path, directory)
        before = reader.read, len(reader.released)
        reader.take()
        if dice.random() < 0.4:
            # It died before it could save what it read.
            reader.read = before[0]
            del reader.released[before[1] :]
            reader.restart()
            reader.take()
        elif dice.random() < 0.4:
            reader.restart()
        # Void transactions do not wait for ever.
        waiting = reader.changes._reorder_buffer.waiting.keys()
        assert waiting <= set(open_segment(path).state.open_txns)
    decoder = pgo.Decoder(pgo.Options(transactions="committed", on_error="quarantine"), catalog=ENRICHED)
    expected: list[pgo.Decoded] = []
    ends = sorted({*stream.sessions, size})
    for begin, end in zip([0, *ends], ends, strict=False):
        if begin in stream.sessions:
            decoder.start_session()
        if begin < end:
            expected.append(decoder.decode(stream.payloads[begin:end], lsn=stream.lsns[begin:end]))
    released = [pgo.decode_tagged(*each, options) for each in reader.released]
    assert _rows(released) == _rows(expected)
    assert sum(each.rejects.num_rows for each in released) == sum(each.rejects.num_rows for each in expected)


def test_a_large_transaction_is_released_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamed over many segments, with a part that is rolled back, and with small transactions between."""
    monkeypatch.setattr(module, "_PIECE_ROWS", 500)
    writer, state = Writer(4, streaming="on"), None

    parts = []
    for n in range(10):
        block = writer.stream_start(900)
        for k in range(400):
            block += _insert(writer, 1000 * n + k, xid=900 + k % 2)
        parts.append(block + writer.stream_stop() + _commit(writer, n + 1, -n - 1))
    end = writer.stream_abort(900, 901) + writer.stream_commit(900, 6000, 6008, 0)
    parts.append(_commit(writer, 50, -50) + end + _commit(writer, 70, -70))
    for part in parts:
        tagged, state = pgo.tag(part, state)
        write_segment(tmp_path, tagged, state, source=SOURCE)
    spill = str(tmp_path / "spill")
    reader = _Reader(open_store(tmp_path), pgo.Options(memory_limit=50_000, spill_directory=spill))
    reader.take()
    assert max(batch.num_rows for batch, _ in reader.released) <= 1000
    rows = reader.rows()
    large = [1000 * n + k for n in range(10) for k in range(0, 400, 2)]
    assert rows.column("id").to_pylist() == [*range(-1, -11, -1), -50, *large, -70]
    lsns = [*range(100, 1100, 100), 5000, *[6000] * len(large), 7000]
    assert rows.column("_commit_lsn").to_pylist() == lsns


@pytest.mark.parametrize("done", [0, 1, 3, 5])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_joined_segment_that_was_read_in_part(tmp_path: Path, done: int, restarts: bool) -> None:
    """Transactions are open where the reader is. So the reader has their first changes already."""
    writer, state = Writer(4, streaming="on"), None
    reader = _Reader(open_store(tmp_path))
    for n in range(6):
        part = writer.commit(3000, 3008, 0) if n == 4 else []
        part += _commit(writer, 20 + n, n) + writer.stream_start(7) + _insert(writer, 100 + n, xid=7)
        part += (_insert(writer, 900, xid=9) if n == 0 else []) + writer.stream_stop()
        if n == 2:
            part += writer.stream_start(8) + _insert(writer, 500, xid=8) + writer.stream_stop()
        if n == 3:
            part += writer.begin(30, 3000, 0) + _insert(writer, 30)
        if n == 4:
            part += writer.stream_commit(8, 2450, 2458, 0) + writer.stream_abort(7, 9)
        if n == 5:
            part += writer.stream_commit(7, 2600, 2608, 0)
        tagged, state = pgo.tag(part, state)
        write_segment(tmp_path, tagged, state, source=SOURCE, end_lsn=100 * (n + 1))
        if n == done - 1:
            reader.take()
    assert compact(tmp_path, keep=1).joined == 5
    if restarts:
        reader.restart()
    reader.take()
    assert reader.rows().column("id").to_pylist() == [0, 1, 2, 3, 30, 4, 500, 5, *range(100, 106)]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_partitions_of_changes(tmp_path: Path, is_streamed: bool, restarts: bool) -> None:
    """However the segments are cut. A table that is described for its own change, or before TRUNCATE, is none."""
    root = (ITEMS, *(RelationSpec(16401 + n, "public", f"p{n}", ITEMS.columns) for n in (1, 2, 3)))
    writer, xid = Writer(4, streaming="on"), 900 if is_streamed else None
    payloads = writer.stream_start(900) if is_streamed else writer.begin(900, 100, 0)
    described = [writer.change(each, "insert", new=["0"], xid=xid)[0] for each in root]
    payloads += [described[0], described[1], *_insert(writer, 1, xid=xid), *_insert(writer, 2, xid=xid)]
    payloads += [described[0], described[2], *_insert(writer, 3, xid=xid)]
    payloads += [described[0], described[3], *writer.truncate([root[3], ITEMS], xid=xid)]
    payloads += [described[2], *writer.change(root[2], "insert", new=["4"], xid=xid)]
    if is_streamed:
        payloads += writer.stream_stop() + writer.stream_commit(900, 100, 108, 0)
    else:
        payloads += writer.commit(100, 108, 0)
    for cut in range(len(payloads)):
        directory = tmp_path / str(cut)
        directory.mkdir()
        store, state = open_store(directory), None
        changes, found = CommittedChanges(store, pgo.Options()), []
        for part in (payloads[:cut], payloads[cut:]):
            tagged, state = pgo.tag(part, state)
            if not part:
                continue
            if restarts:
                changes = CommittedChanges(store, pgo.Options())
                changes.resume(named_segments(store))
            path = write_segment(directory, tagged, state, source=SOURCE)
            for batch, _ in changes.of(read_segment(path), state):
                found += changes.partitions_of(batch)
        assert [(oid, leaf.oid, lsn) for oid, leaf, lsn in found] == [
            (16401, 16402, 100),
            (16401, 16403, 100),
        ], cut
        assert not changes._described


def test_long_batches_are_not_copied(tmp_path: Path) -> None:
    """The rows that waited come first, in a batch of their own. Many short batches become one."""
    writer = Writer()
    begun = writer.begin(7, 100, 0) + writer.change(ITEMS, "insert", new=["0"])
    more = [each for n in range(1, 9000) for each in writer.change(ITEMS, "insert", new=[str(n)])]
    tagged, state = pgo.tag(begun)
    behind, last = pgo.tag([*more, *writer.commit(100, 108, 0)], state)
    short = [behind.slice(at, 10) for at in range(0, behind.num_rows, 10)]
    for given, copied in (([behind], False), (short, True)):
        changes = CommittedChanges(open_store(tmp_path), pgo.Options())
        assert list(changes.of(pa.Table.from_batches([tagged]), state)) == []
        rows = pa.Table.from_batches(given)
        there = {chunk.buffers()[2].address for chunk in rows.column("payload").chunks}
        batches = [batch for batch, _ in changes.of(rows, last)]
        assert [each.num_rows for each in batches] == ([9000] if copied else [1, 8999])
        assert (batches[-1].column("payload").buffers()[2].address in there) != copied
        seqs = [seq for batch in batches for seq in batch.column("seq").to_pylist()]
        assert seqs == [
            row["seq"] for each in (tagged, behind) for row in each.to_pylist() if row["kind"] == ord("I")
        ]

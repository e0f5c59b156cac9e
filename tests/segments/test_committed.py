"""Changes of segments in the order of the commits, while segments are joined."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, compact, read_segment, write_segment
from pgoutput_fast.segments.committed import CommittedChanges
from pgoutput_fast.segments.names import named_segments
from pgoutput_fast.segments.read import open_segment
from pgoutput_fast.storage.stores import Store, open_store

SOURCE = Source("1", "shop", "slot")
ITEMS = RelationSpec(16401, "public", "items", (ColumnSpec("id", 23, key=True),))


class _Reader:
    """Reads the changes of a directory as a mirror does: it knows the last message that it has read."""

    def __init__(self, store: Store) -> None:
        self.read, self.released = -1, list[int]()
        self._store = store
        self.restart()

    def restart(self) -> None:
        self._changes = CommittedChanges(self._store, pgo.Options())
        self._changes.resume([each for each in named_segments(self._store) if each.last_seq <= self.read])

    def take(self) -> None:
        for each in named_segments(self._store):
            if each.last_seq > self.read:
                path = self._store.at(each.name)
                state = open_segment(path).state
                for batch, _ in self._changes.of(read_segment(path), state, self.read):
                    self.released += batch.column("seq").to_pylist()
                self.read = each.last_seq


@pytest.mark.parametrize("restarts", [False, True])
def test_a_joined_segment_that_was_read_in_part(tmp_path: Path, restarts: bool) -> None:
    """A transaction is open where the reader is. So the reader has its first changes already."""
    writer = Writer(4, streaming="on")

    def insert(*ids: int, xid: int | None = None) -> list[bytes]:
        return [each for n in ids for each in writer.change(ITEMS, "insert", new=[str(n)], xid=xid)]

    parts = [
        [*writer.stream_start(9), *insert(1, 2, xid=9), *insert(3, xid=10), *writer.stream_stop()],
        [*writer.stream_start(9), *insert(4, xid=9), *writer.stream_stop(), *writer.stream_abort(9, 10)],
        [*writer.stream_commit(9, 100, 108, 0), *writer.begin(11, 200, 0), *insert(5)],
        writer.commit(200, 208, 0),
    ]
    expected = [
        row["seq"]
        for row in pgo.tag([message for part in parts for message in part])[0].to_pylist()
        if row["kind"] == ord("I") and row["payload"][-1:] != b"3"
    ]
    store, state = open_store(tmp_path), None
    reader = _Reader(store)
    for n, part in enumerate(parts):
        tagged, state = pgo.tag(part, state)
        write_segment(tmp_path, tagged, state, source=SOURCE, end_lsn=100 * (n + 1))
        if n == 0:
            reader.take()
    assert compact(tmp_path, keep=1)
    if restarts:
        reader.restart()
    reader.take()
    assert reader.released == expected
    assert len(expected) == 4


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

"""Where a capture writes, before it goes on from what is there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import segment_directory
from pgoutput_fast.encode import Writer
from pgoutput_fast.segments import Source
from pgoutput_fast.storage.lease import lock_file


def test_what_is_there_is_durable_before_it_is_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A predecessor may have been killed between renaming a segment and the fsync of its directory."""
    happened: list[str] = []
    fsync, newest = os.fsync, segment_directory.newest_segment

    def see(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), tmp_path.stat()):
            assert lock_file(tmp_path / ".lock") is None, "until then the predecessor may still write"
            happened.append("fsync")
        fsync(descriptor)

    def look(directory: str | os.PathLike[str]) -> object:
        happened.append("looked")
        return newest(directory)

    monkeypatch.setattr(os, "fsync", see)
    monkeypatch.setattr(segment_directory, "newest_segment", look)
    into = segment_directory.SegmentDirectory(tmp_path)
    with into.owned():
        into.newest()
    assert happened == ["fsync", "fsync", "looked"], "the second for each time that it connects again"


def test_unfinished_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    unfinished = tmp_path / f".{'0' * 20}-{'0' * 20}.parquet.{'0f' * 8}"
    other = tmp_path / ".orders.parquet"
    for path in (unfinished, other):
        path.write_bytes(b"unfinished")
    with segment_directory.SegmentDirectory(tmp_path).owned():
        assert not unfinished.exists()
        assert other.exists(), "nothing of a capture has such a name"


def test_a_connection_that_is_lost_while_an_fsync_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same process connects again then. It must not go on from a segment that a crash would take."""
    into = segment_directory.SegmentDirectory(tmp_path)
    tagged, state = pgo.tag(Writer().begin(7, 100, 0))
    rows, source = pa.Table.from_batches([tagged]), Source("1", "shop", "slot")
    fsync = os.fsync
    calls: list[int] = []

    def failing(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), tmp_path.stat()):
            calls.append(descriptor)
            if 2 <= len(calls) <= 3:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    with into.owned():
        monkeypatch.setattr(os, "fsync", failing)
        assert into.newest() is None
        with pytest.raises(OSError, match="Input/output"):
            into.write(rows, state, source, 100)
        with pytest.raises(OSError, match="Input/output"):
            into.newest()
        newest = into.newest()
        assert newest is not None
        assert (newest.last_seq, len(calls)) == (0, 4)


def test_a_segment_is_read_once_to_know_how_far_they_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror asks ten times a second."""
    into, asked = segment_directory.SegmentDirectory(tmp_path), segment_directory.SegmentDirectory(tmp_path)
    newest, looks = segment_directory.newest_segment, list[str]()

    def look(directory: str | os.PathLike[str]) -> object:
        looks.append(str(directory))
        return newest(directory)

    monkeypatch.setattr(segment_directory, "newest_segment", look)
    assert asked.durable_lsn() == 0
    stream, source = Writer(), Source("1", "shop", "slot")
    state: pgo.StreamState | None = None
    with into.owned():
        for number in (1, 2):
            messages = [*stream.begin(7, 100 * number, 0), *stream.commit(100 * number, 100 * number + 10, 0)]
            tagged, state = pgo.tag(messages, state)
            into.write(pa.Table.from_batches([tagged]), state, source, 100 * number + 10)
            looks.clear()
            assert [asked.durable_lsn() for _ in range(3)] == [100 * number + 10] * 3
            assert len(looks) == 1
        into.confirmed.save(900, now=True)
        assert asked.durable_lsn() == 900
        assert len(looks) == 1

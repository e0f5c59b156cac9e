"""Where a capture writes, before it goes on from what is there."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pgoutput_fast.capture import sink
from pgoutput_fast.capture.ownership import Owner, owned
from pgoutput_fast.segment_stores import Store


def test_what_is_there_is_durable_before_it_is_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A predecessor may have been killed between renaming a segment and the fsync of its directory."""
    happened: list[str] = []
    fsync, newest = os.fsync, sink.newest_segment

    def lock(store: Store) -> AbstractContextManager[Owner]:
        happened.append("locked")  # until then the predecessor may still be at it
        return owned(store)

    def see(descriptor: int) -> None:
        happened.append(
            "fsync" if os.path.samestat(os.fstat(descriptor), tmp_path.stat()) else "another fsync"
        )
        fsync(descriptor)

    def look(directory: str | os.PathLike[str]) -> object:
        happened.append("looked")
        return newest(directory)

    monkeypatch.setattr(os, "fsync", see)
    monkeypatch.setattr(sink, "owned", lock)
    monkeypatch.setattr(sink, "newest_segment", look)
    into = sink.Sink(tmp_path)
    with into.owned():
        into.newest()
    assert happened == ["locked", "fsync", "looked"]

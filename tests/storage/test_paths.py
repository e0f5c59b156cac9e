"""Where segments are found: files, directories, globs and lists of them. `tests/spark/test_store.py` has object stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast.segments import (
    list_segments,
)
from pgoutput_fast.storage.paths import find_files
from support.stored_segments import stored

__all__ = ["stored"]


def _firsts(paths: Any) -> list[int]:
    return [segment.first_seq for segment in list_segments(paths)]


def test_local_paths(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _firsts([stored / "day=0", stored / "day=1"])
    assert len(whole) == 4
    assert _firsts(stored / "day=0") == whole[:2]
    assert _firsts(str(stored / "day=0") + "/") == whole[:2]
    assert _firsts(f"file://{stored}/day=1".replace(" ", "%20")) == whole[2:]
    files = [each.path for each in find_files([stored / "day=1", stored / "day=0"])]
    assert _firsts(files) == whole
    assert _firsts(files[0]) == whole[2:3]
    assert _firsts([*files, stored / "day=1"]) == whole
    # The directory's own name has characters of a glob; the path below it is one.
    monkeypatch.chdir(stored)
    assert _firsts("day=*/*.parquet") == whole
    assert _firsts("day=*/*1[0-9]*.parquet") == [
        first for first in whole if 10 <= first < 20 or first + 2 == 10
    ]
    assert _firsts("day=7*") == []
    with pytest.raises(FileNotFoundError, match="day=7"):
        list_segments("day=7")


def test_uris_that_nobody_knows() -> None:
    with pytest.raises(ValueError, match="nowhere://x/y") as caught:
        list_segments("nowhere://key:secret@x/y?more=1")
    assert "secret" not in str(caught.value)

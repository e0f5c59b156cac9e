"""A new format of tables is one file: `support/arrow_format.py`. Nothing else knows its name."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgoutput_fast.merge.formats import open_current_table
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.files import TableFiles
from pgoutput_fast.tables.formats import FORMATS, formats_of, names_of, open_target
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.stream import Stream
from support.appended import append, ordinal_of
from support.appended import names_of as files_of
from support.arrow_format import ArrowTarget
from support.current_tables import RandomEffects

SCHEMA = pa.schema([("_seq", pa.int64()), ("text", pa.string())])
STREAM = Stream.of(("7300000000000000001", "shop", "slot"), 9, 100, 200)


@pytest.fixture(autouse=True)
def _arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "arrow", ArrowTarget)


def _write(place: Path, run: str, first: int) -> TableFiles:
    with TableFiles(open_store(place), run, ArrowTarget.hidden) as files:
        files.add("public.t", pa.record_batch([range(first, first + 10), ["x"] * 10], schema=SCHEMA))
    return files


def test_changes(tmp_path: Path) -> None:
    """What `write_tables` does to a table, between its tasks."""
    assert "arrow" in names_of("changes")
    one, two = (
        open_target("arrow", open_store(tmp_path), TableOptions()).table("public.t", "changes") for _ in "12"
    )
    assert one.known is two.known is None
    append(one, _write(tmp_path, "one", 0).written, 9, SCHEMA, stream=STREAM)
    with pytest.raises(
        RuntimeError,
        match=r"something else changed .*public\.t during the commit, which did nothing: run it again",
    ):
        append(two, _write(tmp_path, "other", 0).written, 9, SCHEMA)
    assert ordinal_of(two) == ordinal_of(one)
    append(two, _write(tmp_path, "two", 10).written, 19, SCHEMA)
    position = ordinal_of(two)
    assert position is not None
    assert (position.seq, position.stream) == (19, STREAM)
    rows = [pq.read_table(tmp_path / "public.t" / name) for name in files_of(two)]
    assert sorted(pa.concat_tables(rows)["_seq"].to_pylist()) == list(range(20))
    with pytest.raises(ValueError, match=r"its column 'text' is string, and the rows have int64"):
        two.fitted(pa.schema([("text", pa.int64())]))
    append(two, _write(tmp_path, "three", 30).written, 39, SCHEMA, "overwrite")
    assert len(files_of(two)) == 1
    assert formats_of(open_store(tmp_path), "public.t") == ["arrow"]


@pytest.mark.parametrize("key", ["int8", "text and int8", None])
def test_current_tables(tmp_path: Path, key: str | None) -> None:
    """Random effects, and a plain model of what they do."""
    effects = RandomEffects(3, key)
    table = open_current_table("arrow", open_store(tmp_path), "public.t", TableOptions(file_bytes=4_000))
    for position in range(1, 20):
        table.apply(effects.next(), position)
        effects.model.assert_equal(table, effects.compared)
    assert (table.position(), table.version()) == (19, 18)

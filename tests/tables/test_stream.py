"""A table keeps the stream that it is of, in every format, and its position and its stream change together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.formats import names_of, open_target
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.parquet import MANIFEST, ParquetTable
from pgoutput_fast.tables.stream import Stream
from pgoutput_fast.tables.table import Table
from support.appended import append, ordinal_of

FORMATS = names_of("changes")
SCHEMA = pa.schema([("_seq", pa.int64())])
FIRST = Stream.of(("7300000000000000001", 'a"b', "slot"), 9, 100, (1 << 63) - 1)
OTHER = Stream.of(("7300000000000000001", "other", "slot"), 3)


def _table(format: str, place: Path) -> Table:
    return open_target(format, open_store(place), TableOptions()).table("public.t", "changes")


def _commit(format: str, place: Path, position: int, mode: Any, stream: Stream | None) -> None:
    append(_table(format, place), [], position, SCHEMA, mode, stream=stream)


def _found(format: str, place: Path) -> tuple[int | None, Stream | None, str]:
    """(position, stream, the stream as text) as another process reads them."""
    table = _table(format, place)
    position = ordinal_of(table)
    if position is None:
        return None, None, ""
    stream = position.stream
    return position.seq, stream, "" if stream is None else str(table.named(stream))


@pytest.mark.parametrize("format", FORMATS)
def test_each_commit_sets_the_stream(tmp_path: Path, format: str) -> None:
    assert _found(format, tmp_path) == (None, None, "")
    _commit(format, tmp_path, 5, "append", None)  # as an earlier version, or from tagged payloads
    assert _found(format, tmp_path) == (5, None, "")
    name = f"slot 'slot' of database 'a\"b' (server {FIRST.names[0]})"  # type: ignore[index]
    _commit(format, tmp_path, 9, "append", FIRST)
    assert _found(format, tmp_path) == (9, FIRST, name)
    _commit(format, tmp_path, 12, "append", None)
    assert _found(format, tmp_path) == (12, FIRST, name)
    _commit(format, tmp_path, 3, "overwrite", OTHER)
    assert _found(format, tmp_path)[:2] == (3, OTHER)
    _commit(format, tmp_path, 1, "overwrite", None)
    assert _found(format, tmp_path) == (1, None, "")


def test_a_log_of_delta_that_was_cleaned_has_the_stream_without_names(tmp_path: Path) -> None:
    _commit("delta", tmp_path, 9, "append", FIRST)
    place = str(tmp_path / "public.t")
    DeltaTable(place).alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    DeltaTable(place).create_checkpoint()
    (tmp_path / "public.t" / "_delta_log" / "00000000000000000000.json").unlink()
    assert _found("delta", tmp_path) == (9, FIRST, "another slot, database or server")


def test_a_manifest_with_a_damaged_stream_is_an_error(tmp_path: Path) -> None:
    _commit("parquet", tmp_path, 9, "append", FIRST)
    manifest = tmp_path / "public.t" / MANIFEST
    values = json.loads(manifest.read_text())
    for stream in ("{}", "[]", "x", '{"seq": null}', 7):
        manifest.write_text(json.dumps({**values, "stream": stream}))
        with pytest.raises(ValueError, match=r"_manifest\.json is damaged"):
            ParquetTable(open_store(tmp_path), "public.t").version()


@pytest.mark.parametrize("name", ["position", "stream"])
def test_a_property_of_iceberg_that_is_damaged(tmp_path: Path, name: str) -> None:
    _commit("iceberg", tmp_path, 9, "append", FIRST)
    with (
        load_catalog("pgoutput_fast", type="sql", uri=f"sqlite:///{tmp_path}/_catalog.db") as catalog,
        catalog.load_table(("public", "t")).transaction() as transaction,
    ):
        transaction.set_properties({f"pgoutput-fast.{name}": "x"})
    with pytest.raises(ValueError, match=r"the Iceberg table public\.t in .* is damaged"):
        _table("iceberg", tmp_path).version()

"""Segments of a stream with four tables, and comparisons of the tables that are written from them."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, write_segment
from pgoutput_fast.storage.table_directories import table_directory

__all__ = [
    "DIRECTORIES",
    "FORMATS",
    "NAMES",
    "PAYLOADS",
    "SOURCE",
    "TABLES",
    "assert_same",
    "expected",
    "place_of",
    "random_cuts",
    "read",
    "stored",
    "write_segments",
]

FORMATS = ["parquet", "delta", "iceberg"]
SOURCE = Source("7300000000000000001", "shop", "slot", ("all",), {"proto_version": "4"})
COLUMNS = (
    ColumnSpec("id", 23, key=True),
    ColumnSpec("note", 25),
    ColumnSpec("at", 1114),
    ColumnSpec("day", 1082),
)
TABLES = [RelationSpec(20000 + k, "public", f"t{k}", COLUMNS) for k in range(3)]
ODD = RelationSpec(
    20009,
    "a.b",
    'o"dd é',
    (
        ColumnSpec("id", 20, key=True),
        ColumnSpec("marks", 1007),
        ColumnSpec("for", 1186),
        ColumnSpec("price", 1700),
    ),
)
ALTERED = RelationSpec(20000, "public", "t0", (ColumnSpec("id", 23, key=True), ColumnSpec("added", 16)))


def _stream() -> list[bytes]:
    """Four tables, one of them altered, streams that are open over many messages, savepoints, an open end."""
    writer, noise = Writer(4, streaming="on"), random.Random(11)
    wal: list[bytes] = []
    for n in range(60):
        xid = 100 + n
        wal += writer.begin(xid, 1000 * n + 1000, n)
        for spec in TABLES:
            for k in range(5):
                if spec is TABLES[0] and n >= 50:
                    wal += writer.change(ALTERED, "insert", new=[str(k), "t"])
                else:
                    wal += writer.change(
                        spec,
                        "insert",
                        new=[str(n * 5 + k), noise.randbytes(20).hex(), "2024-02-29 12:00:00", None],
                    )
        wal += writer.change(ODD, "insert", new=[str(n), "{1,2,NULL}", "1 day 02:00:00", "1.50"])
        wal += writer.commit(1000 * n + 1000, 1000 * n + 1008, n)
        if n % 10 == 3:  # one that ends ten transactions later
            wal += writer.stream_start(900 + n)
            wal += writer.change(
                TABLES[1], "insert", new=[str(-n), "streamed", "infinity", "2024-01-01"], xid=900 + n
            )
            wal += writer.change(TABLES[1], "insert", new=[str(-n), "rolled back", None, None], xid=2000 + n)
            wal += writer.stream_stop() + writer.stream_abort(900 + n, 2000 + n)
        if n % 10 == 3 and n > 10:
            wal += writer.stream_commit(890 + n, 1000 * n + 1500, 1000 * n + 1508, n)
    return wal


PAYLOADS = _stream()
NAMES = ["public.t0", "public.t1", "public.t2", '"a.b"."o""dd é"']
DIRECTORIES = [*(table_directory("public", f"t{k}") for k in range(3)), table_directory("a.b", 'o"dd é')]


def random_cuts(seed: int, pieces: int) -> list[int]:
    return [0, *sorted(random.Random(seed).sample(range(1, len(PAYLOADS)), pieces - 1)), len(PAYLOADS)]


def write_segments(directory: Path, cuts: list[int]) -> Iterator[int]:
    """Writes a segment per piece. Yields how many payloads are written."""
    directory.mkdir(exist_ok=True)
    state = None
    for begin, end in itertools.pairwise(cuts):
        tagged, state = pgo.tag(PAYLOADS[begin:end], state)
        write_segment(directory, tagged, state, source=SOURCE, relation_bytes=2_000)
        yield end


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("segments")
    list(write_segments(directory, random_cuts(1, 5)))
    return directory


def place_of(format: str, directory: str) -> str:
    return directory if format == "parquet" else directory.replace("%", "+")


def read(format: str, target: Path, directory: str) -> pa.Table:
    """The table's rows, in the order of the stream."""
    place = target / place_of(format, directory)
    if format == "iceberg":
        names = tuple(unquote(each) for each in directory.split("."))
        with load_catalog("pgoutput_fast", type="sql", uri=f"sqlite:///{target}/_catalog.db") as catalog:
            table = catalog.load_table(names)
            assert table.location() == f"file://{place}"
            rows = table.scan().to_arrow()
    elif format == "delta":
        rows = pa.table(deltalake.DeltaTable(str(place)).to_pyarrow_table())
    else:
        manifest = json.loads((place / "_manifest.json").read_text())
        names = [each["name"] for each in manifest["files"]]
        # A reader that lists the directory sees the same.
        assert sorted(names) == sorted(
            each.name for each in place.glob("*.parquet") if each.name[0] not in "._"
        )
        rows = pa.concat_tables([pq.read_table(place / name) for name in names], promote_options="default")
        assert rows.num_rows == sum(each["rows"] for each in manifest["files"])
    return rows.sort_by([("_seq", "ascending"), ("_change_type", "ascending")])


def expected(wal: Any, name: str, transactions: Any) -> pa.Table:
    rows = pgspark.changes(wal, name, transactions=transactions).toArrow()
    return rows.sort_by([("_seq", "ascending"), ("_change_type", "ascending")])


def assert_same(got: pa.Table, wanted: pa.Table) -> None:
    assert set(got.schema.names) == set(wanted.schema.names)
    assert got.select(wanted.schema.names).to_pylist() == wanted.to_pylist()

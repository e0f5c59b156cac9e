"""Where segments are found: files, directories, globs and lists of them, here and in an object store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segment_paths import find_files
from pgoutput_fast.segments import (
    Source,
    list_segments,
    open_segment,
    read_segment,
    segment_outcomes,
    write_segment,
)

ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days with two segments each, and files that are none."""
    root, state = tmp_path_factory.mktemp("store [1]"), None
    writer = Writer()
    for n in range(4):
        directory = root / f"day={n // 2}"
        directory.mkdir(exist_ok=True)
        wal = writer.begin(100 + n, 1000 * n + 1000, n)
        wal += writer.change(ORDERS, "insert", new=[str(n), f"note {n}"])
        wal += writer.commit(1000 * n + 1000, 1000 * n + 1008, n)
        tagged, state = pgo.tag(wal, state)
        write_segment(directory, tagged, state, source=Source("1", "shop", "slot"))
        (directory / ".hidden.parquet").write_bytes(b"never finished")
        (directory / "_SUCCESS").write_bytes(b"")
    return root


def _firsts(paths: Any) -> list[int]:
    return [segment.first_seq for segment in list_segments(paths)]


def test_local_paths(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _firsts([stored / "day=0", stored / "day=1"])
    assert len(whole) == 4
    assert _firsts(stored / "day=0") == whole[:2]
    assert _firsts(str(stored / "day=0") + "/") == whole[:2]
    assert _firsts(f"file://{stored}/day=1".replace(" ", "%20")) == whole[2:]
    files = find_files([stored / "day=1", stored / "day=0"])
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


# --- an object store ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(stored: Path) -> Iterator[str]:
    """A bucket with the same files; the URI has what is to be put into its place."""
    moto = pytest.importorskip("moto.server")
    from pyarrow import fs

    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        uri = f"s3://key:secret@segments%s?scheme=http&endpoint_override={host}:{port}&region=us-east-1"
        s3, _ = fs.FileSystem.from_uri(uri % "" + "&allow_bucket_creation=true")
        s3.create_dir("segments")
        for file in stored.rglob("*"):
            if file.is_file():
                with (
                    file.open("rb") as source,
                    s3.open_output_stream(f"segments/wal/{file.relative_to(stored)}") as target,
                ):
                    shutil.copyfileobj(source, target)
        yield uri
    finally:
        server.stop()


def test_segments_in_an_object_store(store: str, stored: Path) -> None:
    here = list_segments(stored.glob("*/0*.parquet"))
    for path in ("/wal/*/*.parquet", "/*/day=*/0*.parquet"):
        assert [each.first_seq for each in list_segments(store % path)] == [each.first_seq for each in here]
    days = [store % "/wal/day=0", (store % "/wal/day=1/").replace("s3://", "s3a://")]
    there = list_segments(days)
    assert [(each.source, each.row_groups, each.state) for each in there] == [
        (each.source, each.row_groups, each.state) for each in here
    ]
    assert segment_outcomes(days).equals(segment_outcomes([each.path for each in here]))
    assert open_segment(there[1].path).last_seq == here[1].last_seq
    rows = read_segment(there[2].path, relations=[16401])
    assert rows.equals(read_segment(here[2].path, relations=[16401]))
    assert list_segments(store % "/wal/day=9*") == []
    with pytest.raises(FileNotFoundError, match=r"no segments at s3://.*day=9"):
        list_segments(store % "/wal/day=9")
    with pytest.raises(FileNotFoundError, match=r"segment s3://segments/wal/day=0/9\.parquet is not there"):
        open_segment(store % "/wal/day=0/9.parquet")
    with pytest.raises(ValueError, match=r"segment s3://segments/wal/day=0/_SUCCESS is damaged"):
        open_segment(store % "/wal/day=0/_SUCCESS")


def test_spark_reads_them_there(store: str, spark: Any) -> None:
    for path in (store % "/wal/*/*.parquet", [store % "/wal/day=0", store % "/wal/day=1"]):
        frame = spark.read.format("pgoutput").option("table", "public.orders").load(path)
        rows = sorted(frame.select("id", "note").collect())
        assert [tuple(row) for row in rows] == [(n, f"note {n}") for n in range(4)]

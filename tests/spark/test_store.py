"""Segments in an object store: a local server that speaks S3, read by this process and by Spark's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast.segments import list_segments, open_segment, read_segment, segment_outcomes
from support.stored_segments import stored

__all__ = ["stored"]


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
    with pytest.raises(FileNotFoundError, match=r"segment s3://segments/wal/day=0/9\.parquet does not exist"):
        open_segment(store % "/wal/day=0/9.parquet")
    with pytest.raises(ValueError, match=r"segment s3://segments/wal/day=0/_SUCCESS is damaged"):
        open_segment(store % "/wal/day=0/_SUCCESS")


def test_spark_reads_them_there(store: str, spark: Any) -> None:
    for path in (store % "/wal/*/*.parquet", [store % "/wal/day=0", store % "/wal/day=1"]):
        frame = spark.read.format("pgoutput").option("table", "public.orders").load(path)
        rows = sorted(frame.select("id", "note").collect())
        assert [tuple(row) for row in rows] == [(n, f"note {n}") for n in range(4)]

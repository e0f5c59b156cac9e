"""Many segments: each footer is read once, several at a time, and in a store with few requests."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import (
    Source,
    footers,
    list_segments,
    segment_catalog,
    segment_outcomes,
    write_segment,
)
from pgoutput_fast.segments.listing import SegmentList
from pgoutput_fast.segments.names import name_of
from pgoutput_fast.segments.tail import SegmentStream

SOURCE = Source("1", "shop", "slot")
TABLES = [RelationSpec(16401 + k, "public", f"t{k}", (ColumnSpec("id", 23, key=True),)) for k in range(3)]
MANY = 160


class _Stream:
    """Segments of one transaction each."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._writer = directory, Writer()
        self._state: pgo.StreamState | None = None
        self._wal: list[bytes] = []

    def add(self, count: int) -> None:
        for _ in range(count):
            n = 0 if self._state is None else self._state.next_seq
            wal = self._writer.begin(7, 100 * n + 100, 0)
            for table in TABLES:
                wal += self._writer.change(table, "insert", new=[str(n)])
            wal += self._writer.commit(100 * n + 100, 100 * n + 108, 0)
            self._wal += wal
            tagged, self._state = pgo.tag(wal, self._state)
            path = self._directory / name_of(n, self._state.next_seq - 1)
            write_segment(path, tagged, self._state, source=SOURCE, relation_bytes=1)

    def decoded(self) -> pgo.Decoded:
        return pgo.decode(self._wal)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pgo.Decoded]:
    """(a directory of segments, their stream decoded in one piece)."""
    directory: Path = tmp_path_factory.mktemp("many")
    stream = _Stream(directory)
    stream.add(MANY)
    return directory, stream.decoded()


def _damage(directory: Path, names: list[str]) -> None:
    """Overwrites files. Size and time stay, so only a reader of the content sees it."""
    for name in names:
        status = (directory / name).stat()
        (directory / name).write_bytes(b"\0" * status.st_size)
        os.utime(directory / name, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_many_segments_are_what_one_piece_is(many: tuple[Path, pgo.Decoded]) -> None:
    directory, decoded = many
    segments = list_segments(directory)
    assert [each.first_seq for each in segments] == sorted(each.first_seq for each in segments)
    assert len(segments) == MANY
    assert segments[-1].last_seq + 1 == sum(each.rows for each in segments)
    assert {each.qualified_name for each in segment_catalog(directory).relations} == {
        f"public.t{k}" for k in range(3)
    }
    expected = pa.Table.from_batches([decoded.outcomes]).sort_by("at_seq")
    assert pa.Table.from_batches([segment_outcomes(directory)]).equals(expected)
    _, half = SegmentList(directory).with_outcomes(
        lambda each: each.first_seq > segments[MANY // 2 - 1].last_seq
    )
    assert pa.Table.from_batches([half]).equals(expected.slice(MANY // 2))


def test_a_second_reading_opens_only_what_is_new(many: tuple[Path, pgo.Decoded], tmp_path: Path) -> None:
    shutil.copytree(many[0], tmp_path / "s")
    directory = tmp_path / "s"
    listed, stream = SegmentList(directory), SegmentStream(str(directory))
    found = listed.segments()
    old = [name_of(each.first_seq, each.last_seq) for each in found[:-1]]
    end = stream.end()
    assert len(stream.footers(0, end)) == MANY
    _damage(directory, old)
    (directory / name_of(found[-1].first_seq, found[-1].last_seq)).touch()
    assert listed.segments() == found
    assert [each.last_seq for each in stream.footers(0, end)] == [each.last_seq for each in found]
    with pytest.raises(ValueError, match="is damaged"):
        list_segments(directory)
    os.utime(directory / old[7])
    with pytest.raises(ValueError, match=rf"{old[7]} is damaged"):
        listed.segments()


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_threads_are_for_what_waits(
    many: tuple[Path, pgo.Decoded], monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """A disk that lets wait is read on several threads, any other on one."""
    directory, decoded = many
    opened, readers = footers.pq.ParquetFile, set()

    def slowly(*arguments: Any, **more: Any) -> Any:
        time.sleep(seconds)
        readers.add(threading.current_thread().name)
        return opened(*arguments, **more)

    monkeypatch.setattr(footers.pq, "ParquetFile", slowly)
    assert segment_outcomes(directory) == decoded.outcomes
    if seconds:
        assert len(readers) > 1
    else:  # a busy machine may let this thread wait, too
        assert threading.current_thread().name in readers


def test_only_some_footers_of_a_backlog_are_read(many: tuple[Path, pgo.Decoded], tmp_path: Path) -> None:
    """A stream that takes a part of a backlog does not look into the rest of it."""
    shutil.copytree(many[0], tmp_path / "s")
    stream = SegmentStream(str(tmp_path / "s"))
    named = stream.listed(fresh=True)
    _damage(tmp_path / "s", [each.name for each in named[100:]])
    footers = stream.each_footer(0, stream.end())
    assert [next(footers).last_seq for _ in range(60)] == [each.last_seq for each in named[:60]]


class _CountedStore:
    """A server that speaks S3. A request for a segment waits until another one comes, or for a while."""

    def __init__(self, application: Callable[..., Any]) -> None:
        self._application = application
        self._changed = threading.Condition()
        self._running = 0
        self.most = 0
        self.waits = False
        self.requests: Counter[str] = Counter()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        kind = f"{environ['REQUEST_METHOD']}{' segment' if environ['PATH_INFO'].endswith('.parquet') else ''}"
        with self._changed:
            self.requests[kind] += 1
            self._running += 1
            self.most = max(self.most, self._running)
            self._changed.notify_all()
            if self.waits and kind == "GET segment":
                self._changed.wait_for(lambda: self.most > 1, 120)
        try:
            return list(self._application(environ, start_response))
        finally:
            with self._changed:
                self._running -= 1


@pytest.fixture
def store() -> Iterator[tuple[_CountedStore, str]]:
    """(the counters, a URI with a place for the path)."""
    if os.environ.get("CI") != "true":
        pytest.importorskip("moto.server")
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from pyarrow import fs
    from werkzeug.serving import make_server

    counted = _CountedStore(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, counted, threaded=True, request_handler=MotoRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        host = f"127.0.0.1:{server.server_port}"
        uri = f"s3://key:secret@many/%s?scheme=http&endpoint_override={host}&region=us-east-1"
        s3, _ = fs.FileSystem.from_uri(uri % "" + "&allow_bucket_creation=true")
        s3.create_dir("many")
        yield counted, uri
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.unsanitized
def test_a_store_gets_one_request_for_a_footer(
    many: tuple[Path, pgo.Decoded], store: tuple[_CountedStore, str]
) -> None:
    from pyarrow import fs

    counted, uri = store
    s3, _ = fs.FileSystem.from_uri(uri % "")
    chosen = sorted(many[0].glob("*.parquet"))[:40]
    for path in chosen:
        with s3.open_output_stream(f"many/wal/{path.name}") as target:
            target.write(path.read_bytes())
    counted.requests.clear()
    counted.waits = True
    begun = time.monotonic()
    there = list_segments(uri % "wal")
    assert [each.last_seq for each in there] == [each.last_seq for each in list_segments(chosen)]
    assert counted.most > 1, time.monotonic() - begun
    assert counted.requests["GET segment"] == 40
    assert counted.requests["HEAD segment"] == 0
    assert counted.requests.total() <= 40 + 6
    # With the outcomes it is one more.
    counted.requests.clear()
    assert SegmentList(uri % "wal").with_outcomes()[1].equals(segment_outcomes(chosen))
    assert counted.requests["GET segment"] <= 80
    assert counted.requests["HEAD segment"] == 0
    s3.delete_file(f"many/wal/{chosen[3].name}")
    listed = SegmentStream(uri % "wal")
    named = listed.listed(fresh=True)
    s3.delete_file(f"many/wal/{named[5].name}")
    with pytest.raises(ValueError, match=rf"lacks messages {named[5].first_seq} to {named[5].last_seq}"):
        listed.open(named)

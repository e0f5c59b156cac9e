"""Segments: what is written is read again, one relation without the others, and never half."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import (
    Source,
    footer,
    list_segments,
    open_segment,
    read_segment,
    segment_catalog,
    segment_outcomes,
    write_segment,
)
from pgoutput_fast.segments import read as segments
from support.disks import small_disk

SOURCE = Source("7300000000000000001", "shop", "slot", ("all",), {"proto_version": "4"})
TABLES = [
    RelationSpec(20000 + k, "public", f"t{k}", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
    for k in range(10)
]


def _stream(transactions: int = 60, tables: list[RelationSpec] = TABLES) -> list[bytes]:
    """Every table in every transaction; a streamed one with a rolled back part, a truncate and a message."""
    writer, noise = Writer(4, streaming="on"), random.Random(7)
    wal: list[bytes] = []
    for n in range(transactions):
        wal += writer.begin(100 + n, 1000 * n + 1000, n)
        for spec in tables:
            for k in range(5):
                wal += writer.change(spec, "insert", new=[str(n * 5 + k), noise.randbytes(150).hex()])
        wal += writer.commit(1000 * n + 1000, 1000 * n + 1008, n)
    wal += writer.stream_start(900)
    wal += writer.change(tables[0], "insert", new=["-1", "streamed"], xid=900)
    wal += writer.change(tables[1], "insert", new=["-2", "rolled back"], xid=901)
    wal += writer.stream_stop() + writer.stream_abort(900, 901)
    wal += writer.stream_commit(900, 10**6, 10**6 + 8, 5)
    wal += writer.begin(950, 2 * 10**6, 6) + writer.truncate([tables[0], tables[3]])
    wal += writer.message(77, "prefix", b"content") + writer.commit(2 * 10**6, 2 * 10**6 + 8, 6)
    return wal


WAL = _stream()


def _write(directory: Path, wal: list[bytes] = WAL, size: int = 700, **layout: int) -> list[Path]:
    paths, state = [], None
    for at in range(0, len(wal), size):
        piece = wal[at : at + size]
        tagged, state = pgo.tag(piece, state, lsn=[1000 + at + k for k in range(len(piece))])
        paths.append(write_segment(directory, tagged, state, source=SOURCE, **layout))
    return paths


def test_rows_come_back_in_stream_order(tmp_path: Path) -> None:
    tagged, state = pgo.tag(WAL)
    path = write_segment(tmp_path / "one.parquet", tagged, state, source=SOURCE, relation_bytes=1000)
    back = read_segment(path)
    assert back.schema.equals(pgo.TAGGED_SCHEMA)
    assert back.num_rows == tagged.num_rows
    key = [("seq", "ascending"), ("relation", "ascending")]
    assert back.sort_by(key).to_pylist() == pa.Table.from_batches([tagged]).sort_by(key).to_pylist()
    seqs = back.column("seq").to_pylist()
    assert seqs == sorted(seqs)


def test_the_footer_lets_the_stream_go_on(tmp_path: Path) -> None:
    half = len(WAL) // 2
    tagged, state = pgo.tag(WAL[:half], lsn=range(5, 5 + half))
    path = write_segment(tmp_path, tagged, state, source=SOURCE, end_lsn=half + 99)
    segment = open_segment(path)
    assert (segment.source, segment.first_seq, segment.last_seq) == (SOURCE, 0, half - 1)
    assert (segment.start_lsn, segment.end_lsn, segment.rows) == (5, half + 99, half)
    assert segment.state == state
    assert segment.catalog == state.catalog
    rest, end = pgo.tag(WAL[half:], segment.state)
    whole, expected = pgo.tag(WAL)
    assert end == expected
    assert rest.to_pylist() == whole.slice(half).to_pylist()


def test_layout(tmp_path: Path) -> None:
    """Control rows first, then relation by relation; no dictionary on payloads, zstd, no statistics of values."""
    tagged, state = pgo.tag(WAL)
    path = write_segment(tmp_path, tagged, state, source=SOURCE, relation_bytes=10_000)
    file = pq.ParquetFile(path)
    rows = file.read().select(["kind", "relation", "version", "seq"]).to_pylist()
    control = [row for row in rows if chr(row["kind"]) not in "IUD"]
    changes = rows[len(control) :]
    assert rows[: len(control)] == control
    keys = [(row["relation"], row["version"], row["seq"]) for row in changes]
    assert keys == sorted(keys)
    # One for rows of no relation; R and T are few, and lie in one of their own as the first table is large.
    groups = open_segment(path).row_groups
    assert [group.relations for group in groups[2:]] == [(spec.oid, spec.oid) for spec in TABLES]
    assert groups[0].relations is None
    assert [group.bare for group in groups[1:]] == [0] * 11
    payload = file.metadata.row_group(3).column(pgo.TAGGED_SCHEMA.get_field_index("payload"))
    assert payload.compression == "ZSTD"
    assert not payload.has_dictionary_page
    assert payload.statistics is None
    assert "base64" not in str(file.metadata.metadata[b"pgoutput_fast.state"])


@pytest.mark.parametrize("rows", [3, 1000])
def test_short_and_long_runs_of_a_table_have_the_same_layout(tmp_path: Path, rows: int) -> None:
    """Long runs are written without a copy. Rows that do not come in stream order are sorted one by one."""
    writer, wal = Writer(), []
    for n in range(6):
        wal += writer.begin(7 + n, 1000 * n + 1000, n)
        for k in range(rows):
            wal += writer.change(TABLES[n % 2], "insert", new=[str(k), "note"])
        wal += writer.commit(1000 * n + 1000, 1000 * n + 1008, n)
    tagged, state = pgo.tag(wal)
    pieces = pa.Table.from_batches([tagged.slice(at, 100) for at in range(0, tagged.num_rows, 100)])
    backwards = tagged.take(pa.array(range(tagged.num_rows)[::-1]))
    found = []
    for name, given in (("one", tagged), ("pieces", pieces), ("backwards", backwards)):
        path = write_segment(
            tmp_path / name, given, state, source=SOURCE, relation_bytes=1, row_group_bytes=50_000
        )
        filed, segment = segments.read_as_filed(path)
        assert segment == open_segment(path)
        assert segment.state == state
        assert segments.in_stream_order(filed).equals(read_segment(path))
        found.append(([group.rows for group in segment.row_groups], filed))
    assert found[0] == found[1] == found[2]
    changes = found[0][1].slice(tagged.num_rows - 6 * rows)
    assert changes.column("relation").to_pylist() == [TABLES[n].oid for n in (0, 1) for _ in range(3 * rows)]
    assert read_segment(tmp_path / "one").equals(pa.Table.from_batches([tagged]))


def test_a_segment_that_is_not_compressed_is_read_as_any_other(tmp_path: Path) -> None:
    tagged, state = pgo.tag(WAL)
    small = write_segment(tmp_path / "small", tagged, state, source=SOURCE)
    large = write_segment(tmp_path / "large", tagged, state, source=SOURCE, compressed=False)
    columns = pq.read_metadata(large).row_group(0)
    assert {columns.column(k).compression for k in range(columns.num_columns)} == {"UNCOMPRESSED"}
    assert Path(large).stat().st_size > 1.5 * Path(small).stat().st_size
    assert read_segment(large).equals(read_segment(small))
    damaged = bytearray(Path(large).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    Path(large).write_bytes(damaged)
    for read in (read_segment, segments.read_as_filed):
        with pytest.raises((OSError, ValueError), match=r"damaged|checksum") as caught:
            read(large)
        said = [str(caught.value), *getattr(caught.value, "__notes__", [])]
        assert any(str(large) in each for each in said)
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "none")


def test_a_segment_is_read_in_pieces_as_filed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tagged, state = pgo.tag(WAL)
    path = write_segment(tmp_path / "s", tagged, state, source=SOURCE, relation_bytes=1)
    whole, _ = segments.read_as_filed(path)
    monkeypatch.setattr(segments, "_BATCH_ROWS", 100)
    pieces, segment = segments.read_as_filed(path)
    assert pieces.equals(whole)
    assert max(len(chunk) for chunk in pieces.column("payload").chunks) <= 100
    assert segment == open_segment(path)


def test_small_relations_share_row_groups_and_large_ones_are_cut(tmp_path: Path) -> None:
    tagged, state = pgo.tag(WAL)
    path = write_segment(tmp_path / "s", tagged, state, source=SOURCE, relation_bytes=1 << 22)
    assert len(open_segment(path).row_groups) == 1
    path = write_segment(
        tmp_path / "c", tagged, state, source=SOURCE, relation_bytes=10_000, row_group_bytes=40_000
    )
    groups = open_segment(path).row_groups
    of_one = [group for group in groups if group.relations == (TABLES[5].oid,) * 2]
    assert len(of_one) == 4  # 120 kB
    assert [group.rows for group in of_one] == [100, 99, 99, 2]
    assert sum(group.rows for group in groups) == tagged.num_rows
    everything = write_segment(
        tmp_path / "1", tagged, state, source=SOURCE, relation_bytes=1, row_group_bytes=1
    )
    assert {group.rows for group in open_segment(everything).row_groups} == {1}


def test_one_relation_of_ten_is_a_tenth_of_the_bytes(tmp_path: Path) -> None:
    [path] = _write(tmp_path, size=len(WAL), relation_bytes=10_000)
    segment = open_segment(path)
    chosen = segment.row_groups_of([TABLES[4].oid])
    assert sum(segment.row_groups[k].nbytes for k in chosen) < path.stat().st_size * 0.12
    rows = read_segment(path, relations=[TABLES[4].oid])
    assert rows.num_rows == 60 * 5 + 1  # and its Relation message
    assert set(rows.column("relation").to_pylist()) == {TABLES[4].oid}
    changes = pgo.decode_tagged(rows, segment.catalog).table("public.t4")
    assert (
        changes.to_pylist()
        == pgo.decode(WAL, lsn=range(1000, 1000 + len(WAL))).table("public.t4").to_pylist()
    )
    assert read_segment(path, relations=[1]).num_rows == 0


def test_several_segments_are_one_stream(tmp_path: Path) -> None:
    paths = _write(tmp_path)
    (tmp_path / ".hidden.parquet").write_bytes(b"never finished")
    assert [segment.path for segment in list_segments(tmp_path)] == paths
    assert [segment.path for segment in list_segments(reversed(paths))] == paths
    assert sorted(paths) == paths
    assert len(paths) > 3
    assert segment_catalog(tmp_path) == pgo.tag(WAL)[1].catalog
    assert segment_outcomes(tmp_path).equals(pgo.decode(WAL).outcomes)
    options = pgo.Options(transactions="committed")
    rows = pa.concat_tables(map(read_segment, paths))
    got = pgo.decode_tagged(rows, segment_catalog(paths), options, segment_outcomes(paths))
    expected = pgo.decode(WAL, lsn=range(1000, 1000 + len(WAL)), options=options)
    for spec in TABLES:
        assert got.table(spec.oid).to_pylist() == expected.table(spec.oid).to_pylist()
    assert segment_outcomes([]).num_rows == 0
    assert len(segment_catalog([])) == 0


def test_sources_do_not_mix(tmp_path: Path) -> None:
    _write(tmp_path)
    other = Source("7300000000000000001", "shop", "another", ("all",), {"proto_version": "4"})
    tagged, state = pgo.tag(WAL, seq=range(10**6, 10**6 + len(WAL)))
    with pytest.raises(ValueError, match=r"segments of one source only: .* slot 'slot' instead of 'another'"):
        write_segment(tmp_path, tagged, state, source=other)
    apart = tmp_path / "apart"
    apart.mkdir()
    path = write_segment(apart, tagged, state, source=other)
    path.rename(tmp_path / path.name)
    for read in (list_segments, segment_catalog, segment_outcomes):
        with pytest.raises(ValueError, match="segments of one source only"):
            read(tmp_path)


def test_the_same_messages_twice_are_an_error(tmp_path: Path) -> None:
    tagged, state = pgo.tag(WAL)
    path = write_segment(tmp_path, tagged, state, source=SOURCE)
    with pytest.raises(ValueError, match="does not follow"):
        write_segment(tmp_path, tagged, state, source=SOURCE)
    with pytest.raises(FileExistsError, match="never changed"):
        write_segment(path, tagged, state, source=SOURCE)
    write_segment(tmp_path / "again.parquet", tagged, state, source=SOURCE)
    with pytest.raises(ValueError, match="both have message 0"):
        list_segments(tmp_path)


def test_a_segment_is_seen_when_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes, then name, then the directory's entry; a failure at any step leaves no segment."""
    tagged, state = pgo.tag(WAL)
    steps: list[str] = []
    fsync, link = os.fsync, os.link

    def logged_fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        steps.append(f"fsync {'directory' if os.path.isdir(path) else 'file'}")
        assert os.path.isdir(path) or os.path.basename(path).startswith(".")
        fsync(descriptor)

    def logged_link(a: Any, b: Any) -> None:
        steps.append("link")
        link(a, b)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "link", logged_link)
    write_segment(tmp_path, tagged, state, source=SOURCE)
    assert steps == ["fsync file", "link", "fsync directory"]

    def failing(*_: Any) -> None:
        raise OSError("no space left")

    for name in ("fsync", "link"):
        empty = tmp_path / name
        empty.mkdir()
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing)
            with pytest.raises(OSError, match="no space left"):
                write_segment(empty, tagged, state, source=SOURCE)
        assert list(empty.iterdir()) == []


def test_what_is_no_segment_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tagged, state = pgo.tag(WAL)
    plain = tmp_path / "plain.parquet"
    pq.write_table(pa.Table.from_batches([tagged]), plain)
    with pytest.raises(ValueError, match="is not a segment"):
        open_segment(plain)
    path = write_segment(tmp_path / "whole", tagged, state, source=SOURCE)
    cut = tmp_path / "cut"
    cut.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"cut is damaged"):
        open_segment(cut)
    with pytest.raises(FileNotFoundError):
        open_segment(tmp_path / "none")
    monkeypatch.setattr(footer, "_FORMAT", 99)
    later = write_segment(tmp_path / "later", tagged, state, source=SOURCE)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="format 99"):
        open_segment(later)


def test_a_changed_bit_is_never_another_value(tmp_path: Path) -> None:
    tagged, state = pgo.tag(WAL)
    path, dice = write_segment(tmp_path / "whole", tagged, state, source=SOURCE), random.Random(3)
    content, rows, failed = path.read_bytes(), read_segment(path), 0
    for _ in range(100):
        changed = bytearray(content)
        changed[dice.randrange(4, len(content) - 8 - int.from_bytes(content[-8:-4], "little"))] ^= (
            1 << dice.randrange(8)
        )
        other = tmp_path / "changed"
        other.write_bytes(changed)
        try:
            found = read_segment(other)
        except (OSError, ValueError) as problem:
            named = f"{problem} {getattr(problem, '__notes__', '')}"
        else:
            assert found.equals(rows)  # a bit that nobody reads
            continue
        assert str(other) in named
        failed += 1
    assert failed > 60


def test_arguments(tmp_path: Path) -> None:
    tagged, state = pgo.tag(WAL)
    with pytest.raises(ValueError, match="at least one row"):
        write_segment(tmp_path, tagged.slice(0, 0), state, source=SOURCE)
    with pytest.raises(ValueError, match="continues with message 5"):
        write_segment(tmp_path, tagged, pgo.tag(WAL[:5])[1], source=SOURCE)
    with pytest.raises(ValueError, match="have the columns"):
        write_segment(tmp_path, tagged.select(["seq"]), state, source=SOURCE)
    decoder = pgo.Decoder(pgo.Options(transactions="committed"))
    decoder.decode(WAL[:10])
    with pytest.raises(ValueError, match="has changes in its reorder buffer"):
        write_segment(tmp_path, tagged.slice(0, 10), decoder.state, source=SOURCE)
    assert list(tmp_path.iterdir()) == []
    path = write_segment(tmp_path, tagged, state, source=SOURCE)
    there = len(open_segment(path).row_groups)
    for wrong in (there, -1):
        with pytest.raises(ValueError, match=rf"number of row groups is {there}, so there is no {wrong}$"):
            read_segment(path, row_groups=[0, wrong])


def test_a_slice_of_tagged_rows_and_a_table_of_batches(tmp_path: Path) -> None:
    tagged, state = pgo.tag(WAL)
    table = pa.Table.from_batches([tagged.slice(0, 100), tagged.slice(100)])
    path = write_segment(tmp_path, table.slice(50), state, source=SOURCE, relation_bytes=1000)
    assert read_segment(path).column("payload").to_pylist()[:50] == WAL[50:100]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Source("8", "shop", "slot", ("all",)), ["server 7, not 8", "option binary true, not unset"]),
        (
            Source("7", "shop", "slot", ("all", "b"), {"publication_names": '"all","b"', "binary": "true"}),
            ["publications all, not all, b"],
        ),
        (
            Source("7", "shop", "slot", ("all",), {"publication_names": "*", "binary": "true"}),
            ["option publication_names unset, not *"],
        ),
        (Source("7", "shop", "slot", ("all",), {"binary": "true"}), []),
    ],
)
def test_what_two_sources_differ_in(other: Source, said: list[str]) -> None:
    assert Source("7", "shop", "slot", ("all",), {"binary": "true"}).differences(other) == said


def test_a_full_disk(tmp_path: Path) -> None:
    """The error names the file, and no file is left."""
    with small_disk(tmp_path) as place:
        writer = Writer()
        payloads = writer.begin(7, 100, 0)
        for k in range(8):
            payloads += writer.change(
                TABLES[0], "insert", new=[str(k), random.Random(k).randbytes(1 << 20).hex()]
            )
        payloads += writer.commit(100, 108, 0)
        tagged, state = pgo.tag(payloads)
        with pytest.raises(OSError, match=rf"No space left on device: '{place}/[0-9a-z-]+\.parquet'"):
            write_segment(place, tagged, state, source=SOURCE)
        assert list(place.iterdir()) == []


def test_a_bit_of_a_footers_text_that_changed(tmp_path: Path) -> None:
    """Rows, names or types would be other ones, without a word."""
    writer = Writer()
    orders = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True),))
    payloads = [
        each
        for n in (1, 2)
        for each in [
            *writer.begin(n, 100 * n, 0),
            *writer.change(orders, "insert", new=[str(n)]),
            *writer.commit(100 * n, 100 * n + 8, 0),
        ]
    ]
    tagged, state = pgo.tag(payloads)
    path = tmp_path / "one.parquet"
    write_segment(path, tagged, state, source=SOURCE)
    whole = path.read_bytes()
    texts = {
        name: text
        for name, text in (pq.read_metadata(path).metadata or {}).items()
        if name.startswith(b"pgoutput_fast.")
    }
    assert b"pgoutput_fast.checksum" in texts
    damaged = tmp_path / "damaged.parquet"
    for name, text in texts.items():
        begin = whole.index(text, whole.index(name))
        for place in range(begin, begin + len(text), 1 + len(text) // 20):
            changed = bytearray(whole)
            changed[place] ^= 1
            damaged.write_bytes(changed)
            with pytest.raises(ValueError, match=r"damaged\.parquet"):
                open_segment(damaged)
    damaged.write_bytes(whole)
    assert open_segment(damaged).state == state

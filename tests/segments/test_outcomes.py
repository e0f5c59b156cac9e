"""Outcomes of transactions: in the footers of small segments, in control rows, and the same in both."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.segments import (
    compact,
    list_segments,
    open_segment,
    read_segment,
    segment_outcomes,
    write_segment,
)
from pgoutput_fast.segments.listing import SegmentList
from pgoutput_fast.segments.outcomes import joined_text, outcomes_of_rows, outcomes_of_texts, text_of_rows
from support.segment_streams import SOURCE, cut_stream
from support.streams import RandomChoices, make_stream

TABLE = RelationSpec(16401, "public", "t", (ColumnSpec("id", 23, key=True),))
_FOOTER = b"pgoutput_fast.outcomes"


def _with_footer(path: Path, outcomes: bytes | None) -> None:
    """Writes a segment again, with other outcomes in its footer, or with none as earlier versions did."""
    with pq.ParquetFile(path) as file:
        groups = [file.read_row_group(k).replace_schema_metadata(None) for k in range(file.num_row_groups)]
        footer = {key: text for key, text in file.metadata.metadata.items() if key.startswith(b"pgoutput")}
    footer = {key: text for key, text in footer.items() if key not in (_FOOTER, b"pgoutput_fast.checksum")}
    if outcomes is not None:  # by a version whose footers have no checksum
        footer[_FOOTER] = outcomes
    with pq.ParquetWriter(path, groups[0].schema) as writer:
        for each in groups:
            writer.write_table(each)
        writer.add_key_value_metadata(footer)


def _small_segments(directory: Path, count: int, each: int = 2) -> list[Path]:
    """Segments of `each` transactions."""
    writer, state, lsn, paths = Writer(), pgo.StreamState(), 0, []
    for _ in range(count):
        wal: list[bytes] = []
        for _ in range(each):
            lsn += 100
            wal += writer.begin(7, lsn, 0)
            wal += writer.change(TABLE, "insert", new=["1"])
            wal += writer.commit(lsn, lsn + 8, 0)
        tagged, state = pgo.tag(wal, state)
        paths.append(Path(write_segment(directory, tagged, state, source=SOURCE)))
    return paths


@pytest.mark.parametrize("seed", range(20))
def test_the_footer_has_what_the_rows_have(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    stream = make_stream(RandomChoices(seed), steps=40)
    paths = cut_stream(tmp_path, stream, {dice.randrange(len(stream.payloads)) for _ in range(6)})
    rows = [read_segment(path) for path in paths]
    texts = [open_segment(path).outcomes for path in paths]
    assert texts
    assert None not in texts
    assert outcomes_of_texts(texts) == outcomes_of_rows(rows)


def test_files_of_earlier_versions_lie_beside_new_ones(tmp_path: Path) -> None:
    paths = _small_segments(tmp_path, 12)
    expected = segment_outcomes(tmp_path)
    assert expected.num_rows == 24
    for path in paths[::3]:
        _with_footer(path, None)
        assert open_segment(path).outcomes is None
    assert segment_outcomes(tmp_path) == expected
    compact(tmp_path, keep=1, grace=0)
    assert segment_outcomes(tmp_path) == expected


def test_many_outcomes_are_only_in_the_rows(tmp_path: Path) -> None:
    few, many = (_small_segments(tmp_path / name, 1, each)[0] for name, each in (("few", 64), ("many", 65)))
    assert open_segment(few).outcomes is not None
    assert open_segment(many).outcomes is None
    assert segment_outcomes(many).num_rows == 65


def test_joined_segments_have_them_while_they_are_few(tmp_path: Path) -> None:
    _small_segments(tmp_path, 4)
    expected = segment_outcomes(tmp_path)
    compact(tmp_path, keep=1, grace=0)
    joined = list_segments(tmp_path)[0]
    assert joined.outcomes == text_of_rows(read_segment(joined.path).combine_chunks().to_batches()[0])
    assert segment_outcomes(tmp_path) == expected
    some = joined.outcomes
    for _ in range(5):
        some = joined_text(some, some)
    assert some is None
    assert joined_text(joined.outcomes, None) is None
    assert joined_text("[[", joined.outcomes) is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"[[1]]",
        b"[[1], [2], [3], [4], [5], [6]]",
        b'[[1], [null], ["committed"], [4], [5], []]',
        b'[[1], [null], ["committed"], [4], ["5"], [6]]',
        b'[[9223372036854775808], [null], ["committed"], [4], [5], [6]]',
        b'[[null], [null], ["committed"], [4], [5], [6]]',
        b'[[1], [null], ["committed"], [null], [5], [6]]',
        b'[[1], [null], ["comitted"], [4], [5], [6]]',
        b"[[1], [null], [null], [4], [5], [6]]",
        b"[1, 2, 3, 4, 5, 6]",
        b"null",
    ],
)
def test_damaged_outcomes_name_the_file(tmp_path: Path, text: bytes) -> None:
    paths = _small_segments(tmp_path, 3)
    _with_footer(paths[1], text)
    with pytest.raises(ValueError, match=rf"{paths[1].name} is damaged"):
        segment_outcomes(tmp_path)
    # Nobody needs them for the rows.
    assert read_segment(paths[1]).num_rows == 6


def test_empty() -> None:
    empty = pa.RecordBatch.from_pylist([], TAGGED_SCHEMA)
    text = text_of_rows(empty)
    assert text is not None
    assert [each.num_rows for each in outcomes_of_texts([text, text])] == [0, 0]
    assert outcomes_of_texts([]) == outcomes_of_rows([]) == []


def test_another_process_needs_no_file_again(tmp_path: Path) -> None:
    """What one process read of footers has the outcomes for the next one, if it wants them."""
    paths = _small_segments(tmp_path, 5)
    expected = segment_outcomes(tmp_path)
    listed = SegmentList(tmp_path)
    listed.segments()
    with_outcomes, without = listed.pack(outcomes=True), listed.pack()
    for path in paths:
        status = path.stat()
        path.write_bytes(b"\0" * status.st_size)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    found = SegmentList(tmp_path)
    found.unpack(with_outcomes)
    assert found.with_outcomes()[1] == expected
    found = SegmentList(tmp_path)
    found.unpack(without)
    assert len(found.segments()) == 5
    with pytest.raises(ValueError, match=r"\.parquet is damaged"):
        found.with_outcomes()

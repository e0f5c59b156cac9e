"""The footer of a segment: its texts and their meaning.

Content that is too large for the footer is in part files beside the segments (`segments.catalog`). A footer without
parts has format 1, a footer with parts has format 2.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pgoutput_fast._core.files.crc32 import crc32
from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.protocol.kinds import REJECTED
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.segments.catalog import FooterContent, Part, SegmentCatalog
from pgoutput_fast.segments.joined import Joined
from pgoutput_fast.segments.segment import RowGroup, Segment, Source
from pgoutput_fast.storage.paths import is_uri, redacted_uri
from pgoutput_fast.storage.stores import Store, open_store

__all__ = ["OUTCOMES", "WRITER", "footer_texts", "no_segment", "place_of", "seal", "segment_of", "store_of"]

# Footer formats: without and with part files of the catalog.
_FORMAT, _WITH_PARTS = 1, 2
# By default Arrow's readers refuse a footer with a value of 100 MB.
_MOST_TEXT = 1 << 26
_PREFIX = "pgoutput_fast."
WRITER, OUTCOMES = _PREFIX + "writer", _PREFIX + "outcomes"
# Parquet has checksums of pages but not of the footer, so its texts have one here.
_CHECKSUM = "checksum"
# These texts of a footer are parsed separately: most segments of a directory share them, or few readers need them.
_APART = ("source", "catalog", "state", "outcomes")
_KIND, _RELATION, _TXN = (TAGGED_SCHEMA.get_field_index(name) for name in ("kind", "relation", "txn"))


def footer_texts(
    source: Source,
    first: int,
    last: int,
    start_lsn: int | None,
    end_lsn: int | None,
    content: FooterContent,
    joined: Joined | None = None,
) -> dict[str, str]:
    """The key-value metadata of a segment's file.

    Raises:
        ValueError: if a value is too long for a footer.
    """
    values: dict[str, Any] = {
        "format": _WITH_PARTS if content.parts else _FORMAT,
        "source": source.to_dict(),
        "first_seq": first,
        "last_seq": last,
        "start_lsn": start_lsn,
        "end_lsn": end_lsn,
    }
    if content.parts:
        values["parts"] = [part.to_dict() for part in content.parts]
    if joined is not None:
        values["joined"] = joined.to_dict()
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
    # Both are large if there are many relations, and a reader may need one without the other.
    texts |= {"catalog": content.catalog, "state": content.state}
    for name, text in texts.items():
        if len(text) > _MOST_TEXT:
            raise ValueError(
                f"the segment of messages {first} to {last} cannot be written: its {name} has {len(text)} characters, "
                f"and a footer can have {_MOST_TEXT}. The transactions that are open there described too many relations"
            )
    return {_PREFIX + name: text for name, text in texts.items()}


def seal(texts: dict[str, str]) -> None:
    """Adds the checksum of the texts. Call it after all of them are set."""
    named = {name.removeprefix(_PREFIX): text.encode() for name, text in texts.items()}
    texts[_PREFIX + _CHECKSUM] = json.dumps(_checksum(named))


def _checksum(texts: Mapping[str, bytes]) -> str:
    """Has a constant length: stores compare sizes, so simultaneous writes of two processes must have equal ones."""
    value = 0
    for name in sorted(texts.keys() - {_CHECKSUM}):
        for part in (name.encode(), texts[name]):
            value = crc32(part, crc32(len(part).to_bytes(8, "big"), value))
    return f"{value:08x}"


def segment_of(path: Path | str, metadata: pq.FileMetaData) -> Segment:
    """The content of an open file's footer. Does not check that catalog and state can be parsed.

    Raises:
        ValueError: as `open_segment`.
    """
    prefix = _PREFIX.encode()
    texts = {
        key[len(prefix) :].decode(): value
        for key, value in (metadata.metadata or {}).items()
        if key.startswith(prefix)
    }
    if "format" not in texts:
        raise ValueError(f"{redacted_uri(path)} is not a segment: it has no footer of pgoutput_fast")
    try:
        if _CHECKSUM in texts and texts[_CHECKSUM] != json.dumps(_checksum(texts)).encode():
            raise ValueError("it is damaged: the texts of its footer have another checksum")
        values = {name: parsed_json(text) for name, text in texts.items() if name not in _APART}
        if values["format"] not in (_FORMAT, _WITH_PARTS):
            raise ValueError(f"another version of pgoutput_fast wrote it: format {values['format']!r}")
        parts = [Part.from_dict(each) for each in values["parts"]] if values["format"] == _WITH_PARTS else []
        known = SegmentCatalog(
            texts["catalog"].decode(),
            texts["state"].decode(),
            parts,
            lambda: store_of(path, a_file=True)[0],
        )
        return Segment(
            path,
            _source(texts["source"]),
            int(values["first_seq"]),
            int(values["last_seq"]),
            values["start_lsn"],
            values["end_lsn"],
            tuple(_row_group(metadata.row_group(k)) for k in range(metadata.num_row_groups)),
            known,
            Joined.from_dict(values["joined"]) if "joined" in values else None,
            texts["outcomes"].decode() if "outcomes" in texts else None,
        )
    except (KeyError, TypeError, ValueError) as problem:
        raise no_segment(path, problem) from None


@lru_cache(maxsize=16)
def _source(text: bytes) -> Source:
    return Source.from_dict(parsed_json(text))


def no_segment(path: str | os.PathLike[str], problem: Exception) -> ValueError:
    return ValueError(f"{redacted_uri(path)} is not a segment of format 1 or 2: {problem}")


def _row_group(group: pq.RowGroupMetaData) -> RowGroup:
    column = group.column(_RELATION)
    statistics = column.statistics
    if column.path_in_schema != "relation" or statistics is None or not statistics.has_null_count:
        raise ValueError("its column `relation` has no statistics")
    relations = (statistics.min, statistics.max) if statistics.has_min_max else None
    # Its columns are adjacent.
    last = group.column(group.num_columns - 1)
    nbytes = _start(last) + last.total_compressed_size - _start(group.column(0))
    of_txns = group.column(_TXN).statistics
    txns = (of_txns.min, of_txns.max) if of_txns is not None and of_txns.has_min_max else None
    of_kinds = group.column(_KIND).statistics
    rejected = of_kinds is not None and of_kinds.has_min_max and of_kinds.max >= REJECTED
    return RowGroup(group.num_rows, nbytes, relations, statistics.null_count, txns, rejected)


def _start(column: pq.ColumnChunkMetaData) -> int:
    """The offset of a column of a row group in the file."""
    found = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
    return int(found)


def place_of(path: str | os.PathLike[str]) -> Path | str:
    """Returns a URI unchanged, anything else as a Path."""
    return path if isinstance(path, str) and "://" in path else Path(path)


def store_of(path: str | os.PathLike[str], *, a_file: bool = False) -> tuple[Store, str | None]:
    """(the store of a segment, its file name). The name is None for a directory, where ordinals determine it.

    With `a_file` the path is never a directory.
    """
    text = os.fspath(path)
    if is_uri(text):
        uri, question, query = text.partition("?")
        if not (a_file or uri.endswith(".parquet")):
            return open_store(text), None
        directory, _, name = uri.rpartition("/")
        return open_store(directory + question + query), name
    if not a_file and os.path.isdir(text):
        return open_store(text), None
    return open_store(os.path.dirname(text) or "."), os.path.basename(text)

"""Writes segments: whole files, which are durable before a reader sees them."""

from __future__ import annotations

import json
import os
import secrets
from collections import OrderedDict
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from pgoutput_fast.decoding.state import StreamState
from pgoutput_fast.protocol.lsn import Lsn, parse_lsn
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.segments.catalog import CatalogLog
from pgoutput_fast.segments.footer import OUTCOMES, WRITER, footer_texts, seal, segment_of, store_of
from pgoutput_fast.segments.layout import write_rows
from pgoutput_fast.segments.names import all_named, name_of, newest_named, unpublished_name
from pgoutput_fast.segments.outcomes import text_of_rows
from pgoutput_fast.segments.read import open_unchecked
from pgoutput_fast.segments.segment import Segment, Source, check_source
from pgoutput_fast.storage.paths import open_file, redacted_uri
from pgoutput_fast.storage.stores import Store

__all__ = [
    "MOST_BYTES",
    "RELATION_BYTES",
    "ROW_GROUP_BYTES",
    "read_back",
    "write_segment",
    "write_unpublished",
]

# A relation of at least the first size gets its own row groups. A row group is split at the second. Bytes in memory.
RELATION_BYTES = 1 << 20
ROW_GROUP_BYTES = 1 << 26
MOST_BYTES = (1 << 31) - 1
# The logs of the directories that this process wrote into most recently, by the path of each directory's newest
# segment.
_MOST_RECENT = 4
_recent: OrderedDict[str, CatalogLog] = OrderedDict()


def write_segment(
    path: str | os.PathLike[str],
    tagged: pa.RecordBatch | pa.Table,
    state: StreamState,
    *,
    source: Source,
    start_lsn: Lsn | None = None,
    end_lsn: Lsn | None = None,
    relation_bytes: int = RELATION_BYTES,
    row_group_bytes: int = ROW_GROUP_BYTES,
    log: CatalogLog | None = None,
    file_mode: int | None = None,
    compressed: bool = True,
    first_seq: int | None = None,
) -> Path | str:
    """Writes a segment, durably. Readers see it only once it is durable.

    The file is written under a hidden name, read back, fsynced and linked under its own name. Then its directory is
    fsynced. In an object store the file appears when its upload is complete. If the catalog is too large for a footer,
    the new entries of the catalog first go into a file in `_catalog/`.

    Args:
        path: the file, or an existing directory. In a directory the file is named by its ordinals, so that names sort
            in stream order. A URI that `pyarrow.fs` knows is a directory unless it ends in `.parquet`.
        tagged: rows with TAGGED_SCHEMA, as returned by `tag`.
        state: the state of the stream after these rows, as returned by `tag`.
        source: the source of the rows.
        start_lsn, end_lsn: the range of the LSNs of the rows, as for `parse_lsn`. By default the smallest and largest
            `lsn` of the rows.
        relation_bytes: a relation of at least this size has its own row groups. Bytes in memory.
        row_group_bytes: a larger row group is split. Bytes in memory.
        log: the catalog of the directory. Pass it if you write all segments of the directory; by default this function
            determines it.
        file_mode: the most permissions that the file may have, such as 0o640. By default only the umask applies.
        compressed: whether the file is compressed (zstd). An uncompressed file is written in a third of the CPU time,
            and is about twice as large.
        first_seq: ordinal of the first message, if messages without rows come before the first row, such as logical
            messages that a new session repeats. By default that of the first row.

    Returns:
        The path or URI of the file.

    Raises:
        ValueError: for no rows or more than 2 GiB of rows; for a `first_seq` after the first row; for a state that is
            not the state after these rows, or that has changes in its reorder buffer; for an invalid LSN; for a
            directory that has segments of another source, or segments with these ordinals.
        FileExistsError: if the file exists: a segment is never changed. In an object store also if another process
            wrote this segment, or other segments with its messages, at the same time. Then do not confirm its messages
            to the server.
        OSError: if the file cannot be written or read back. Then do not confirm its messages to the server.

    >>> import tempfile, pgoutput_fast as pgo
    >>> from pgoutput_fast.encode import Writer
    >>> from pgoutput_fast.segments import open_segment
    >>> tagged, state = pgo.tag(Writer().begin(7, 100, 0))
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = write_segment(directory, tagged, state, source=Source("1", "shop", "slot"))
    ...     path.name, open_segment(path).state == state
    ('00000000000000000000-00000000000000000000.parquet', True)
    """
    given = tuple(None if lsn is None else parse_lsn(lsn) for lsn in (start_lsn, end_lsn))
    rows = _checked(tagged)
    first, last = _ordinals(rows, state, first_seq)
    store, name = store_of(path)
    store.limit(file_mode)
    if name is None:
        name = name_of(first, last)
        newest = _check_neighbours(store, source, first, last)
        log = _log_after(newest, log)
    log = CatalogLog(store) if log is None else log
    content = log.step(state, _versions_of(rows), last)
    footer = footer_texts(source, first, last, *_lsns_of_rows(rows, *given), content)
    _write_file(store, name, rows, footer, relation_bytes, row_group_bytes, compressed=compressed)
    log.advance(content)
    _remember(str(store.at(name)), log)
    if not store.local:
        _expect_own(store, name, footer[WRITER], first, last)
    return store.at(name)


def write_unpublished(
    store: Store,
    tagged: pa.Table,
    state: StreamState,
    *,
    source: Source,
    log: CatalogLog,
    first_seq: int | None,
) -> str:
    """Writes a segment as `write_segment` does, but under a hidden name, and whatever the directory has.

    So several processes can write segments of one directory. One process renames them to their `published_name`, in
    stream order.

    Returns:
        The `unpublished_name`.

    Raises:
        ValueError, OSError: as `write_segment`.
    """
    rows = _checked(tagged)
    first, last = _ordinals(rows, state, first_seq)
    content = log.step(state, _versions_of(rows), last)
    footer = footer_texts(source, first, last, *_lsns_of_rows(rows, None, None), content)
    name = unpublished_name(first, last)
    _write_file(store, name, rows, footer, RELATION_BYTES, ROW_GROUP_BYTES, compressed=True)
    log.advance(content)
    return name


def _checked(tagged: pa.RecordBatch | pa.Table) -> pa.Table:
    if tagged.schema.names != TAGGED_SCHEMA.names:
        raise ValueError(f"tagged payloads must have the columns {', '.join(TAGGED_SCHEMA.names)}")
    if not tagged.num_rows:
        raise ValueError("a segment needs at least one row")
    if tagged.nbytes > MOST_BYTES:
        raise ValueError("one segment can have 2 GiB of rows, and these are more: write several segments")
    rows = tagged if isinstance(tagged, pa.Table) else pa.Table.from_batches([tagged])
    return rows.cast(TAGGED_SCHEMA)


def _ordinals(rows: pa.Table, state: StreamState, first_seq: int | None) -> tuple[int, int]:
    """(first, last) ordinal of the segment. Checks that the state is the state after its rows."""
    seqs = rows.column("seq").to_numpy()
    first, last = int(seqs.min()), int(seqs.max())
    if state.reorder_buffer is not None:
        raise ValueError(
            "this state has changes in its reorder buffer; a segment needs a state that `tag` gives"
        )
    if state.next_seq <= last:
        raise ValueError(
            f"the state continues with message {state.next_seq}, but the last row is message {last}"
        )
    if first_seq is None:
        return first, last
    if not 0 <= first_seq <= first:
        raise ValueError(f"first_seq is {first_seq}, but the first row is message {first}")
    return first_seq, last


def _lsns_of_rows(rows: pa.Table, start: int | None, end: int | None) -> tuple[int | None, int | None]:
    """(start, end) if given, otherwise the smallest and largest LSN of the rows; None if no row has an LSN."""
    lsns = rows.column("lsn").drop_null().to_numpy()
    if len(lsns):
        start = int(lsns.min()) if start is None else start
        end = int(lsns.max()) if end is None else end
    return start, end


def _check_neighbours(store: Store, source: Source, first: int, last: int) -> Segment | None:
    """Checks that a new segment may be added to the directory. Returns the newest segment there.

    Names sort in stream order.
    """
    named = newest_named(store)
    if named is None:
        return None
    newest = open_unchecked(store.at(named.name))
    check_source(newest.path, newest.source, source)
    if first <= newest.last_seq:
        raise ValueError(
            f"{store} has messages up to {newest.last_seq}; a segment of messages {first} to {last} does not follow"
        )
    return newest


def _log_after(newest: Segment | None, log: CatalogLog | None) -> CatalogLog | None:
    """The log of the directory: the given one, or that of an earlier call. It restarts if others wrote segments."""
    if log is None and newest is not None:
        log = _recent.pop(str(newest.path), None)
    if log is not None and not (newest is not None and log.follows(newest.known)):
        log.restart()
    return log


def _write_file(
    store: Store,
    name: str,
    rows: pa.Table,
    footer: dict[str, str],
    relation_bytes: int,
    row_group_bytes: int,
    *,
    compressed: bool,
) -> None:
    """Writes the file of a segment and reads it back. In an object store, `footer` gets a mark of this call."""
    if (outcomes := text_of_rows(rows)) is not None:
        footer[OUTCOMES] = outcomes
    if not store.local:
        footer[WRITER] = json.dumps(secrets.token_hex(16))
    seal(footer)
    try:
        with store.write(name) as file:
            write_rows(file, rows, footer, relation_bytes, row_group_bytes, compressed=compressed)
            read_back(file, store, name, footer, rows.num_rows)
    except FileExistsError:
        raise FileExistsError(
            f"segment {redacted_uri(store.at(name))} exists; segments are never changed"
        ) from None


def read_back(file: IO[bytes], store: Store, name: str, footer: dict[str, str], rows: int) -> None:
    """Checks that the file can be read as a segment, before another process sees it."""
    file.flush()
    file.seek(0)
    place = store.at(name)
    try:
        metadata = pq.read_metadata(file)
        segment = segment_of(place, metadata)
        segment.known.check()
        segment.known.check_parts()
        found = {key.decode(): value.decode() for key, value in (metadata.metadata or {}).items()}
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as problem:
        raise OSError(
            f"segment {redacted_uri(place)} cannot be read back: {problem}. The file was removed. Check the disk"
        ) from None
    if segment.rows != rows or any(found.get(key) != text for key, text in footer.items()):
        raise OSError(
            f"segment {redacted_uri(place)} does not have what was written. The file was removed. Check the disk"
        )
    file.seek(0, os.SEEK_END)


def _expect_own(store: Store, name: str, token: str, first: int, last: int) -> None:
    """Checks that no other process wrote this segment, or its messages, since the first check.

    An object store does not prevent that.
    """
    with pq.ParquetFile(open_file(os.fspath(store.at(name)))) as file:
        found = (file.metadata.metadata or {}).get(WRITER.encode())
    others = [name] if found != token.encode() else []
    if name == name_of(first, last):
        overlapping = [each.name for each in all_named(store) if each.overlaps(first, last)]
        others += [each for each in overlapping if each != name]
    if others:
        raise FileExistsError(
            f"another process wrote messages of {first} to {last} into {store} at the same time, as {others[0]}: make "
            "sure that only one process writes there"
        )


def _versions_of(rows: pa.Table) -> list[int]:
    """Ids of the relation versions of these rows."""
    found: list[int] = rows.column("version").unique().drop_null().to_pylist()
    return found


def _remember(path: str, log: CatalogLog) -> None:
    _recent[path] = log
    while len(_recent) > _MOST_RECENT:
        _recent.popitem(last=False)

"""Segments: Parquet files of tagged payloads. Their layout lets a reader of one table skip the other tables.

The rows of a segment stand in this order:

1. control rows (all kinds except inserts, updates and deletes) that concern no relation;
2. control rows that concern a relation;
3. changes, sorted by (relation, version), and in stream order within one version.

A relation gets row groups of its own once its rows are large enough. The footer holds the state of the stream behind
the segment, so a reader or writer can continue from there. What is too large for the footer lies in part files beside
the segments (`segments.known`). A footer without parts has format 1, a footer with parts has format 2.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pgoutput_fast.arguments import expect_list
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.decoding.state import StreamState
from pgoutput_fast.protocol.lsn import Lsn, parse_lsn
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.segments.joined import Joined
from pgoutput_fast.segments.known import Footing, Known, KnownLog, Part
from pgoutput_fast.segments.layout import write_rows
from pgoutput_fast.segments.names import all_named, name_of, newest_named
from pgoutput_fast.storage.paths import is_uri, open_file, shown
from pgoutput_fast.storage.stores import Store, open_store

__all__ = [
    "RowGroup",
    "Segment",
    "Source",
    "newest_segment",
    "open_segment",
    "read_segment",
    "write_segment",
]

# Footer formats: without part files of the catalog, and with them.
FORMAT, _WITH_PARTS = 1, 2
# By default Arrow's readers refuse a footer with a value of 100 MB. Earlier versions wrote such footers, so this
# module reads with a higher limit.
_MOST_TEXT = 1 << 26
MOST_READ = 1 << 30
_PREFIX = "pgoutput_fast."
WRITER = _PREFIX + "writer"
# A relation gets its own row groups from the first size on. A row group is cut at the second size. Bytes in memory.
RELATION_BYTES = 1 << 20
ROW_GROUP_BYTES = 1 << 26
MOST_BYTES = (1 << 31) - 1
# The logs of the directories that this process wrote into last, by the path of each directory's newest segment.
_MOST_RECENT = 4
_recent: OrderedDict[str, KnownLog] = OrderedDict()
# These texts of a footer are parsed apart: most segments of a directory share them, or few readers need them.
_APART = ("source", "catalog", "state")
_NO_ROWS = TAGGED_SCHEMA.empty_table()
_RELATION, _TXN = (TAGGED_SCHEMA.get_field_index(name) for name in ("relation", "txn"))


@dataclass(frozen=True)
class Source:
    """Where a stream comes from. A directory has segments of one source only.

    Attributes:
        system_identifier: the server's identifier, as `IDENTIFY_SYSTEM` and `pg_control_system()` give it.
        database: name of the database.
        slot: name of the replication slot.
        publications: names of the publications.
        options: options of the output plugin, such as `proto_version`.

    >>> Source.from_dict(Source("7", "shop", "s", ("p",), {"binary": "true"}).to_dict()).options
    {'binary': 'true'}
    """

    system_identifier: str
    database: str
    slot: str
    publications: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        expect_list("publications", self.publications)

    def to_dict(self) -> dict[str, Any]:
        """The source as JSON values."""
        return {
            "system_identifier": self.system_identifier,
            "database": self.database,
            "slot": self.slot,
            "publications": list(self.publications),
            "options": dict(self.options),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Source:
        """The inverse of `to_dict`."""
        return cls(
            values["system_identifier"],
            values["database"],
            values["slot"],
            tuple(values["publications"]),
            dict(values["options"]),
        )


@dataclass(frozen=True)
class RowGroup:
    """One row group of a segment.

    Attributes:
        rows: number of rows.
        nbytes: compressed size in the file, in bytes.
        relations: smallest and largest relation oid in it; None if no row concerns a relation.
        bare: number of rows that concern no relation: boundaries, logical messages, types and origins.
        txns: smallest and largest transaction key in it; None if no row belongs to a transaction, or if the file has
            no statistics of them.
    """

    rows: int
    nbytes: int
    relations: tuple[int, int] | None
    bare: int
    txns: tuple[int, int] | None = None

    def may_hold(self, relations: Collection[int]) -> bool:
        """Whether this row group can have a row of one of these relations (oids)."""
        expect_list("relations", relations, "oids")
        if self.relations is None:
            return False
        first, last = self.relations
        return any(first <= oid <= last for oid in relations)


@dataclass(frozen=True)
class Segment:
    """What the footer of a segment says.

    Attributes:
        path: path or URI of the file.
        source: where the stream comes from.
        first_seq, last_seq: ordinals of its first and last message.
        start_lsn, end_lsn: the LSNs between which it lies; None where not known. The server need not send again what
            is before `end_lsn`.
        row_groups: its row groups, in the order of the file.
        known: what the footer says of relations, and of the state of the stream.
        joined: the segments that `compact` joined into this one; None if it was written as it is.
    """

    path: Path | str
    source: Source
    first_seq: int
    last_seq: int
    start_lsn: int | None
    end_lsn: int | None
    row_groups: tuple[RowGroup, ...]
    known: Known = field(repr=False, compare=False)
    joined: Joined | None = field(default=None, repr=False)

    @property
    def state(self) -> StreamState:
        """The state of the stream behind this segment. A decoder can continue with it.

        Raises:
            ValueError: if a part file of the catalog is damaged or missing.
        """
        return self.known.state

    @property
    def catalog(self) -> Catalog:
        """The relation versions and types that are known behind this segment.

        These are the ones of its own rows, and the ones that later rows may refer to.

        Raises:
            ValueError: as `state`.
        """
        return self.state.catalog

    @property
    def open_txns(self) -> list[int]:
        """Keys of the transactions that are open behind this segment, as in the state. This reads only the footer."""
        return self.known.open_txns

    @property
    def rows(self) -> int:
        """The number of tagged rows."""
        return sum(group.rows for group in self.row_groups)

    def replaces(self, first_seq: int, last_seq: int) -> bool:
        """Whether `compact` joined the segment with these ordinals, and others, into this one."""
        return self.joined is not None and self.joined.has(first_seq, last_seq, self.last_seq)

    def row_groups_of(self, relations: Collection[int]) -> list[int]:
        """Ordinals of the row groups that can have rows of these relations (oids)."""
        expect_list("relations", relations, "oids")
        return [k for k, group in enumerate(self.row_groups) if group.may_hold(relations)]


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
    log: KnownLog | None = None,
    file_mode: int | None = None,
) -> Path | str:
    """Writes a segment. When this returns, the segment is durable; before that, no reader sees it.

    The file is written under a hidden name, read back, fsynced and linked under its own name. Then its directory is
    fsynced. In an object store the file appears when its upload is complete. If the catalog is too large for a footer,
    the new entries of the catalog first go into a file in `_catalog/`.

    Args:
        path: the file, or a directory that exists. In a directory the file is named by its ordinals, so that names
            sort in the order of the stream. A URI that `pyarrow.fs` knows is a directory unless it ends in `.parquet`.
        tagged: rows with TAGGED_SCHEMA, as `tag` gives them.
        state: the state of the stream behind these rows, as `tag` gives it.
        source: where the rows come from.
        start_lsn, end_lsn: the LSNs between which the rows lie, as `parse_lsn` takes them. By default the smallest and
            largest `lsn` of the rows.
        relation_bytes: from this size on, a relation has row groups of its own. Bytes in memory.
        row_group_bytes: a larger row group is cut. Bytes in memory.
        log: what the segments of the directory know. Pass it if you write all segments of the directory; without it,
            this function finds it out.
        file_mode: the most permissions that the file may have, such as 0o640. By default only the umask decides.

    Returns:
        The path or URI of the file.

    Raises:
        ValueError: for no rows or more than 2 GiB of rows; for a state that is not the state behind these rows, or
            that has changes in its reorder buffer; for an invalid LSN; for a directory that has segments of another
            source, or segments with these ordinals.
        FileExistsError: if the file exists: a segment is never changed. In an object store also if another process
            wrote this segment, or other segments with its messages, at the same time. Then do not confirm its messages
            to the server.
        OSError: if the file cannot be written, or cannot be read back. Then do not confirm its messages to the server.

    >>> import tempfile, pgoutput_fast as pgo
    >>> from pgoutput_fast.encode import Writer
    >>> tagged, state = pgo.tag(Writer().begin(7, 100, 0))
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = write_segment(directory, tagged, state, source=Source("1", "shop", "slot"))
    ...     path.name, open_segment(path).state == state
    ('00000000000000000000-00000000000000000000.parquet', True)
    """
    given = tuple(None if lsn is None else parse_lsn(lsn) for lsn in (start_lsn, end_lsn))
    batch = _checked(tagged)
    first, last = _ordinals_of_rows(batch, state)
    start, end = _lsns_of_rows(batch, *given)
    store, name = _target(path)
    store.limit(file_mode)
    if name is None:
        name = name_of(first, last)
        newest = _check_neighbours(store, source, first, last)
        log = _log_after(newest, log)
    log = KnownLog(store) if log is None else log
    footing = log.step(state, _versions_of(batch), last)
    footer = footer_texts(source, first, last, start, end, footing)
    _write_file(store, name, batch, footer, relation_bytes, row_group_bytes)
    log.took(footing)
    _remember(str(store.at(name)), log)
    if not store.local:
        _expect_own(store, name, footer[WRITER], first, last)
    return store.at(name)


def open_segment(path: str | os.PathLike[str]) -> Segment:
    """Reads a segment's footer.

    Raises:
        ValueError: if the file is damaged, is not a segment, or has a format that this version does not know.
        FileNotFoundError: if the file does not exist.
    """
    return checked(_open(path))


def checked(segment: Segment) -> Segment:
    """The segment, if catalog and state of its footer can be read.

    Raises:
        ValueError: if not.
    """
    try:
        segment.known.check()
    except (KeyError, TypeError, ValueError) as problem:
        raise _no_segment(segment.path, problem) from None
    return segment


def read_segment(
    path: str | os.PathLike[str],
    *,
    relations: Collection[int] | None = None,
    row_groups: Sequence[int] | None = None,
) -> pa.Table:
    """Reads the tagged rows of a segment, in stream order.

    Args:
        path: path or URI of the file.
        relations: only rows of these relations (oids), their Relation and Truncate messages included. Row groups that
            cannot have these rows are not read.
        row_groups: only rows of these row groups (ordinals).

    Returns:
        A table with TAGGED_SCHEMA.

    Raises:
        ValueError: as `open_segment`.
        OSError: if it cannot be read, or if bytes of a page were changed.
    """
    expect_list("relations", relations, "oids")
    expect_list("row_groups", row_groups, "ordinals")
    try:
        with open_parquet(path) as file:
            segment = segment_of(place_of(path), file.metadata)
            chosen = range(len(segment.row_groups)) if row_groups is None else row_groups
            if relations is not None:
                chosen = [k for k in chosen if segment.row_groups[k].may_hold(relations)]
            # Old versions of Arrow cannot read an empty list of row groups.
            rows = file.read_row_groups(list(chosen), columns=TAGGED_SCHEMA.names) if chosen else _NO_ROWS
    except pa.ArrowException as problem:
        raise damaged(path, problem) from None
    except FileNotFoundError:
        raise
    except OSError as problem:  # of the disk, of a store, or of a page with another checksum
        problem.add_note(f"segment {shown(path)} cannot be read")
        raise
    rows = rows.cast(TAGGED_SCHEMA)
    if relations is not None:
        found = np.isin(rows.column("relation").fill_null(-1).to_numpy(), list(relations))
        rows = rows.filter(pa.array(found))
    seqs = rows.column("seq").to_numpy()
    return rows.take(pa.array(np.argsort(seqs, kind="stable")))


def newest_segment(directory: str | os.PathLike[str]) -> Segment | None:
    """The last segment of a capture's directory, None if there is none. Of the other segments only names are read.

    Args:
        directory: a path, or a URI that `pyarrow.fs` knows.

    Raises:
        ValueError: for a Parquet file that is not named as `write_segment` names it; and as `open_segment`.
    """
    return _newest(open_store(directory))


def _open(path: str | os.PathLike[str]) -> Segment:
    """As `open_segment`, but without a check that catalog and state can be read."""
    try:
        with open_parquet(path) as file:
            return segment_of(place_of(path), file.metadata)
    except pa.ArrowInvalid as problem:
        raise damaged(path, problem) from None


def open_parquet(path: str | os.PathLike[str]) -> pq.ParquetFile:
    """Opens the file of a segment, however large its footer is. Its pages are checked when they are read."""
    return pq.ParquetFile(
        open_file(os.fspath(path)), thrift_string_size_limit=MOST_READ, page_checksum_verification=True
    )


def damaged(path: str | os.PathLike[str], problem: Exception) -> ValueError:
    """The error for a file that Arrow cannot read."""
    return ValueError(f"segment {shown(path)} is damaged: {problem}")


def _newest(store: Store) -> Segment | None:
    named = newest_named(store)
    return None if named is None else open_segment(store.at(named.name))


# ---- what is where -----------------------------------------------------------------------------------------------


def _checked(tagged: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    if tagged.schema.names != TAGGED_SCHEMA.names:
        raise ValueError(f"tagged payloads must have the columns {', '.join(TAGGED_SCHEMA.names)}")
    if not tagged.num_rows:
        raise ValueError("a segment needs at least one row")
    if tagged.nbytes > MOST_BYTES:
        raise ValueError("one segment can have 2 GiB of rows, and these are more: write several segments")
    if isinstance(tagged, pa.Table):
        (tagged,) = tagged.combine_chunks().to_batches()
    return tagged.cast(TAGGED_SCHEMA)


def _ordinals_of_rows(batch: pa.RecordBatch, state: StreamState) -> tuple[int, int]:
    """(first, last) ordinal of the rows. Checks that the state is the state behind them."""
    seqs = batch.column("seq").to_numpy()
    first, last = int(seqs.min()), int(seqs.max())
    if state.reorder_buffer is not None:
        raise ValueError(
            "this state has changes in its reorder buffer; a segment needs a state that `tag` gives"
        )
    if state.next_seq <= last:
        raise ValueError(
            f"the state continues with message {state.next_seq}, but the last row is message {last}"
        )
    return first, last


def _lsns_of_rows(batch: pa.RecordBatch, start: int | None, end: int | None) -> tuple[int | None, int | None]:
    """(start, end) as given, or else the smallest and largest LSN of the rows; None if no row has an LSN."""
    lsns = batch.column("lsn").drop_null().to_numpy()
    if len(lsns):
        start = int(lsns.min()) if start is None else start
        end = int(lsns.max()) if end is None else end
    return start, end


def _log_after(newest: Segment | None, log: KnownLog | None) -> KnownLog | None:
    """The log of the directory: the given one, or the one of an earlier call. It restarts if others wrote segments."""
    if log is None and newest is not None:
        log = _recent.pop(str(newest.path), None)
    if log is not None and not (newest is not None and log.follows(newest.known)):
        log.restart()
    return log


def _write_file(
    store: Store,
    name: str,
    batch: pa.RecordBatch,
    footer: dict[str, str],
    relation_bytes: int,
    row_group_bytes: int,
) -> None:
    """Writes the file of a segment and reads it back. In an object store, `footer` gets a mark of this call."""
    if not store.local:
        footer[WRITER] = json.dumps(secrets.token_hex(16))
    try:
        with store.write(name) as file:
            write_rows(file, batch, footer, relation_bytes, row_group_bytes)
            read_back(file, store, name, footer, batch.num_rows)
    except FileExistsError:
        raise FileExistsError(f"segment {shown(store.at(name))} exists; segments are never changed") from None


def _target(path: str | os.PathLike[str], *, a_file: bool = False) -> tuple[Store, str | None]:
    """(the store of a segment, its file name there). The name is None for a directory, where the ordinals give it.

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


def _versions_of(batch: pa.RecordBatch) -> list[int]:
    """Ids of the relation versions of these rows."""
    found: list[int] = batch.column("version").unique().drop_null().to_pylist()
    return found


def _remember(path: str, log: KnownLog) -> None:
    _recent[path] = log
    while len(_recent) > _MOST_RECENT:
        _recent.popitem(last=False)


# ---- the footer --------------------------------------------------------------------------------------------------


def footer_texts(
    source: Source,
    first: int,
    last: int,
    start_lsn: int | None,
    end_lsn: int | None,
    footing: Footing,
    joined: Joined | None = None,
) -> dict[str, str]:
    """The key-value metadata of a segment's file.

    Raises:
        ValueError: if a value is too long for a footer.
    """
    values: dict[str, Any] = {
        "format": _WITH_PARTS if footing.parts else FORMAT,
        "source": source.to_dict(),
        "first_seq": first,
        "last_seq": last,
        "start_lsn": start_lsn,
        "end_lsn": end_lsn,
    }
    if footing.parts:
        values["parts"] = [part.to_dict() for part in footing.parts]
    if joined is not None:
        values["joined"] = joined.to_dict()
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
    # Each is large if there are many relations, and a reader may need one without the other.
    texts |= {"catalog": footing.catalog, "state": footing.state}
    for name, text in texts.items():
        if len(text) > _MOST_TEXT:
            raise ValueError(
                f"the segment of messages {first} to {last} cannot be written: its {name} has {len(text)} characters, "
                f"and a footer can have {_MOST_TEXT}. The transactions that are open there described too many relations"
            )
    return {_PREFIX + name: text for name, text in texts.items()}


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
            f"segment {shown(place)} cannot be read back: {problem}. The file was removed. Check the disk"
        ) from None
    if segment.rows != rows or any(found.get(key) != text for key, text in footer.items()):
        raise OSError(
            f"segment {shown(place)} does not have what was written. The file was removed. Check the disk"
        )
    file.seek(0, os.SEEK_END)


def segment_of(path: Path | str, metadata: pq.FileMetaData) -> Segment:
    """What the footer of an open file says. This does not check that catalog and state can be read.

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
        raise ValueError(f"{shown(path)} is not a segment: it has no footer of pgoutput_fast")
    try:
        values = {name: json.loads(text) for name, text in texts.items() if name not in _APART}
        if values["format"] not in (FORMAT, _WITH_PARTS):
            raise ValueError(f"another version of pgoutput_fast wrote it: format {values['format']!r}")
        parts = [Part.from_dict(each) for each in values["parts"]] if values["format"] == _WITH_PARTS else []
        known = Known(
            texts["catalog"].decode(),
            texts["state"].decode(),
            parts,
            lambda: _target(path, a_file=True)[0],
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
        )
    except (KeyError, TypeError, ValueError) as problem:
        raise _no_segment(path, problem) from None


@lru_cache(maxsize=16)
def _source(text: bytes) -> Source:
    return Source.from_dict(json.loads(text))


def _no_segment(path: str | os.PathLike[str], problem: Exception) -> ValueError:
    return ValueError(f"{shown(path)} is not a segment of format 1 or 2: {problem}")


def _row_group(group: pq.RowGroupMetaData) -> RowGroup:
    column = group.column(_RELATION)
    statistics = column.statistics
    if column.path_in_schema != "relation" or statistics is None or not statistics.has_null_count:
        raise ValueError("its column `relation` has no statistics")
    relations = (statistics.min, statistics.max) if statistics.has_min_max else None
    # Its columns lie one after the other.
    last = group.column(group.num_columns - 1)
    nbytes = _start(last) + last.total_compressed_size - _start(group.column(0))
    of_txns = group.column(_TXN).statistics
    txns = (of_txns.min, of_txns.max) if of_txns is not None and of_txns.has_min_max else None
    return RowGroup(group.num_rows, nbytes, relations, statistics.null_count, txns)


def _start(column: pq.ColumnChunkMetaData) -> int:
    """Where a column of a row group begins in the file."""
    found = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
    return int(found)


def place_of(path: str | os.PathLike[str]) -> Path | str:
    """A URI as it is, anything else as a Path."""
    return path if isinstance(path, str) and "://" in path else Path(path)


def check_source(path: Path | str, source: Source, other: Source) -> None:
    """Checks that the segment at `path`, which has `source`, may lie beside segments of the other source.

    Raises:
        ValueError: if the sources differ.
    """
    if source is other:  # nearly always
        return
    here, there = source.to_dict(), other.to_dict()
    different = [name for name in here if here[name] != there[name]]
    if different:
        raise ValueError(
            f"a directory has segments of one source only: {shown(path)} has "
            + ", ".join(f"{name} {here[name]!r} instead of {there[name]!r}" for name in different)
        )


def _check_neighbours(store: Store, source: Source, first: int, last: int) -> Segment | None:
    """Checks that a new segment may go into the directory. Returns the newest segment there.

    Names sort in the order of the stream.
    """
    named = newest_named(store)
    if named is None:
        return None
    newest = _open(store.at(named.name))
    check_source(newest.path, newest.source, source)
    if first <= newest.last_seq:
        raise ValueError(
            f"{store} has messages up to {newest.last_seq}; a segment of messages {first} to {last} does not follow"
        )
    return newest

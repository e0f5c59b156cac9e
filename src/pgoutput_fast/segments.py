"""Segments: Parquet files of tagged payloads, laid out so that reading one table skips the others.

Control rows come first (everything but inserts, updates and deletes; of these the ones that concern no relation before
those that do), then the changes, clustered by (relation, version), in stream order within. Row groups are cut at
relations once they are worth it. The footer says where the stream stands behind the segment, so that it can go on; what
it has no room for lies in parts beside the segments (`segment_known`). A footer without parts has format 1, one with
parts format 2.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pgoutput_fast.catalog import Catalog
from pgoutput_fast.decoder import decode_tagged
from pgoutput_fast.kinds import OUTCOMES
from pgoutput_fast.lists import expect_list
from pgoutput_fast.lsn import Lsn, parse_lsn
from pgoutput_fast.schema import OUTCOMES_SCHEMA, TAGGED_SCHEMA
from pgoutput_fast.segment_known import Footing, Known, KnownLog, Part
from pgoutput_fast.segment_layout import write_rows
from pgoutput_fast.segment_names import name_of, named_segments
from pgoutput_fast.segment_paths import Paths, find_files, is_uri, open_file, shown
from pgoutput_fast.segment_stores import Store, open_store
from pgoutput_fast.state import StreamState

__all__ = [
    "RowGroup",
    "Segment",
    "Source",
    "list_segments",
    "newest_segment",
    "open_segment",
    "read_segment",
    "segment_catalog",
    "segment_outcomes",
    "write_segment",
]

# Without parts of the catalog beside the segments, and with them.
FORMAT, _WITH_PARTS = 1, 2
# Readers refuse a footer with a value of 100 MB, unless they are told otherwise: earlier versions wrote such ones.
_MOST_TEXT = 1 << 26
_MOST_READ = 1 << 30
_PREFIX = "pgoutput_fast."
# A row group of a relation is worth it from here on, and is cut at most there; bytes in memory.
_RELATION_BYTES = 1 << 20
_ROW_GROUP_BYTES = 1 << 26
MOST_BYTES = (1 << 31) - 1
# What is known of directories that this process wrote into last, by the path of their newest segments.
_MOST_RECENT = 4
_recent: OrderedDict[str, KnownLog] = OrderedDict()
_NO_ROWS = TAGGED_SCHEMA.empty_table()
_RELATION, _TXN = (TAGGED_SCHEMA.get_field_index(name) for name in ("relation", "txn"))


@dataclass(frozen=True)
class Source:
    """Where a stream comes from. Segments of several sources do not mix.

    Attributes:
        system_identifier: the server's, as `IDENTIFY_SYSTEM` and `pg_control_system()` say.
        database: its name.
        slot: the replication slot's name.
        publications: their names.
        options: the plugin's options, such as `proto_version`.

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
        """As JSON values."""
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
        rows: how many.
        nbytes: its size in the file.
        relations: smallest and largest relation oid in it; None if no row of it concerns a relation.
        bare: how many of its rows concern no relation: boundaries, messages, types and origins.
        txns: smallest and largest transaction key in it; None if no row belongs to a transaction, or it is not known.
    """

    rows: int
    nbytes: int
    relations: tuple[int, int] | None
    bare: int
    txns: tuple[int, int] | None = None

    def may_hold(self, relations: Collection[int]) -> bool:
        """Whether a row of one of these relations can be here."""
        expect_list("relations", relations, "oids")
        if self.relations is None:
            return False
        first, last = self.relations
        return any(first <= oid <= last for oid in relations)


@dataclass(frozen=True)
class Segment:
    """What the footer of a segment says.

    Attributes:
        path: the file, or its URI.
        source: where the stream comes from.
        first_seq, last_seq: ordinals of its first and last message.
        start_lsn, end_lsn: the positions between which it lies; None where not known. What is before `end_lsn` need
            not be sent again.
        row_groups: what lies where.
        known: what it says of relations, and of where the stream stands.
    """

    path: Path | str
    source: Source
    first_seq: int
    last_seq: int
    start_lsn: int | None
    end_lsn: int | None
    row_groups: tuple[RowGroup, ...]
    known: Known = field(repr=False, compare=False)

    @property
    def state(self) -> StreamState:
        """The stream's state behind it, to go on with.

        Raises:
            ValueError: if a part of the catalog that lies beside the segments is damaged, or not there.
        """
        return self.known.state

    @property
    def catalog(self) -> Catalog:
        """The relation versions and types known behind it: those of its rows, and those that later rows may be of.

        Raises:
            ValueError: as `state`.
        """
        return self.state.catalog

    @property
    def open_txns(self) -> list[int]:
        """Keys of the transactions that have not ended behind it, as the state's; only the footer is read."""
        return self.known.open_txns

    @property
    def rows(self) -> int:
        """How many tagged rows it has."""
        return sum(group.rows for group in self.row_groups)

    def row_groups_of(self, relations: Collection[int]) -> list[int]:
        """Which row groups can hold rows of these relations (oids)."""
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
    relation_bytes: int = _RELATION_BYTES,
    row_group_bytes: int = _ROW_GROUP_BYTES,
    log: KnownLog | None = None,
    file_mode: int | None = None,
) -> Path | str:
    """Writes a segment; once this returns it is durable, and until then no reader sees it.

    The file is written under a hidden name, read back, fsynced and linked under its own name. Then its directory is
    fsynced. In an object store it appears when its upload is complete. Where the catalog is too large for a footer,
    what is new of it goes into a file in `_catalog/` before.

    Args:
        path: the file, or a directory that exists; in it the file is named by its ordinals, so that names sort in the
            order of the stream. A URI that `pyarrow.fs` knows is a directory unless it ends in `.parquet`.
        tagged: rows with TAGGED_SCHEMA, as `tag` gives them.
        state: the stream's state behind them, as `tag` gives it.
        source: where they come from.
        start_lsn, end_lsn: the positions between which they lie, as `parse_lsn` takes them; the smallest and largest
            `lsn` of the rows if not given.
        relation_bytes: from this size on a relation has row groups of its own.
        row_group_bytes: a larger row group is cut.
        log: what the directory knows, of somebody who writes all of its segments; else it is found out.
        file_mode: the permissions that the file has at most, such as 0o640; by default the umask decides alone.

    Returns:
        The file's path, or its URI.

    Raises:
        ValueError: for no rows or more than 2 GiB of them, a state that is not the one behind them or that holds
            changes back, a position that is none, or a directory with segments of another source, or of these ordinals.
        FileExistsError: if the file exists: a segment is never changed. In a store, also if another process wrote it,
            or others of its messages, at the same time: then nothing of it may be acknowledged.
        OSError: if it cannot be written, or not be read back: nothing of it may be acknowledged then.

    >>> import tempfile, pgoutput_fast as pgo
    >>> from pgoutput_fast.encode import Writer
    >>> tagged, state = pgo.tag(Writer().begin(7, 100, 0))
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = write_segment(directory, tagged, state, source=Source("1", "shop", "slot"))
    ...     path.name, open_segment(path).state == state
    ('00000000000000000000-00000000000000000000.parquet', True)
    """
    start, end = (None if lsn is None else parse_lsn(lsn) for lsn in (start_lsn, end_lsn))
    batch = _checked(tagged)
    seqs = batch.column("seq").to_numpy()
    first, last = int(seqs.min()), int(seqs.max())
    if state.held is not None:
        raise ValueError("a segment's state is that of tagging; this one holds changes back")
    if state.next_seq <= last:
        raise ValueError(
            f"the state goes on with message {state.next_seq}, but the last row is message {last}"
        )
    lsns = batch.column("lsn").drop_null().to_numpy()
    if len(lsns):
        start = int(lsns.min()) if start is None else start
        end = int(lsns.max()) if end is None else end
    store, name = _target(path)
    store.limit(file_mode)
    if name is None:
        name = name_of(first, last)
        newest = _check_neighbours(store, source, first, last)
        if log is None and newest is not None:
            log = _recent.pop(str(newest.path), None)
        if log is not None and not (newest is not None and log.follows(newest.known)):
            log.restart()
    log = KnownLog(store) if log is None else log
    footing = log.step(state, _versions_of(batch), last)
    footer = _footer(source, first, last, start, end, footing)
    token = json.dumps(secrets.token_hex(16))
    if not store.local:
        footer[_PREFIX + "writer"] = token
    try:
        with store.write(name) as file:
            write_rows(file, batch, footer, relation_bytes, row_group_bytes)
            _read_back(file, store, name, footer, batch.num_rows)
    except FileExistsError:
        raise FileExistsError(f"segment {shown(store.at(name))} exists; segments are never changed") from None
    log.took(footing)
    _remember(str(store.at(name)), log)
    if not store.local:
        _expect_own(store, name, token, first, last)
    return store.at(name)


def open_segment(path: str | os.PathLike[str]) -> Segment:
    """Reads a segment's footer.

    Raises:
        ValueError: if the file is damaged, no segment, or one of a format that this version does not know.
        FileNotFoundError: if it is not there.
    """
    segment = _open(path)
    try:
        segment.known.check()
    except (KeyError, TypeError, ValueError) as problem:
        raise _no_segment(path, problem) from None
    return segment


def read_segment(
    path: str | os.PathLike[str],
    *,
    relations: Collection[int] | None = None,
    row_groups: Sequence[int] | None = None,
) -> pa.Table:
    """The tagged rows of a segment, in stream order.

    Args:
        path: the file.
        relations: only rows of these relations (oids), their Relation and Truncate messages included. Row groups that
            can have none are not read.
        row_groups: only what lies in these.

    Raises:
        ValueError: as `open_segment`.
    """
    expect_list("relations", relations, "oids")
    expect_list("row_groups", row_groups, "ordinals")
    try:
        with pq.ParquetFile(open_file(os.fspath(path)), thrift_string_size_limit=_MOST_READ) as file:
            segment = _segment(_place(path), file.metadata)
            chosen = range(len(segment.row_groups)) if row_groups is None else row_groups
            if relations is not None:
                chosen = [k for k in chosen if segment.row_groups[k].may_hold(relations)]
            # Old versions of Arrow cannot read no row group.
            rows = file.read_row_groups(list(chosen), columns=TAGGED_SCHEMA.names) if chosen else _NO_ROWS
    except pa.ArrowException as problem:
        raise ValueError(f"segment {shown(path)} is damaged: {problem}") from None
    rows = rows.cast(TAGGED_SCHEMA)
    if relations is not None:
        found = np.isin(rows.column("relation").fill_null(-1).to_numpy(), list(relations))
        rows = rows.filter(pa.array(found))
    seqs = rows.column("seq").to_numpy()
    return rows.take(pa.array(np.argsort(seqs, kind="stable")))


def list_segments(paths: Paths) -> list[Segment]:
    """The segments of a directory, or those at some paths, in stream order.

    Args:
        paths: a file, a directory or a glob, or several of them; local, or URIs that `pyarrow.fs` knows, such as
            `s3://bucket/segments`.

    Raises:
        FileNotFoundError: for a path that is not there.
        ValueError: if they come from several sources, or if two have the same ordinals; and as `open_segment`.
    """
    segments = sorted((open_segment(path) for path in find_files(paths)), key=lambda each: each.first_seq)
    for before, after in pairwise(segments):
        _check_source(after.path, after.source, before.source)
        if after.first_seq <= before.last_seq:
            raise ValueError(
                f"segments {shown(before.path)} and {shown(after.path)} both have message {after.first_seq}: "
                "they are not of one capture"
            )
    return segments


def newest_segment(directory: str | os.PathLike[str]) -> Segment | None:
    """The segment with which a capture's directory ends, None if there is none; of the others only names are read.

    Args:
        directory: a path, or a URI that `pyarrow.fs` knows.

    Raises:
        ValueError: for a Parquet file that is not named as `write_segment` names it; and as `open_segment`.
    """
    return _newest(open_store(directory))


def _open(path: str | os.PathLike[str]) -> Segment:
    """As `open_segment`, but of what it knows only that it is there."""
    try:
        with pq.ParquetFile(open_file(os.fspath(path)), thrift_string_size_limit=_MOST_READ) as file:
            return _segment(_place(path), file.metadata)
    except pa.ArrowInvalid as problem:
        raise ValueError(f"segment {shown(path)} is damaged: {problem}") from None


def _newest(store: Store) -> Segment | None:
    names = named_segments(store)
    return open_segment(store.at(names[-1].name)) if names else None


def segment_catalog(paths: Paths) -> Catalog:
    """The relation versions and types that segments' footers know, from the oldest to the newest.

    Raises:
        ValueError: as `list_segments`.
    """
    return Catalog.of_all(segment.catalog for segment in list_segments(paths))


def segment_outcomes(paths: Paths) -> pa.RecordBatch:
    """The fates of transactions that segments tell, as `Decoded.outcomes`; only control rows are read.

    Raises:
        DecodeError: if a boundary message is malformed.
        ValueError: as `list_segments`.
    """
    return one_batch([outcomes_of(segment) for segment in list_segments(paths)], OUTCOMES_SCHEMA)


def outcomes_of(segment: Segment) -> pa.RecordBatch:
    """The fates that the control rows of one segment tell."""
    groups = [k for k, group in enumerate(segment.row_groups) if group.bare]
    rows = read_segment(segment.path, row_groups=groups)
    ends = np.isin(rows.column("kind").to_numpy(), OUTCOMES)
    return decode_tagged(rows.filter(pa.array(ends)), Catalog()).outcomes


def one_batch(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """All of them in one."""
    found = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return found[0] if found else pa.RecordBatch.from_pylist([], schema)


# ---- what is where -----------------------------------------------------------------------------------------------


def _checked(tagged: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    if tagged.schema.names != TAGGED_SCHEMA.names:
        raise ValueError(f"tagged payloads have the columns {', '.join(TAGGED_SCHEMA.names)}")
    if not tagged.num_rows:
        raise ValueError("a segment has at least one row")
    if tagged.nbytes > MOST_BYTES:
        raise ValueError("more than 2 GiB in one segment: write several")
    if isinstance(tagged, pa.Table):
        (tagged,) = tagged.combine_chunks().to_batches()
    return tagged.cast(TAGGED_SCHEMA)


def _target(path: str | os.PathLike[str], *, a_file: bool = False) -> tuple[Store, str | None]:
    """(where a segment goes, what it is called there); None for what its ordinals say, unless it is `a_file`."""
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
    """That nobody else wrote the segment, or its messages, since it was looked for: a store does not see to that."""
    with pq.ParquetFile(open_file(os.fspath(store.at(name)))) as file:
        found = (file.metadata.metadata or {}).get(f"{_PREFIX}writer".encode())
    others = [name] if found != token.encode() else []
    if name == name_of(first, last):
        overlapping = [each.name for each in named_segments(store) if each.overlaps(first, last)]
        others += [each for each in overlapping if each != name]
    if others:
        raise FileExistsError(
            f"another process wrote messages of {first} to {last} into {store} at the same time, as {others[0]}: see "
            "that only one goes on"
        )


def _versions_of(batch: pa.RecordBatch) -> list[int]:
    """Ids of the relation versions of some rows."""
    found: list[int] = batch.column("version").unique().drop_null().to_pylist()
    return found


def _remember(path: str, log: KnownLog) -> None:
    _recent[path] = log
    while len(_recent) > _MOST_RECENT:
        _recent.popitem(last=False)


# ---- the footer --------------------------------------------------------------------------------------------------


def _footer(
    source: Source, first: int, last: int, start_lsn: int | None, end_lsn: int | None, footing: Footing
) -> dict[str, str]:
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
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
    # Large where there are many relations, and the one needed without the other.
    texts |= {"catalog": footing.catalog, "state": footing.state}
    for name, text in texts.items():
        if len(text) > _MOST_TEXT:
            raise ValueError(
                f"the segment of messages {first} to {last} cannot be written: its {name} has {len(text)} characters, "
                f"and a footer has room for {_MOST_TEXT}. Transactions that are open there described too many relations"
            )
    return {_PREFIX + name: text for name, text in texts.items()}


def _read_back(file: IO[bytes], store: Store, name: str, footer: dict[str, str], rows: int) -> None:
    """That the file can be read as a segment, before anybody else sees it."""
    file.flush()
    file.seek(0)
    place = store.at(name)
    try:
        metadata = pq.read_metadata(file)
        segment = _segment(place, metadata)
        segment.known.check()
        segment.known.check_parts()
        found = {key.decode(): value.decode() for key, value in (metadata.metadata or {}).items()}
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as problem:
        raise OSError(
            f"segment {shown(place)} was written, and cannot be read back: {problem}. It was left out"
        ) from None
    if segment.rows != rows or any(found.get(key) != text for key, text in footer.items()):
        raise OSError(
            f"segment {shown(place)} was written, and reads otherwise. It was left out: see to the disk"
        )
    file.seek(0, os.SEEK_END)


def _segment(path: Path | str, metadata: pq.FileMetaData) -> Segment:
    prefix = _PREFIX.encode()
    texts = {
        key[len(prefix) :].decode(): value
        for key, value in (metadata.metadata or {}).items()
        if key.startswith(prefix)
    }
    if "format" not in texts:
        raise ValueError(f"{shown(path)} is no segment: it has no footer of pgoutput_fast")
    try:
        values = {name: json.loads(text) for name, text in texts.items() if name not in ("catalog", "state")}
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
            Source.from_dict(values["source"]),
            int(values["first_seq"]),
            int(values["last_seq"]),
            values["start_lsn"],
            values["end_lsn"],
            tuple(_row_group(metadata.row_group(k)) for k in range(metadata.num_row_groups)),
            known,
        )
    except (KeyError, TypeError, ValueError) as problem:
        raise _no_segment(path, problem) from None


def _no_segment(path: str | os.PathLike[str], problem: Exception) -> ValueError:
    return ValueError(f"{shown(path)} is no segment of format 1 or 2: {problem}")


def _row_group(group: pq.RowGroupMetaData) -> RowGroup:
    column = group.column(_RELATION)
    statistics = column.statistics
    if column.path_in_schema != "relation" or statistics is None or not statistics.has_null_count:
        raise ValueError("its column relation has no statistics")
    relations = (statistics.min, statistics.max) if statistics.has_min_max else None
    nbytes = sum(group.column(k).total_compressed_size for k in range(group.num_columns))
    of_txns = group.column(_TXN).statistics
    txns = (of_txns.min, of_txns.max) if of_txns is not None and of_txns.has_min_max else None
    return RowGroup(group.num_rows, nbytes, relations, statistics.null_count, txns)


def _place(path: str | os.PathLike[str]) -> Path | str:
    """A path, or a URI as it is."""
    return path if isinstance(path, str) and "://" in path else Path(path)


def _check_source(path: Path | str, source: Source, other: Source) -> None:
    here, there = source.to_dict(), other.to_dict()
    different = [name for name in here if here[name] != there[name]]
    if different:
        raise ValueError(
            f"sources do not mix: {shown(path)} has "
            + ", ".join(f"{name} {here[name]!r} instead of {there[name]!r}" for name in different)
        )


def _check_neighbours(store: Store, source: Source, first: int, last: int) -> Segment | None:
    """That a new segment goes into the directory, and the newest one there. Names sort as the stream does."""
    names = named_segments(store)
    if not names:
        return None
    newest = _open(store.at(names[-1].name))
    _check_source(newest.path, newest.source, source)
    if first <= newest.last_seq:
        raise ValueError(
            f"{store} has messages up to {newest.last_seq}; a segment of messages {first} to {last} does not follow"
        )
    return newest

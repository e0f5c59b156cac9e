"""Joins many small segments into few large ones, while captures write and readers read.

A joined segment has the ordinals of its first and last part in its name. So it covers its parts, and listings omit
covered segments: once the joined segment appears, readers have its rows and not those of its parts. The parts are
removed later, when no reader uses them any more. After a crash between the two steps, the next call removes them. The
footer lists the joined segments, so nothing else is removed.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from pgoutput_fast.base.arguments import expect_count
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.segments.catalog import CATALOG_DIRECTORY, content_of_joined, sweep_joined
from pgoutput_fast.segments.footer import OUTCOMES, WRITER, footer_texts, seal, segment_of
from pgoutput_fast.segments.join import Member, count_rows, opened, write_joined
from pgoutput_fast.segments.joined import Joined, removal_lock
from pgoutput_fast.segments.names import Named, all_named, cover, dated_segments, name_of, overlap_error
from pgoutput_fast.segments.outcomes import joined_text
from pgoutput_fast.segments.read import open_segment
from pgoutput_fast.segments.segment import check_source
from pgoutput_fast.segments.write import RELATION_BYTES, ROW_GROUP_BYTES, read_back
from pgoutput_fast.storage.lease import Role, WriterLease
from pgoutput_fast.storage.stores import Entry, Store, open_store

__all__ = ["CompactBusyError", "Compacted", "compact", "unfinished_of_compact"]

# A reader may load a whole segment: its rows have at most about this many bytes in memory.
_MOST_MEMORY = 1 << 29
_ROW_BYTES = 80
# A starting capture holds the lock of a compact for a moment, to check whether one is running.
_LOCK_SECONDS = 0.5
# Unfinished segments, and unfinished part files of the catalog.
_HIDDEN = re.compile(
    r"\.(?:[0-9]{20}-(?P<last>[0-9]{20})\.parquet|(?P<only>[0-9]{20})-[0-9a-f]{64}\.jsonl\.zst)\.[0-9a-f]{16}"
)
_PAYLOAD = TAGGED_SCHEMA.get_field_index("payload")


class CompactBusyError(RuntimeError):
    """Another process joins segments of this directory. Retry when it has ended."""


_ROLE = Role(
    "compacts",
    "try again when it has ended",
    "compact again",
    CompactBusyError,
    lock=".compact.lock",
    mark="_compact.json",
    heartbeats="_compact",
)


class _PartsGoneError(Exception):
    """Segments that were to be joined have been removed."""


@dataclass(frozen=True)
class Compacted:
    """The result of a call of `compact`.

    Attributes:
        before, after: the number of segments visible to readers before and after it.
        joined: how many of them were joined.
        rows: the number of tagged rows in these.
        bytes_before: the size of the joined files, in bytes.
        bytes_after: the size of the files written, in bytes.
        removed: the number of removed files that this call or an earlier one had joined.
        waiting: the number of joined files that are kept because the grace period has not passed. A later call removes
            them.
    """

    before: int
    after: int
    joined: int
    rows: int
    bytes_before: int
    bytes_after: int
    removed: int
    waiting: int


def compact(
    directory: str | os.PathLike[str],
    *,
    most_bytes: int = 128 << 20,
    keep: int = 2,
    grace: timedelta | float = 600.0,
) -> Compacted:
    """Joins consecutive small segments into large ones. Call it periodically, for example every hour.

    A capture may write into the directory at the same time, and readers may read. They see each row exactly once at any
    time: a listing shows the joined segment, or the segments that were joined into it, and never both. The rows, their
    ordinals, the outcomes, and the footers' state at the end of each joined segment stay the same.

    A segment that is already large is rewritten only if it grows by half.

    Args:
        directory: directory of the segments; a path, or a URI that `pyarrow.fs` knows.
        most_bytes: the maximum total size of the files joined into one. Their rows also have at most about 512 MiB in
            memory.
        keep: the number of newest segments left as they are, at least 1: a capture continues from the newest.
        grace: how long segments are kept after they were joined (a timedelta, or seconds), for running queries. The
            next call removes them. With 0, this call removes them: use that only if nobody reads.

    Returns:
        The counts of segments, rows and bytes.

    Raises:
        CompactBusyError: if another process compacts this directory.
        FileNotFoundError: if the directory does not exist.
        TypeError: for a limit that is not a number.
        ValueError: for a limit that is not positive; for a file that is damaged or not a segment; for segments of
            several sources, or with the same messages.
        OSError: if a segment cannot be read, written or removed. Nothing is lost: call it again.

    >>> import tempfile, pgoutput_fast as pgo
    >>> from pgoutput_fast.encode import Writer
    >>> from pgoutput_fast.segments import Source, list_segments, write_segment
    >>> server, state = Writer(), None
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     for n in range(5):
    ...         message = server.begin(n, 100 + n, 0) + server.commit(100 + n, 101 + n, 0)
    ...         tagged, state = pgo.tag(message, state)
    ...         path = write_segment(directory, tagged, state, source=Source("1", "shop", "slot"))
    ...     done = compact(directory, keep=1, grace=0)
    ...     done.before, done.after, [(each.first_seq, each.last_seq) for each in list_segments(directory)]
    (5, 2, [(0, 7), (8, 9)])
    """
    for name, value in (("most_bytes", most_bytes), ("keep", keep)):
        expect_count(name, value)
    if not isinstance(grace, timedelta | int | float):
        raise TypeError(f"grace must be a timedelta or a number of seconds, not a {type(grace).__name__}")
    seconds = grace.total_seconds() if isinstance(grace, timedelta) else float(grace)
    if not seconds >= 0:
        raise ValueError(f"grace must be at least 0 seconds, not {seconds}")
    store = open_store(directory)
    with _alone(store) as lease:
        # The files removed below are contained in joined segments, so these must be durable.
        store.harden()
        _sweep_unfinished(store)
        removed, waiting = _remove_joined(store, seconds)
        before, files, groups = _plan(store, most_bytes, keep)
        done: list[tuple[Sequence[Member], int, int]] = []
        for group in groups:
            for members in _within_memory(store, group, files):
                lease.check()
                try:
                    done.append((members, *_join(store, members)))
                except (_PartsGoneError, FileNotFoundError, ValueError) as problem:
                    # Retention may have removed segments in the meantime, together with their catalogs.
                    if isinstance(problem, ValueError) and _are_there(store, members):
                        raise
        if done and not seconds:
            more, waiting = _remove_joined(store, seconds)
            removed += more
        elif done:
            waiting += sum(len(members) for members, _, _ in done)
    count = sum(len(members) for members, _, _ in done)
    return Compacted(
        before,
        before - count + len(done),
        count,
        sum(rows for _, rows, _ in done),
        sum(member.nbytes for members, _, _ in done for member in members),
        sum(nbytes for _, _, nbytes in done),
        removed,
        waiting,
    )


def unfinished_of_compact(store: Store, found: Sequence[Entry]) -> set[str]:
    """The names of the unfinished files that may belong to a running compact.

    Args:
        store: the store with the segments.
        found: files listed before this call, so that a compact that begins later has none of them.
    """
    newest = max(all_named(store), default=None)
    if newest is None or not store.local or not WriterLease(store, _ROLE).is_locked():
        return set()
    return {entry.name for entry in found if _is_of_compact(entry.name, newest)}


# ---- exclusive access --------------------------------------------------------------------------------------------


@contextmanager
def _alone(store: Store) -> Iterator[WriterLease]:
    """Holds the right to compact during the block.

    Raises:
        CompactBusyError: if another process has it.
    """
    if store.local and not Path(store.at("")).is_dir():
        raise FileNotFoundError(f"there are no segments at {store}: no such directory")
    lease = WriterLease(store, _ROLE)
    lease.acquire(wait_seconds=_LOCK_SECONDS)
    try:
        yield lease
    finally:
        lease.release()


# ---- removal -----------------------------------------------------------------------------------------------------


def _remove_joined(store: Store, grace: float) -> tuple[int, int]:
    """Removes segments joined longer ago than `grace` seconds. Returns (number removed, number still waiting)."""
    dated = dated_segments(store)
    removed = waiting = 0
    for whole, parts in cover(dated)[1].items():
        try:
            segment = open_segment(store.at(whole.name))
        except FileNotFoundError:
            continue  # retention removed all of them in the meantime
        for part in parts:
            if not segment.replaces(part.first_seq, part.last_seq):
                raise overlap_error(f"{store}: {whole.name} and {part.name}", part.first_seq)
        if grace and time.time() - dated[whole] < grace:
            waiting += len(parts)
            continue
        segment.known.check_parts()
        removed += sum(store.remove(part.name) for part in parts)
        sweep_joined(store, segment.known, segment.first_seq, segment.last_seq)
    return removed, waiting


def _sweep_unfinished(store: Store) -> None:
    """Removes unfinished files of a killed compact. No other one runs."""
    newest = max(all_named(store), default=None)
    if newest is None or not store.local:
        return
    for name in [*store.names(), *store.names(CATALOG_DIRECTORY)]:
        if _is_of_compact(name, newest):
            store.remove(name)


def _is_of_compact(name: str, newest: Named) -> bool:
    """Whether a file is unfinished and its messages precede those of the newest segment."""
    match = _HIDDEN.fullmatch(name.removeprefix(f"{CATALOG_DIRECTORY}/"))
    return match is not None and int(match["last"] or match["only"]) < newest.first_seq


# ---- joining -----------------------------------------------------------------------------------------------------


def _plan(store: Store, most_bytes: int, keep: int) -> tuple[int, dict[str, Entry], list[list[Named]]]:
    """Returns (number of segments, the files, groups of segments to join). Reads no footers."""
    files = {entry.name: entry for entry in store.entries()}
    listed, covered = cover(each for each in all_named(store) if each.name in files)
    runs: list[list[Named]] = [[]]
    for before, each in pairwise([None, *listed[:-keep]]):
        assert each is not None
        # Waiting parts of a joined segment would otherwise be in two joined ones.
        if before is not None and (before in covered or before.last_seq + 1 != each.first_seq):
            runs.append([])
        if each not in covered:
            runs[-1].append(each)
    groups = [
        run[begin:end]
        for run in runs
        for begin, end in _worthwhile([files[each.name].nbytes for each in run], most_bytes)
    ]
    return len(listed), files, groups


def _worthwhile(sizes: Sequence[int], most: int) -> list[tuple[int, int]]:
    """(begin, end) of the segments to join: at most `most` bytes in total, of which the largest has at most two thirds.

    So a row is rewritten only when its segment grows by half, however often `compact` is called.
    """
    found = []
    begin = 0
    while begin < len(sizes):
        total = largest = end = 0
        for at in range(begin, len(sizes)):
            total, largest = total + sizes[at], max(largest, sizes[at])
            if total > most:
                break
            if at > begin and largest * 3 <= total * 2:
                end = at + 1
        if end:
            found.append((begin, end))
        begin = end or begin + 1
    return found


def _within_memory(store: Store, group: Sequence[Named], files: dict[str, Entry]) -> Iterator[list[Member]]:
    """Splits a group where its rows are too large for a reader's memory. Checks that all have the same source."""
    members: list[Member] = []
    memory = 0
    try:
        for each in group:
            member = _member(store, files[each.name])
            if members:
                check_source(member.path, member.source, members[-1].source)
            if members and memory + member.memory > _MOST_MEMORY:
                if len(members) > 1:
                    yield members
                members, memory = [], 0
            members.append(member)
            memory += member.memory
    except FileNotFoundError:
        return  # retention removed them in the meantime
    if len(members) > 1:
        yield members


def _member(store: Store, file: Entry) -> Member:
    place = store.at(file.name)
    with opened(place) as file_there:
        metadata = file_there.metadata
        segment = segment_of(place, metadata)
        groups = [metadata.row_group(k) for k in range(metadata.num_row_groups)]
        payloads = sum(group.column(_PAYLOAD).total_uncompressed_size for group in groups)
    named = Named(segment.first_seq, segment.last_seq, file.name)
    if name_of(named.first_seq, named.last_seq) != file.name:
        raise ValueError(f"{store}: {file.name} has other messages than its name says. Give it its old name")
    return Member(
        file.name,
        place,
        segment.source,
        segment.first_seq,
        segment.last_seq,
        segment.start_lsn,
        segment.end_lsn,
        file.nbytes,
        payloads + _ROW_BYTES * segment.rows,
        file.modified if segment.joined is None else segment.joined.written,
        segment.outcomes,
    )


def _join(store: Store, members: Sequence[Member]) -> tuple[int, int]:
    """Writes one segment with the rows of all. Returns (number of rows, size of the file in bytes)."""
    first, last = members[0], members[-1]
    if store.local:
        # The joined file must not be readable by more users than the others.
        store.limit(os.stat(last.path).st_mode & 0o666 | 0o600)
    name = name_of(first.first_seq, last.last_seq)
    counted = count_rows(members)
    content = content_of_joined(
        store,
        (open_segment(each.path).known for each in members[:-1]),
        open_segment(last.path).known,
        counted.versions - {0},
        last.last_seq,
    )
    footer = footer_texts(
        last.source,
        first.first_seq,
        last.last_seq,
        min((each.start_lsn for each in members if each.start_lsn is not None), default=None),
        max((each.end_lsn for each in members if each.end_lsn is not None), default=None),
        content,
        Joined(tuple(each.first_seq for each in members), max(each.written for each in members)),
    )
    if (outcomes := reduce(joined_text, (each.outcomes for each in members))) is not None:
        footer[OUTCOMES] = outcomes
    if not store.local:
        footer[WRITER] = json.dumps(secrets.token_hex(16))
    seal(footer)
    with ExitStack() as until_there, store.write(name) as file:
        try:
            write_joined(file, counted, footer, RELATION_BYTES, ROW_GROUP_BYTES)
        except pa.ArrowException as problem:
            raise ValueError(f"a segment of messages {name} is damaged: {problem}") from None
        read_back(file, store, name, footer, counted.total)
        nbytes = os.fstat(file.fileno()).st_size
        until_there.enter_context(removal_lock(store))
        _expect_members(store, members)
    if not store.local:
        _expect_no_other(store, Named(first.first_seq, last.last_seq, name), members)
    return counted.total, nbytes


def _expect_members(store: Store, members: Sequence[Member]) -> None:
    """Checks that all of them exist: rows removed by retention must not come back."""
    if not _are_there(store, members):
        raise _PartsGoneError


def _are_there(store: Store, members: Sequence[Member]) -> bool:
    there = {each.name for each in all_named(store)}
    return all(member.name in there for member in members)


def _expect_no_other(store: Store, joined: Named, members: Sequence[Member]) -> None:
    """Checks that no other process joined some of these segments at the same time, which a store cannot prevent."""
    own = {joined.name, *(member.name for member in members)}
    for each in all_named(store):
        if each.overlaps(joined.first_seq, joined.last_seq) and each.name not in own:
            raise CompactBusyError(
                f"another process joined segments of {store} at the same time: {joined.name} and {each.name} have the "
                "same messages. No segment was removed. Remove one of these two, and compact again"
            )

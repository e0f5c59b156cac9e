"""Writes tagged payloads as segments."""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_fast.base.arguments import expect_count
from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.decoding.state import StreamState
from pgoutput_fast.protocol.kinds import SESSION_MARK
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.segments.names import (
    all_named,
    named_segments,
    ordinals_of,
    published_name,
    unpublished_names,
)
from pgoutput_fast.segments.read import newest_segment, read_segment
from pgoutput_fast.segments.segment import Segment, check_source
from pgoutput_fast.spark.dataframes.tagged import (
    RangesOfTask,
    Untagged,
    ends_of,
    expect_tagged,
    has_rejected,
    untagged_of,
)
from pgoutput_fast.spark.sessions import cores_of
from pgoutput_fast.spark.shipping import shipped
from pgoutput_fast.spark.tagging.states import given_state
from pgoutput_fast.spark.tasks.segments import (
    SOURCE,
    WRITTEN_SCHEMA,
    TaskStart,
    WriteSegments,
    others_write,
)
from pgoutput_fast.spark.tasks.tag import TagThen
from pgoutput_fast.spark.types import spark_schema
from pgoutput_fast.spark.workers import check_workers
from pgoutput_fast.storage.paths import absolute, redacted_uri
from pgoutput_fast.storage.stores import Store, make_target, open_store

__all__ = ["write_segments"]

# Then segments become visible often enough, and few cores wait for the last tasks.
_TASKS_PER_CORE = 4
# The position where the stream continues after messages without rows.
_NEXT = "_next.json"


def write_segments(
    tagged: DataFrame,
    directory: str | os.PathLike[str],
    *,
    state: StreamState | str | None = None,
    segment_bytes: int = 64 << 20,
) -> list[Path | str]:
    """Writes tagged payloads as segments, which `list_segments`, `read_segment` and `format("pgoutput")` read.

    If `tagged` is what `tag` returned for files that the tasks read themselves, several tasks write, each the segments
    of consecutive rows: `tag` knows the state of the stream where these begin. In any other case Spark shuffles the
    rows once to one task and sorts them there, on disk if they do not fit into memory. A task tags its rows again,
    which also checks them, and has the rows of one segment in memory.

    The driver makes segments visible by renaming them one by one, in stream order: when the only task has ended, or
    with several tasks, when four per core have ended. If the call fails or is killed, the existing segments are valid:
    call it again with the same result of `tag`, which goes on after them, or remove them. The next call removes the
    hidden files of a killed one. Only one process may write into a directory.

    A directory with segments must be continued: the first row has the next ordinal. If the directory already has the
    first rows of a result of `tag`, because the call is a repetition, these are skipped. Messages without rows, such as
    logical messages repeated by a new session, are not a gap: pass the result of `tag`, because the rows alone do not
    show this. If a result has only such messages, the file `_next.json` records where the stream continues. No capture
    continues these segments, because they do not name a server and a slot.

    Messages that `tag` rejected are in the segments, too. `format("pgoutput")` leaves them out, and so does
    `write_tables` of the segments; `rejects(spark.read.parquet(directory))` gives them.

    Args:
        tagged: all rows of a result of `tag` (or of several consecutive ones), in any order.
        directory: a path, or a URI that `pyarrow.fs` knows, visible to the driver and the executors. It is created if
            it does not exist. It is empty or has the segments of the preceding messages.
        state: the state before the first row, or its JSON text. Default: the state with which `tag` began, or the one
            after the directory's segments, or the beginning of a stream.
        segment_bytes: a segment is written when its payloads have this size, in bytes, or when it has a million rows.
            With several tasks it may have half of this size, or one and a half times it, so that the tasks have
            segments of about one size.

    Returns:
        The paths or URIs of the new segments, in stream order; an empty list without rows.

    Raises:
        NotADirectoryError: if the directory, or one of its parents, is a file.
        TypeError: for a `segment_bytes` that is not an integer.
        ValueError: if `tagged` lacks a column of TAGGED_SCHEMA; if the directory has other files, segments of a
            capture, or segments that the rows do not follow; for a wrong argument.
        FileExistsError: if another process wrote segments into the directory at the same time.
        RuntimeError: if Spark's Python workers run another Python than this one.
        PySparkException: if the task fails: if the rows do not follow the state or are incomplete, or if a segment
            cannot be written.

    Example:
        wal = pgspark.tag(dump, order_by="place")
        pgspark.write_segments(wal, "segments/")
        orders = spark.read.format("pgoutput").option("table", "public.orders").load("segments/")
    """
    expect_count("segment_bytes", segment_bytes)
    expect_tagged(tagged)
    check_workers(tagged)
    store = open_store(directory)
    make_target(store)
    place = absolute(directory)
    ends = ends_of(tagged)
    known = (
        ends.before if state is None and ends is not None else None if state is None else given_state(state)
    )
    next_seq = None if ends is None else ends.after.next_seq
    _remove_unpublished(store)  # of a call that was killed
    quarantine = has_rejected(tagged)

    def continued() -> WriteSegments:
        return replace(_continued(store, place, known, next_seq, segment_bytes), quarantine=quarantine)

    task, first = continued(), None
    last_seq = task.last_seq
    least_bytes = segment_bytes if state is None else math.inf
    try:
        while (left := _write(tagged, task, first, least_bytes, store)) != "nothing":
            task = continued()
            if left == "one task":
                least_bytes = math.inf
            first = _range_at(tagged, StreamState.from_json(task.state).next_seq)
            if first is not None:
                task = replace(task, last_payload=None)  # this call wrote it
    finally:
        with suppress(OSError):  # the next call removes them
            _remove_unpublished(store)
    newest = newest_segment(place)
    if newest is not None and next_seq is not None and next_seq > newest.state.next_seq:
        marks = tagged.where((F.col("kind") == SESSION_MARK) & (F.col("seq") > newest.last_seq))
        session = _note_after(store, newest).new_session or bool(marks.limit(1).collect())
        note = {"last_seq": newest.last_seq, "next_seq": next_seq, "new_session": session}
        store.put(_NEXT, json.dumps(note).encode())
    return [store.at(each.name) for each in named_segments(store) if each.last_seq > last_seq]


def _write(
    tagged: DataFrame, task: WriteSegments, first: int | None, least_bytes: float, store: Store
) -> Literal["nothing", "several tasks", "one task"]:
    """Writes segments and publishes them, all of them or the first ones. Returns what must write those that are left.

    Args:
        tagged: the rows.
        task: writes them, if it is one task.
        first: the number of the range where it begins, if known.
        least_bytes: a task gets at least so many, if several can write.
        store: the directory.
    """
    schema = spark_schema(WRITTEN_SCHEMA)
    untagged, more = untagged_of(tagged), False
    if untagged is None:
        rows = tagged.select(*TAGGED_SCHEMA.names).repartition(1)
        rows = rows.sortWithinPartitions("seq", "kind", F.length("payload").desc())
        written = rows.mapInArrow(shipped(task), schema)
    else:
        if first is None and task.last_payload is not None:
            # The range that has it.
            first = bisect_right(untagged.ranges, task.last_seq, key=lambda each: each.next_seq) - 1
        most = _TASKS_PER_CORE * cores_of(tagged.sparkSession)
        payloads, ranges = untagged.payloads.joined(first or 0, most, least_bytes)
        more = bool(ranges) and ranges[-1].end < len(untagged.ranges)
        task = _divided(replace(task, next_seq=None) if more else task, untagged, ranges)
        written = payloads.mapped(TagThen(untagged.task, task), schema)
    names = [row["unpublished"] for row in written.collect()]
    if task.last_payload is not None and None not in names:
        raise task.other_stream()
    if not _publish(store, task, [name for name in names if name is not None]):
        # Messages without rows are at the end of what a task got.
        return "one task"
    return "several tasks" if more else "nothing"


def _range_at(tagged: DataFrame, seq: int) -> int | None:
    """The number of the range that begins with a message; None if none does."""
    untagged = untagged_of(tagged)
    begins = [] if untagged is None else [each.next_seq for each in untagged.ranges]
    return begins.index(seq) if seq in begins else None


def _divided(task: WriteSegments, untagged: Untagged, ranges: list[RangesOfTask]) -> WriteSegments:
    """The task that several run, each for some ranges: they cut these into segments of about one size.

    Args:
        task: writes everything.
        untagged: the rows, with the starts of all ranges.
        ranges: the ranges of each task; one task may have none, and get all rows.
    """
    if len(ranges) < 2:
        return task
    divided = []
    for each in ranges:
        start, count = untagged.ranges[each.first], round(each.nbytes / task.segment_bytes)
        nbytes = each.nbytes // count if count else task.segment_bytes
        divided.append(TaskStart(start.next_seq, start.first, nbytes))
    first, *later = divided
    return replace(task, segment_bytes=first.segment_bytes, later=tuple(later), starts=untagged.task.starts)


def _publish(store: Store, task: WriteSegments, unpublished: list[str]) -> bool:
    """Renames the segments that follow each other, in stream order. Returns whether these are all.

    Raises:
        FileExistsError: if another process wrote segments meanwhile.
    """
    named = sorted((ordinals_of(published_name(name)), name) for name in unpublished)
    # The state of the last segment counts all messages. Without segments of the last task it does not.
    whole = not task.later or (bool(named) and named[-1][0][1] >= task.later[-1].next_seq)
    last, follows = task.last_seq, task.follows and task.last_seq >= 0
    published: list[str] = []
    _expect_own(store, task, published)
    for (first, end), name in named if whole else named[:-1]:
        if follows and first != last + 1:
            whole = False
            break
        try:
            store.rename(name, published_name(name), replace=False)
        except (FileExistsError, FileNotFoundError):
            raise others_write(store) from None
        published.append(published_name(name))
        last, follows = end, True
    _expect_own(store, task, published)
    return whole


def _expect_own(store: Store, task: WriteSegments, published: list[str]) -> None:
    """Checks that no other process wrote segments since the task was planned."""
    if [each.name for each in all_named(store) if each.last_seq > task.last_seq] != published:
        raise others_write(store)


def _remove_unpublished(store: Store) -> None:
    for name in unpublished_names(store):
        store.remove(name)


def _continued(
    store: Store, place: str, known: StreamState | None, next_seq: int | None, segment_bytes: int
) -> WriteSegments:
    """Returns the task.

    Args:
        store, place: the directory.
        known: the state before the first row, if known.
        next_seq: the ordinal with which the stream continues after the rows, if known.
        segment_bytes: as in `write_segments`.

    Raises:
        ValueError: if the directory has other files, or does not continue with the known state.
    """
    newest = newest_segment(place)
    if newest is None:
        # Including subdirectories, which may contain tables, for instance.
        others = [entry.name for entry in store.entries(recursive=True) if not entry.hidden]
        if others:
            raise ValueError(
                f"{store} is not empty and has no segments: it has {others[0]}. Use another directory"
            )
        with suppress(FileNotFoundError):
            store.remove(_NEXT)  # of segments that were removed
        return WriteSegments(
            place,
            (StreamState() if known is None else known).to_json(),
            reached=0 if known is None else None,
            last_seq=-1,
            follows=False,
            new_session=False,
            last_payload=None,
            next_seq=next_seq,
            segment_bytes=segment_bytes,
        )
    check_source(newest.path, newest.source, SOURCE)
    before, last_payload, note = newest.state, None, _note_after(store, newest)
    reached = note.next_seq
    if known is not None and not before.next_seq <= known.next_seq <= reached:
        if next_seq is None or not known.next_seq < before.next_seq <= next_seq:
            raise ValueError(
                f"the payloads begin with message {known.next_seq}, but {redacted_uri(place)} continues with message "
                f"{before.next_seq}: tag with state=segments.newest_segment(directory).state, or use another directory"
            )
        # A repetition, as far as the driver knows: the task compares the last message.
        rows = read_segment(newest.path)
        last = rows.filter(pc.equal(rows["seq"], newest.last_seq))["payload"]
        last_payload = max(last.to_pylist(), key=len)
    return WriteSegments(
        place,
        before.to_json(),
        reached=None if known is not None else reached,
        last_seq=newest.last_seq,
        follows=known is None
        or next_seq is not None,  # a given state does not prove that the rows begin there
        new_session=note.new_session,
        last_payload=last_payload,
        next_seq=next_seq,
        segment_bytes=segment_bytes,
    )


@dataclass(frozen=True)
class _Note:
    """Messages without rows after the newest segment.

    Attributes:
        next_seq: the ordinal with which the stream continues.
        new_session: whether a session began there.
    """

    next_seq: int
    new_session: bool


def _note_after(store: Store, newest: Segment) -> _Note:
    nothing = _Note(newest.state.next_seq, False)
    try:
        found = parsed_json(store.read(_NEXT))
        if found["last_seq"] != newest.last_seq:  # newer segments exist
            return nothing
        return _Note(max(nothing.next_seq, int(found["next_seq"])), bool(found["new_session"]))
    except FileNotFoundError:
        return nothing
    except (KeyError, OverflowError, TypeError, ValueError):
        raise ValueError(
            f"{store}/{_NEXT} is damaged: remove it, and tag with state=segments.newest_segment(directory).state"
        ) from None

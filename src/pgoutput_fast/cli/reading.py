"""Arguments of the commands that read messages, and the messages of the inputs that they name."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Annotated, Any, TypeAlias

import pyarrow as pa
import typer

from pgoutput_fast.base.arguments import UsageError, expect_given
from pgoutput_fast.cli.context import Context, Message
from pgoutput_fast.cli.inputs import Input, InputKind, Segments, opened
from pgoutput_fast.cli.payloads import DamagedInputError, InputError, Payloads
from pgoutput_fast.cli.screen import line
from pgoutput_fast.decoding.rejected_rows import message_of
from pgoutput_fast.protocol.kinds import KIND_NAMES, SESSION_MARK, UNKNOWN_OUTCOME
from pgoutput_fast.segments.listing import list_segments
from pgoutput_fast.segments.read import read_segment
from pgoutput_fast.segments.segment import Segment
from pgoutput_fast.segments.tail import SegmentStream
from pgoutput_fast.storage.paths import redacted_uri

__all__ = ["As", "Inputs", "messages_of", "segments_of", "the_inputs"]

Inputs: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="INPUT",
        show_default=False,
        help="a file, a directory or URI of segments, hex digits, or - for standard input",
    ),
]
As: TypeAlias = Annotated[
    InputKind | None,
    typer.Option("--as", help="what the input is; by default, the content decides"),
]

_PAUSE_SECONDS = 1.0
_ROWS = 1 << 12


@contextmanager
def the_inputs(
    given: Sequence[str] | None,
    kind: InputKind | None,
    dsn: str,
    slot: str | None,
    publications: Sequence[str] | None,
    *,
    most: int | None = None,
    follow: bool = False,
) -> Iterator[list[Input]]:
    """The inputs of a command: those of its arguments, or a slot.

    Raises:
        UsageError: if these arguments conflict.
        InputError: for something that is not an input.
    """
    if slot is None and not publications:
        with opened(given or [], kind, follow=follow) as found:
            if follow and not all(isinstance(each, Segments) for each in found):
                raise UsageError("--follow is for a slot and for a directory of segments")
            yield found
        return
    if given or kind is not None:
        raise UsageError("read either a slot or a file: leave out --slot and --publication, or the input")
    expect_given({"--slot": slot, "--publication": publications})
    from pgoutput_fast.cli.slot_input import SlotPayloads

    yield [SlotPayloads(dsn, slot or "", tuple(publications or ()), most, follow)]


def messages_of(source: Input, context: Context, *, follow: bool = False) -> Iterator[Message]:
    """The messages of an input.

    Args:
        source: the input.
        context: the tables and transactions known so far, which this updates.
        follow: whether to wait for further segments of a directory.

    Raises:
        DamagedInputError: after the last readable message.
    """
    if not isinstance(source, Segments):
        yield from _of_payloads(source, context)
        return
    for segment in segments_of(source, follow=follow):
        yield from _of_segment(segment)


def _of_payloads(source: Payloads, context: Context) -> Iterator[Message]:
    # Each peek begins at the slot's position. Repeated messages are skipped.
    given = newest = -1
    try:
        for batch in source.batches():
            if batch.starts_session:
                context.start_session()
                given = newest
            unknown = [None] * len(batch.payloads)
            lsns = unknown if batch.lsns is None else batch.lsns.to_pylist()
            for data, lsn in zip(batch.payloads, lsns, strict=True):
                message = context.read(data.as_py(), lsn)
                end = _end(message)
                if given < 0 or end is None or end > given:
                    yield message
                else:
                    context.next_seq -= 1
                newest = max(newest, end or 0)
    except DamagedInputError as problem:
        if problem.rest:
            yield context.read(problem.rest)
        raise


def _end(message: Message) -> int | None:
    """The LSN of the record that completed the message, or its transaction."""
    if message.end_lsn is None:
        return message.lsn
    # Here the LSN is after the record, possibly that of the next one.
    return message.end_lsn - (message.kind == "rollback_prepared")


def segments_of(source: Segments, *, follow: bool = False, gaps: bool = True) -> Iterator[Segment]:
    """The segments of an input, in stream order.

    Args:
        source: the segments.
        follow: whether to wait for further segments.
        gaps: whether messages may be missing between them, which a line on the screen then reports.

    Raises:
        InputError: if there is none, and for a gap.
        ValueError: if a file is not a segment, or is damaged.
    """
    found = list_segments(source.path)
    if not found and not follow:
        raise InputError(f"{redacted_uri(source.path)} has no segments")
    if not found and sys.stderr.isatty():
        line(f"{redacted_uri(source.path)} has no segments yet: waiting for the first one", error=True)
    for place, each in enumerate(found):
        if place and found[place - 1].last_seq + 1 < each.first_seq:
            gap = f"messages {found[place - 1].last_seq + 1} to {each.first_seq - 1} are missing"
            if not gaps:
                raise InputError(
                    f"{redacted_uri(source.path)}: {gap}. See what is wrong: pgoutput-fast segments verify"
                )
            print(f"pgoutput-fast: {gap}", file=sys.stderr)
        yield each
    if not follow:
        return
    stream, at = SegmentStream(source.path), found[-1].last_seq + 1 if found else None
    while True:
        for each in stream.each_footer(stream.begin() if at is None else at, stream.end()):
            yield each
            at = each.last_seq + 1
        time.sleep(_PAUSE_SECONDS)


def _of_segment(segment: Segment) -> Iterator[Message]:
    """The messages of a segment. A Truncate has a row for each relation, and one of them is the whole message."""
    catalog = segment.catalog
    for _, rows in groupby(_rows(read_segment(segment.path)), key=lambda row: row["seq"]):
        same = [row for row in rows if row["kind"] not in (SESSION_MARK, UNKNOWN_OUTCOME)]
        if same:
            whole = max(same, key=lambda row: len(message_of(row)))
            payload = message_of(whole)
            found = (catalog.get(row["version"]) for row in same if row["version"] is not None)
            yield Message(
                whole["seq"],
                payload,
                KIND_NAMES.get(payload[0] if payload else 0, "unknown"),
                whole["lsn"] or None,
                whole["commit_lsn"],
                whole["xid"],
                whole["in_stream"],
                tuple(each for each in found if each is not None),
            )


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    for start in range(0, table.num_rows, _ROWS):
        # The time of a commit may exceed Python's range, and is not needed.
        yield from table.slice(start, _ROWS).drop_columns(["commit_timestamp"]).to_pylist()

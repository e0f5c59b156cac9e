"""The tasks of `tag` on the executors. This module imports no PySpark; the driver pickles the instances.

The rows of the stream are split into consecutive ranges. A partition contains whole ranges, possibly several. The first
pass identifies a range by its number, the second by its first row.
"""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast._core.rows.decode import NativeDecoder
from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.base.errors import DecodeError
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.decoding.rejected_rows import tag_in_quarantine
from pgoutput_fast.decoding.state import StreamState, native_decoder, state_of
from pgoutput_fast.parallel_tag.summarizer import Summarizer
from pgoutput_fast.parallel_tag.survey import RangeSurvey
from pgoutput_fast.protocol.kinds import (
    MESSAGE_KINDS,
    MSG_INSERT,
    REJECTED,
    UNKNOWN_OUTCOME,
)
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.spark.tasks.order import ascending, runs_of, text_at
from pgoutput_fast.spark.tasks.parts import Parts
from pgoutput_fast.spark.tasks.rows import joined, rows_of_kinds, rows_of_relations
from pgoutput_fast.spark.tasks.survey import SURVEY_SCHEMA, Survey, Surveyor

__all__ = [
    "CHECKED_SCHEMA",
    "ERRORS_SCHEMA",
    "LSN",
    "OTHER_COLUMNS",
    "PAYLOAD",
    "RANGE",
    "SESSION",
    "SUMMARIES_SCHEMA",
    "ChangedInputError",
    "CheckRanges",
    "FindErrors",
    "Start",
    "Starts",
    "Summarize",
    "TagRanges",
    "TagThen",
    "ends_names",
    "gap",
    "packed",
]

# The columns sent to these tasks, in order: the number of the range (first pass only), the payload, the order columns,
# then LSN and session if present. Each column costs the JVM about 60 ns per row.
RANGE, PAYLOAD, LSN, SESSION = "range", "payload", "lsn", "session"
OTHER_COLUMNS = RANGE, PAYLOAD, LSN, SESSION  # all but the order columns

# Followed by the order columns of the range's first row and of its last row.
SUMMARIES_SCHEMA = pa.schema(
    [
        ("range", pa.int64()),
        ("count", pa.int64()),
        ("ascending", pa.bool_()),
        ("first", pa.string()),  # its position in the order, as text
        ("last", pa.string()),
        ("problem", pa.string()),  # an error in the order; then there is no summary
        ("damaged", pa.bool_()),  # whether messages are left out of the summary
        ("summary", pa.binary()),
        ("survey", pa.binary()),  # of a RangeSurvey; null in quarantine
    ]
)

ERRORS_SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("lsn", pa.int64()),
        ("byte_offset", pa.int64()),
        ("reason", pa.string()),
        ("kind", pa.string()),
    ]
)

# A row per range that was tagged in quarantine.
CHECKED_SCHEMA = pa.schema(
    [
        ("first", pa.string()),  # the position of its first row in the order, as text
        ("rejected", pa.bool_()),  # whether it has rejected messages, or unknown outcomes
        (
            "state",
            pa.binary(),
        ),  # values of the state after it, as compressed JSON; null if the summary suffices
        ("catalog", pa.string()),  # its new relation versions, as JSON; null if there is none
        *SURVEY_SCHEMA,
    ]
)


@dataclass(frozen=True)
class Start:
    """The start of a range for the second pass.

    Attributes:
        state: values of the stream's state before the range, as compressed JSON; None after the stream's first error.
        count, first, last: the number of rows and the positions of the first and last row in the first pass.
        next_seq: the ordinal of the first message.
        open_txns: keys of the transactions that are open there, ascending.
        versions: how many relation versions are known before the range, the first ones of the catalog; None for all.
        reports: whether the state after the range is to be reported in any case.
    """

    state: bytes | None
    count: int
    first: str
    last: str
    next_seq: int = 0
    open_txns: tuple[int, ...] = ()
    versions: int | None = None
    reports: bool = False

    @classmethod
    def of(cls, state: StreamState | None, count: int, first: str, last: str) -> Start:
        if state is None:
            return cls(None, count, first, last)
        values, versions = packed(state.values), len(state.catalog.relations)
        return cls(values, count, first, last, state.next_seq, tuple(state.open_txns), versions)

    def state_of(self, catalog: Catalog) -> StreamState | None:
        """The state before the range, with the relation versions of all states; None after the stream's first error."""
        if self.state is None:
            return None
        if self.versions is not None:
            catalog = Catalog(catalog.relations[: self.versions], catalog.types)
        return StreamState(parsed_json(zlib.decompress(self.state)), catalog)


def packed(values: Any) -> bytes:
    """Compressed JSON of the values of a state: equal values give equal bytes."""
    return zlib.compress(json.dumps(values, sort_keys=True).encode(), 1)


@dataclass(frozen=True)
class Starts:
    """The starts of all ranges, of which a task unpacks its own.

    Attributes:
        numbers: position of the first row of a range -> its number.
        packed: its start, pickled, by number.
        catalog: the relation versions in the states, as JSON.
    """

    numbers: Mapping[str, int]
    packed: Parts
    catalog: str

    @classmethod
    def of(cls, starts: Iterable[Start], catalog: str, share: Callable[[Iterable[bytes]], Parts]) -> Starts:
        """Packs starts."""
        known = {each.first: each for each in starts}
        packed = share(pickle.dumps(each) for each in known.values())
        return cls({first: number for number, first in enumerate(known)}, packed, catalog)

    def at(self, first: str) -> Start | None:
        """The start of the range with this first row; None if there is none."""
        number = self.numbers.get(first)
        return None if number is None else pickle.loads(self.packed[number])


def _order_of(part: pa.RecordBatch | pa.Table) -> list[pa.Array]:
    at = [k for k, name in enumerate(part.schema.names) if name not in OTHER_COLUMNS]
    columns: list[pa.Array] = [part.column(k) for k in at]
    return columns


def _sessions(part: pa.RecordBatch) -> Iterator[tuple[bool, pa.RecordBatch]]:
    """Splits a part where sessions start. Yields (whether a session starts here, rows)."""
    if SESSION not in part.schema.names:
        yield False, part
        return
    starts = pc.indices_nonzero(part.column(SESSION).fill_null(False)).to_pylist()
    edges = sorted({0, *starts, part.num_rows})
    for begin, end in pairwise(edges):
        yield begin in starts, part.slice(begin, end - begin)


@dataclass(frozen=True)
class Summarize:
    """Ranges -> one row per range, with SUMMARIES_SCHEMA and the order columns of its first and last row.

    Attributes:
        gaps: whether values may be missing in a single integer order column.
        names: names of the payload column and the order columns, for errors.
        in_order: whether the rows must be in order; then the task ends after the first range that is not.
        quarantine: whether damaged payloads are left out of the summary, which is then an estimate.
        commits: whether the surveys have the commits of all transactions.
    """

    gaps: bool
    names: tuple[str, ...]
    in_order: bool
    quarantine: bool = False
    commits: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, parts in runs_of(batches):
            survey = None if self.quarantine else RangeSurvey(commits=self.commits)
            summarizer, count, problem = Summarizer(lenient=self.quarantine, survey=survey), 0, None
            damaged = False
            first: pa.RecordBatch | None = None
            last: pa.RecordBatch | None = None
            is_ascending = True
            for part in parts:
                order = _joined(part, last)
                if self.in_order and not ascending(order):
                    is_ascending = False
                problem = problem or self._problem(part, order)
                for starts, some in _sessions(part) if problem is None else ():
                    if starts:
                        summarizer.start_session()
                    payloads = some.column(PAYLOAD)
                    if self.quarantine:
                        payloads, unreadable = _readable(payloads)
                        damaged = damaged or unreadable
                    summarizer.add(payloads, _lsns(some))
                first = part.slice(0, 1) if first is None else first
                last, count = part.slice(part.num_rows - 1), count + part.num_rows
                if not is_ascending:
                    break
            assert first is not None
            assert last is not None
            ends = [_order_of(first), _order_of(last)]
            whole = problem is None and is_ascending
            summary = summarizer.summary().to_bytes() if whole else None
            surveyed = survey.to_bytes() if whole and survey is not None else None
            damaged = damaged or summarizer.left_out
            places = [text_at(end, 0) for end in ends]
            row = [number, count, is_ascending, *places, problem, damaged, summary, surveyed]
            head = [pa.array([value], field.type) for value, field in zip(row, SUMMARIES_SCHEMA, strict=True)]
            yield pa.RecordBatch.from_arrays(
                [*head, *ends[0], *ends[1]],
                names=[*SUMMARIES_SCHEMA.names, *ends_names(len(ends[0]))],
            )
            if not is_ascending:
                return

    def _problem(self, part: pa.RecordBatch, columns: list[pa.Array]) -> str | None:
        """Returns a problem in a part's payloads or its order, also relative to the previous row, or None."""
        payload = part.column(PAYLOAD)
        if payload.null_count and not self.quarantine:
            row = pc.index(payload.is_null(), True).as_py()
            return f"column {self.names[0]} is null where {_describe_row(self.names[1:], part, row)}"
        for name, column in zip(self.names[1:], columns, strict=True):
            if column.null_count:
                return f"the order column {name} has nulls"
        if len(columns[0]) < 2:
            return None
        same = pa.array([True] * (len(columns[0]) - 1))
        for column in columns:
            same = pc.and_(same, _equal(column[1:], column[:-1]))
        row = pc.index(same, True).as_py()
        if row >= 0:
            return (
                f"two payloads have the same place: {_describe_place(self.names[1:], text_at(columns, row))}"
            )
        if not self.gaps and len(columns) == 1 and pa.types.is_integer(columns[0].type):
            # Values differ and ascend, so the difference of two neighbours is positive, or it overflows; an overflow is
            # a gap, too.
            row = pc.index(pc.not_equal(pc.subtract(columns[0][1:], columns[0][:-1]), 1), True).as_py()
            if row >= 0:
                return gap(self.names[1], columns[0][row].as_py(), columns[0][row + 1].as_py())
        return None


_KINDS = pa.array([bytes([kind]) for kind in MESSAGE_KINDS], pa.binary())


def _readable(payloads: pa.Array) -> tuple[pa.Array, bool]:
    """Replaces payloads whose kind is unknown by a change, which has no effect in a summary. Whether there is one."""
    known = pc.is_in(pc.binary_slice(payloads, 0, 1), _KINDS)
    if pc.all(known, min_count=0).as_py():
        return payloads, False
    return pc.if_else(known, payloads, bytes([MSG_INSERT])), True


def _equal(left: pa.Array, right: pa.Array) -> pa.Array:
    """Returns where values are equal. NaN equals NaN, as in Spark's order."""
    equal = pc.equal(left, right)
    if not pa.types.is_floating(left.type):
        return equal
    return pc.or_(equal, pc.and_(pc.is_nan(left), pc.is_nan(right)))


def ends_names(count: int) -> list[str]:
    """Returns the column names for the order columns of a range's first and last row."""
    return [f"{end}{k}" for end in ("first", "last") for k in range(count)]


def _joined(part: pa.RecordBatch, before: pa.RecordBatch | None) -> list[pa.Array]:
    """Returns a part's order columns, with the previous row in front."""
    columns = _order_of(part)
    if before is None:
        return columns
    return [pa.concat_arrays(pair) for pair in zip(_order_of(before), columns, strict=True)]


def _describe_place(names: tuple[str, ...], text: str) -> str:
    """Returns text for a position in the order, such as `(lsn, id) = ...`."""
    return f"{names[0] if len(names) == 1 else '(' + ', '.join(names) + ')'} = {text}"


def _describe_row(names: tuple[str, ...], part: pa.RecordBatch, row: int) -> str:
    return _describe_place(names, text_at(_order_of(part), row))


def gap(name: str, before: int, after: int) -> str:
    """Returns the error text for values that are not consecutive."""
    return f"after {name} = {before} comes {after}: pass gaps='allow' if nothing is missing between them"


def _lsns(part: pa.RecordBatch) -> pa.Array | None:
    if LSN not in part.schema.names:
        return None
    lsn = part.column(LSN)
    return None if lsn.null_count == len(lsn) else lsn.fill_null(0)


class ChangedInputError(RuntimeError):
    """The second read of the input gave other rows than the first."""


class _RangeTagger:
    """Splits arriving rows into ranges and tags them.

    Args:
        starts, names, quarantine: as in TagRanges.
        commits: whether the surveys of ranges in quarantine have the outcomes of transactions; None if nothing is to be
            said of ranges.

    Attributes:
        ends: the complete ranges since the caller last cleared this list, with CHECKED_SCHEMA, if `commits` is given.
    """

    def __init__(
        self, starts: Starts, names: tuple[str, ...], *, quarantine: bool = False, commits: bool | None = None
    ) -> None:
        self._commits = commits
        self._surveyor: Surveyor | None = None  # of the range
        self.ends: list[dict[str, Any]] = []
        self._options = Options(on_error="quarantine" if quarantine else "raise")
        self._rejected = False
        self._known = 0  # the number of relation versions at the start of the range
        self._starts = starts
        self._catalog = Catalog.from_json(starts.catalog)
        self._names = names
        self._start: Start | None = None  # of the last row's range, if that range continues
        self._native: NativeDecoder | None = None
        self._count = 0

    def tagged(
        self, batch: pa.RecordBatch, errors: list[DecodeError] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields the next rows, tagged. Rows after the stream's first error are skipped.

        Args:
            errors: collects errors instead of raising them; the rest of the range is then skipped.

        Raises:
            ChangedInputError: if the rows are not those that the first pass read.
            DecodeError: for a message that cannot be tagged; the error also contains its position in the order.
        """
        order, at = _order_of(batch), 0
        while at < batch.num_rows:
            start = self._start or self._begin_range(text_at(order, at))
            part = batch.slice(at, min(start.count - self._count, batch.num_rows - at))
            try:
                yield from self._tagged(part)
            except DecodeError as error:
                if errors is None:
                    raise
                errors.append(error)
                self._native = None
            at += part.num_rows
            self._count += part.num_rows
            self._start = start
            if self._count == start.count:
                if text_at(order, at - 1) != start.last:
                    raise _changed_input_error()
                self._start = None
                if self._surveyor is not None and self._native is not None:
                    self.ends.append(self._end(self._native, start, self._surveyor.survey()))

    def finish(self) -> None:
        """Checks that the last range is complete. Call it after the last row.

        Raises:
            ChangedInputError: if a range has fewer rows than in the first pass.
        """
        if self._start is not None:
            raise _changed_input_error()

    def _begin_range(self, first: str) -> Start:
        start = self._starts.at(first)
        if start is None:
            raise _changed_input_error()
        self._count, self._native, self._rejected = 0, None, False
        self._surveyor = None if self._commits is None else Surveyor(outcomes=self._commits)
        state = start.state_of(self._catalog)
        if state is not None:
            self._known = len(state.catalog.relations)
            self._native = native_decoder(self._options, state)
        return start

    @property
    def _quarantine(self) -> bool:
        return self._options.on_error == "quarantine"

    def _end(self, native: NativeDecoder, start: Start, survey: Survey) -> dict[str, Any]:
        """The range that has ended, with CHECKED_SCHEMA."""
        relations, count = native.relations
        new = relations[self._known : count]
        reports = self._rejected or start.reports
        return {
            "first": start.first,
            "rejected": self._rejected,
            "state": packed(state_of(native).values) if reports else None,
            "catalog": Catalog(new).to_json() if new else None,
            **survey.to_row(),
        }

    def _tagged(self, part: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        native = self._native
        for starts, some in _sessions(part) if native is not None else ():
            assert native is not None
            if starts:
                native.start_session()
            if self._quarantine:
                yield self._in_quarantine(native, some)
                continue
            seq = native.next_seq
            try:
                yield native.tag([some.column(PAYLOAD)], _lsns(some), None)[0]
            except DecodeError as error:
                at = seq if error.seq is None else error.seq
                raise DecodeError(
                    f"{error.reason} ({_describe_row(self._names, some, at - seq)})",
                    seq=error.seq,
                    lsn=error.lsn,
                    byte_offset=error.byte_offset,
                    kind=error.kind,
                ) from None

    def _in_quarantine(self, native: NativeDecoder, rows: pa.RecordBatch) -> pa.RecordBatch:
        payloads = rows.column(PAYLOAD)
        if payloads.null_count:
            payloads = payloads.fill_null(b"")
        tagged = tag_in_quarantine(native, payloads, _lsns(rows))
        kinds = tagged.column("kind").to_numpy()
        self._rejected = self._rejected or bool(np.isin(kinds, (REJECTED, UNKNOWN_OUTCOME)).any())
        if self._surveyor is not None:
            self._surveyor.add(tagged)
        return tagged


def _changed_input_error() -> ChangedInputError:
    return ChangedInputError(
        "the payloads, or their partitions, are not those that tag() read in its first pass: the table changed, or its "
        "rows are computed anew each time, or Spark's settings for files changed. Write the payloads into files first "
        "and tag these, or pass partitions=, which cuts by the order columns alone"
    )


@dataclass(frozen=True)
class TagRanges:
    """Ranges -> tagged payloads.

    Attributes:
        starts: the starts of all ranges.
        names: names of the order columns, for errors.
        target: the schema of the result.
        quarantine: whether damaged messages are rejected, instead of an error.
    """

    starts: Starts
    names: tuple[str, ...]
    target: pa.Schema
    quarantine: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tagger = _RangeTagger(self.starts, self.names, quarantine=self.quarantine)
        for batch in batches:
            for tagged in tagger.tagged(batch):
                yield pa.RecordBatch.from_arrays(tagged.columns, schema=self.target)
        tagger.finish()


@dataclass(frozen=True)
class TagThen:
    """Ranges -> the result of another task for their tagged payloads, which do not go back to the JVM in between.

    Attributes:
        tag: tags them.
        task: gets the tagged payloads, batch by batch.
        kinds: the messages that `task` gets; None for all.
        relations, others: the relations, and the versions of them that it does not get; None for all relations.
        rejected: whether it gets the rejected messages, too.
    """

    tag: TagRanges
    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    kinds: tuple[int, ...] | None = None
    relations: tuple[int, ...] | None = None
    others: tuple[int, ...] = ()
    rejected: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.task(self._chosen(self.tag(joined(batches))))

    def _chosen(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = pa.Table.from_batches([batch]).cast(TAGGED_SCHEMA)
            rejected = rows_of_kinds(rows, (REJECTED,)) if self.rejected else None
            if self.kinds is not None:
                rows = rows_of_kinds(rows, self.kinds)
            if self.relations is not None:
                rows = rows_of_relations(rows, self.relations, self.others)
            if rejected is not None and rejected.num_rows:
                rows = pa.concat_tables([rows, rejected])
            if rows.num_rows:
                yield from rows.to_batches()


@dataclass(frozen=True)
class FindErrors:
    """Ranges -> the first error of each range that has one, as rows with ERRORS_SCHEMA.

    Ranges without a state are skipped.

    The attributes are those of TagRanges.
    """

    starts: Starts
    names: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tagger = _RangeTagger(self.starts, self.names)
        for batch in batches:
            errors: list[Any] = []
            for _ in tagger.tagged(batch, errors):
                pass
            rows = [{name: getattr(error, name) for name in ERRORS_SCHEMA.names} for error in errors]
            if rows:
                yield pa.RecordBatch.from_pylist(rows, ERRORS_SCHEMA)
        tagger.finish()


@dataclass(frozen=True)
class CheckRanges:
    """Ranges -> how they end if they are tagged in quarantine, as rows with CHECKED_SCHEMA.

    Ranges without a state are skipped.

    Attributes:
        starts, names: as in TagRanges.
        commits: whether the surveys have the outcomes of transactions.
    """

    starts: Starts
    names: tuple[str, ...]
    commits: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tagger = _RangeTagger(self.starts, self.names, quarantine=True, commits=self.commits)
        for batch in batches:
            for _ in tagger.tagged(batch):
                pass
            if tagger.ends:
                yield pa.RecordBatch.from_pylist(tagger.ends, CHECKED_SCHEMA)
                tagger.ends.clear()
        tagger.finish()

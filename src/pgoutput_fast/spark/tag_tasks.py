"""What tagging runs on the executors. Imports no PySpark; instances are pickled by the driver.

Rows come as stretches of the stream, which lie in order; a partition may hold several, each as a whole. For the first
pass they have a number; the second knows them by where they begin.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast._core.decode import NativeDecoder
from pgoutput_fast.catalog import Catalog
from pgoutput_fast.errors import DecodeError
from pgoutput_fast.options import Options
from pgoutput_fast.spark.order_tasks import ascending, runs_of, text_at
from pgoutput_fast.state import StreamState, native_decoder
from pgoutput_fast.summarizer import Summarizer

__all__ = [
    "ERRORS_SCHEMA",
    "LSN",
    "PAYLOAD",
    "SESSION",
    "STRETCH",
    "SUMMARIES_SCHEMA",
    "ChangedInputError",
    "FindErrors",
    "Start",
    "Starts",
    "Summarize",
    "TagStretches",
    "ends_names",
    "gap",
]

# What these tasks get, in order: for the first pass the number of the stretch, the payload, the order columns, and what
# else there is of the other two. Each column costs the JVM some 60 ns a row.
STRETCH, PAYLOAD, LSN, SESSION = "stretch", "payload", "lsn", "session"

# The order columns of a stretch's first and of its last row follow.
SUMMARIES_SCHEMA = pa.schema(
    [
        ("stretch", pa.int64()),
        ("count", pa.int64()),
        ("ascending", pa.bool_()),
        ("first", pa.string()),  # its place in the order, as it is told
        ("last", pa.string()),
        ("problem", pa.string()),  # what is wrong with the order; there is no summary then
        ("summary", pa.binary()),
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


@dataclass(frozen=True)
class Start:
    """What a stretch is tagged from.

    Attributes:
        state: values of the stream's state before it, as compressed JSON; None behind the stream's first error.
        count, first, last: what the stretch was when it was summarised.
    """

    state: bytes | None
    count: int
    first: str
    last: str

    @classmethod
    def of(cls, state: StreamState | None, count: int, first: str, last: str) -> Start:
        values = None if state is None else zlib.compress(json.dumps(state.values).encode(), 1)
        return cls(values, count, first, last)


@dataclass(frozen=True)
class Starts:
    """The start of each stretch, by its first row's place, and the relation versions that states refer to, as JSON."""

    stretches: dict[str, Start]
    catalog: str


def _order_of(part: pa.RecordBatch | pa.Table) -> list[pa.Array]:
    at = [k for k, name in enumerate(part.schema.names) if name not in (STRETCH, PAYLOAD, LSN, SESSION)]
    columns: list[pa.Array] = [part.column(k) for k in at]
    return columns


def _sessions(part: pa.RecordBatch) -> Iterator[tuple[bool, pa.RecordBatch]]:
    """The part cut where a session starts; whether one does at the beginning."""
    if SESSION not in part.schema.names:
        yield False, part
        return
    starts = pc.indices_nonzero(part.column(SESSION).fill_null(False)).to_pylist()
    edges = sorted({0, *starts, part.num_rows})
    for begin, end in pairwise(edges):
        yield begin in starts, part.slice(begin, end - begin)


@dataclass(frozen=True)
class Summarize:
    """Stretches -> a row for each, with SUMMARIES_SCHEMA and the order columns of its ends.

    Attributes:
        gaps: whether a missing value of the one order column, an integer, is let pass.
        names: of the payload and the order columns, for errors.
        in_order: whether the rows must be in order: then this ends with the first stretch that is not.
    """

    gaps: bool
    names: tuple[str, ...]
    in_order: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, parts in runs_of(batches):
            summarizer, count, problem = Summarizer(), 0, None
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
                    summarizer.add(some.column(PAYLOAD), _lsns(some))
                first = part.slice(0, 1) if first is None else first
                last, count = part.slice(part.num_rows - 1), count + part.num_rows
                if not is_ascending:
                    break
            assert first is not None
            assert last is not None
            ends = [_order_of(first), _order_of(last)]
            summary = summarizer.summary().to_bytes() if problem is None and is_ascending else None
            row = [number, count, is_ascending, *(text_at(end, 0) for end in ends), problem, summary]
            head = [pa.array([value], field.type) for value, field in zip(row, SUMMARIES_SCHEMA, strict=True)]
            yield pa.RecordBatch.from_arrays(
                [*head, *ends[0], *ends[1]],
                names=[*SUMMARIES_SCHEMA.names, *ends_names(len(ends[0]))],
            )
            if not is_ascending:
                return

    def _problem(self, part: pa.RecordBatch, columns: list[pa.Array]) -> str | None:
        """What is wrong with the payloads of a part, or with its order and that of the row before it."""
        payload = part.column(PAYLOAD)
        if payload.null_count:
            row = pc.index(payload.is_null(), True).as_py()
            return f"column {self.names[0]} is null where {_where(self.names[1:], part, row)}"
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
            return f"two payloads have the same place: {_told(self.names[1:], text_at(columns, row))}"
        if not self.gaps and len(columns) == 1 and pa.types.is_integer(columns[0].type):
            # Values differ and ascend, so that the difference of any two is positive, or wraps: then it is a gap, too.
            row = pc.index(pc.not_equal(pc.subtract(columns[0][1:], columns[0][:-1]), 1), True).as_py()
            if row >= 0:
                return gap(self.names[1], columns[0][row].as_py(), columns[0][row + 1].as_py())
        return None


def _equal(left: pa.Array, right: pa.Array) -> pa.Array:
    """Where values are the same; as in Spark's order, NaN is the same as NaN."""
    equal = pc.equal(left, right)
    if not pa.types.is_floating(left.type):
        return equal
    return pc.or_(equal, pc.and_(pc.is_nan(left), pc.is_nan(right)))


def ends_names(count: int) -> list[str]:
    """What the order columns of a stretch's ends are called in a row about it."""
    return [f"{end}{k}" for end in ("first", "last") for k in range(count)]


def _joined(part: pa.RecordBatch, before: pa.RecordBatch | None) -> list[pa.Array]:
    """A part's order columns, behind those of the row before it."""
    columns = _order_of(part)
    if before is None:
        return columns
    return [pa.concat_arrays(pair) for pair in zip(_order_of(before), columns, strict=True)]


def _told(names: tuple[str, ...], text: str) -> str:
    return f"{names[0] if len(names) == 1 else '(' + ', '.join(names) + ')'} = {text}"


def _where(names: tuple[str, ...], part: pa.RecordBatch, row: int) -> str:
    return _told(names, text_at(_order_of(part), row))


def gap(name: str, before: int, behind: int) -> str:
    """What to say of values that do not follow one another."""
    return f"after {name} = {before} comes {behind}: pass gaps='allow' if nothing is missing between them"


def _lsns(part: pa.RecordBatch) -> pa.Array | None:
    if LSN not in part.schema.names:
        return None
    lsn = part.column(LSN)
    return None if lsn.null_count == len(lsn) else lsn.fill_null(0)


class ChangedInputError(RuntimeError):
    """The input was read twice, and was not the same."""


class _Stretches:
    """Rows as they come, cut into stretches and tagged."""

    def __init__(self, starts: Starts, names: tuple[str, ...]) -> None:
        self._starts = starts.stretches
        self._catalog = Catalog.from_json(starts.catalog)
        self._names = names
        self._start: Start | None = None  # of the stretch that the last row was in, if it goes on
        self._native: NativeDecoder | None = None
        self._count = 0

    def tagged(
        self, batch: pa.RecordBatch, errors: list[DecodeError] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The next rows, tagged, but for those behind the stream's first error.

        Args:
            errors: where errors go instead; the rest of their stretch is passed over.

        Raises:
            ChangedInputError: if they are not those that were summarised.
            DecodeError: for a message that cannot be taken; it tells its place in the order, too.
        """
        order, at = _order_of(batch), 0
        while at < batch.num_rows:
            start = self._start or self._begin(text_at(order, at))
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
                    raise _changed()
                self._start = None

    def finish(self) -> None:
        """To be called behind the last row.

        Raises:
            ChangedInputError: if a stretch has fewer than it had.
        """
        if self._start is not None:
            raise _changed()

    def _begin(self, first: str) -> Start:
        start = self._starts.get(first)
        if start is None:
            raise _changed()
        self._count, self._native = 0, None
        if start.state is not None:
            state = StreamState(json.loads(zlib.decompress(start.state)), self._catalog)
            self._native = native_decoder(Options(), state)
        return start

    def _tagged(self, part: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        native = self._native
        for starts, some in _sessions(part) if native is not None else ():
            assert native is not None
            if starts:
                native.start_session()
            seq = native.next_seq
            try:
                yield native.tag([some.column(PAYLOAD)], _lsns(some), None)[0]
            except DecodeError as error:
                at = seq if error.seq is None else error.seq
                raise DecodeError(
                    f"{error.reason} ({_where(self._names, some, at - seq)})",
                    seq=error.seq,
                    lsn=error.lsn,
                    byte_offset=error.byte_offset,
                    kind=error.kind,
                ) from None


def _changed() -> ChangedInputError:
    return ChangedInputError(
        "the payloads are not those that tag() read when it was called, or are not cut as they were: the table "
        "changed, or its rows are made anew each time, or Spark's settings for files changed. Write them out first "
        "and tag what was written, or pass partitions=, which cuts by the order columns alone"
    )


@dataclass(frozen=True)
class TagStretches:
    """Stretches -> tagged payloads.

    Attributes:
        starts: of all stretches.
        names: of the order columns, for errors.
        target: the schema of what comes out.
    """

    starts: Starts
    names: tuple[str, ...]
    target: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stretches = _Stretches(self.starts, self.names)
        for batch in batches:
            for tagged in stretches.tagged(batch):
                yield pa.RecordBatch.from_arrays(tagged.columns, schema=self.target)
        stretches.finish()


@dataclass(frozen=True)
class FindErrors:
    """Stretches -> the first error of each that has one, as rows with ERRORS_SCHEMA; not of those without a state.

    Attributes as those of TagStretches.
    """

    starts: Starts
    names: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stretches = _Stretches(self.starts, self.names)
        for batch in batches:
            errors: list[Any] = []
            for _ in stretches.tagged(batch, errors):
                pass
            rows = [{name: getattr(error, name) for name in ERRORS_SCHEMA.names} for error in errors]
            if rows:
                yield pa.RecordBatch.from_pylist(rows, ERRORS_SCHEMA)
        stretches.finish()

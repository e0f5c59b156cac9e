"""What tagging runs on the executors. Imports no PySpark; instances are pickled by the driver.

Rows come sorted by slice and then by the order columns, which stand behind the others. A partition may hold any slices,
each as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast._core.decode import NativeDecoder
from pgoutput_fast.errors import DecodeError
from pgoutput_fast.options import Options
from pgoutput_fast.state import StreamState
from pgoutput_fast.summarizer import Summarizer

__all__ = ["ERRORS_SCHEMA", "SUMMARIES_SCHEMA", "FindErrors", "Start", "Summarize", "TagSlices", "slices_of"]

# Positions of the columns that these tasks get; the order columns follow.
_SLICE, _PAYLOAD, _LSN, _ORDER = range(4)

SUMMARIES_SCHEMA = pa.schema(
    [
        ("slice", pa.int32()),
        ("count", pa.int64()),
        ("first", pa.string()),  # value of the order columns, as Python writes it
        ("last", pa.string()),
        ("problem", pa.string()),  # what is wrong with the order; there is no summary then
        ("summary", pa.binary()),
    ]
)

ERRORS_SCHEMA = pa.schema(
    [("seq", pa.int64()), ("lsn", pa.int64()), ("byte_offset", pa.int64()), ("reason", pa.string())]
)


@dataclass(frozen=True)
class Start:
    """What a slice is tagged from.

    Attributes:
        state: the stream's state before it, as JSON.
        count, first, last: what the slice was when it was summarised.
    """

    state: str
    count: int
    first: str
    last: str


def slices_of(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """(slice, its pieces) one after the other; the pieces are to be taken before the next slice is asked for."""
    pieces = _pieces(batches)
    ahead: list[pa.RecordBatch] = [piece for piece in [next(pieces, None)] if piece is not None]

    def of(number: int) -> Iterator[pa.RecordBatch]:
        while ahead and ahead[0].column(_SLICE)[0].as_py() == number:
            yield ahead.pop()
            ahead.extend(piece for piece in [next(pieces, None)] if piece is not None)

    while ahead:
        number = ahead[0].column(_SLICE)[0].as_py()
        yield number, of(number)


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches cut where a slice ends."""
    for batch in batches:
        at = 0
        for length in pc.run_end_encode(batch.column(_SLICE)).run_ends.to_pylist() if batch.num_rows else ():
            yield batch.slice(at, length - at)
            at = length


def _order_at(batch: pa.RecordBatch, row: int) -> str:
    values = [column[row].as_py() for column in batch.columns[_ORDER:]]
    return str(values[0]) if len(values) == 1 else str(tuple(values))


@dataclass(frozen=True)
class Summarize:
    """Slices -> a row with SUMMARIES_SCHEMA for each.

    Attributes:
        gaps: whether a missing value of the one order column, an integer, is let pass.
        names: of the payload and the order columns, for errors.
    """

    gaps: bool
    names: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, pieces in slices_of(batches):
            summarizer, count, problem, before = Summarizer(), 0, None, None
            first: str | None = None
            last: str | None = None
            for piece in pieces:
                problem = problem or self._problem(piece, before)
                if problem is None:
                    summarizer.add(piece.column(_PAYLOAD), _lsns(piece))
                first = _order_at(piece, 0) if first is None else first
                last, count = _order_at(piece, -1), count + piece.num_rows
                before = piece.slice(piece.num_rows - 1)
            summary = summarizer.summary().to_bytes() if problem is None else None
            row = [number, count, first, last, problem, summary]
            yield pa.RecordBatch.from_arrays(
                [pa.array([value], field.type) for value, field in zip(row, SUMMARIES_SCHEMA, strict=True)],
                schema=SUMMARIES_SCHEMA,
            )

    def _problem(self, piece: pa.RecordBatch, before: pa.RecordBatch | None) -> str | None:
        """What is wrong with the order of a piece that comes behind a row, or with the payloads."""
        payload = piece.column(_PAYLOAD)
        if payload.null_count:
            row = pc.index(payload.is_null(), True).as_py()
            return f"column {self.names[0]} is null where {self._where(_order_at(piece, row))}"
        table = pa.Table.from_batches([piece] if before is None else [before, piece]).combine_chunks()
        columns = [column.combine_chunks() for column in table.columns[_ORDER:]]
        for name, column in zip(self.names[1:], columns, strict=True):
            if column.null_count:
                return f"the order column {name} has nulls"
        if table.num_rows < 2:
            return None
        same = pa.array([True] * (table.num_rows - 1))
        for column in columns:
            same = pc.and_(same, pc.equal(column[1:], column[:-1]))
        row = pc.index(same, True).as_py()
        if row >= 0:
            at = _order_at(table.to_batches()[0], row)
            return f"two payloads have the same place: {self._where(at)}"
        if not self.gaps and len(columns) == 1 and pa.types.is_integer(columns[0].type):
            # Values differ and ascend, so that the difference of any two is positive, or wraps: then it is a gap, too.
            row = pc.index(pc.not_equal(pc.subtract(columns[0][1:], columns[0][:-1]), 1), True).as_py()
            if row >= 0:
                return gap(self.names[1], columns[0][row].as_py(), columns[0][row + 1].as_py())
        return None

    def _where(self, value: str) -> str:
        names = self.names[1:]
        return f"{names[0] if len(names) == 1 else '(' + ', '.join(names) + ')'} = {value}"


def gap(name: str, before: int, behind: int) -> str:
    """What to say of values that do not follow one another."""
    return f"after {name} = {before} comes {behind}: pass gaps='allow' if nothing is missing between them"


def _lsns(piece: pa.RecordBatch) -> pa.Array | None:
    lsn = piece.column(_LSN)
    return None if lsn.null_count == len(lsn) else lsn.fill_null(0)


class ChangedInputError(RuntimeError):
    """The input was read twice, and was not the same."""


class _Tagging:
    def __init__(self, starts: dict[int, Start]) -> None:
        self.starts = starts

    def tagged(self, number: int, pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The pieces of a slice, tagged. Raises ChangedInputError if they are not those that were summarised."""
        start = self.starts.get(number)
        native = NativeDecoder(Options(), StreamState.from_json(start.state)) if start is not None else None
        count = 0
        first: str | None = None
        last: str | None = None
        for piece in pieces:
            if native is None:
                break
            first = _order_at(piece, 0) if first is None else first
            last, count = _order_at(piece, -1), count + piece.num_rows
            yield native.tag([piece.column(_PAYLOAD)], _lsns(piece), None)[0]
        if start is None or (start.count, start.first, start.last) != (count, first, last):
            raise ChangedInputError(
                "the payloads are not those that tag() read when it was called: the table changed, or its rows are "
                "made anew each time. Write them out first, and tag what was written"
            )


@dataclass(frozen=True)
class TagSlices:
    """Slices -> tagged payloads."""

    starts: dict[int, Start]
    target: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tagging = _Tagging(self.starts)
        for number, pieces in slices_of(batches):
            for tagged in tagging.tagged(number, pieces):
                yield pa.RecordBatch.from_arrays(tagged.columns, schema=self.target)


@dataclass(frozen=True)
class FindErrors:
    """Slices -> the first error of each that has one, as rows with ERRORS_SCHEMA."""

    starts: dict[int, Start]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tagging = _Tagging(self.starts)
        for number, pieces in slices_of(batches):
            error: Any = None
            try:
                for _ in tagging.tagged(number, pieces):
                    pass
            except DecodeError as problem:
                error = problem
                for _ in pieces:
                    pass
            if error is not None:
                row = {name: getattr(error, name) for name in ERRORS_SCHEMA.names}
                yield pa.RecordBatch.from_pylist([row], ERRORS_SCHEMA)

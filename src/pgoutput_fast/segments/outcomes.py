"""The outcomes of transactions in segments: from their control rows, or from the footers of small segments.

A capture writes thousands of small segments a day. Reading a few control rows of each takes as long as reading all
footers, so the footer of a segment with few outcomes contains them, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.base.errors import DecodeError
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.decoding.decoder import decode_tagged
from pgoutput_fast.protocol.kinds import OUTCOMES
from pgoutput_fast.schema.tables import OUTCOMES_SCHEMA, TAGGED_SCHEMA

__all__ = ["NEEDED", "joined_text", "outcomes_of_rows", "outcomes_of_texts", "text_of_rows"]

# The columns needed to decode an outcome. Other columns of TAGGED_SCHEMA are not read.
NEEDED = ("seq", "lsn", "kind", "txn", "in_stream", "payload")
# Maximum number of outcomes in a footer.
_MOST = 64


def text_of_rows(rows: pa.RecordBatch | pa.Table) -> str | None:
    """The outcomes of a segment's rows, column by column, as JSON. None if they are too many, or cannot be decoded.

    Args:
        rows: tagged rows.
    """
    if int(np.count_nonzero(np.isin(rows.column("kind").to_numpy(), OUTCOMES))) > _MOST:
        return None
    try:
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        outcomes = _decoded(_ends([table.select(NEEDED)])[0])
    except DecodeError:  # a reader of the rows gets the error
        return None
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in outcomes
    ]
    return json.dumps([column.to_pylist() for column in columns])


def joined_text(first: str | None, second: str | None) -> str | None:
    """The text for two joined segments, the second after the first. None if they have too many outcomes.

    >>> joined_text("[[7], [null], [\\"aborted\\"], [3], [null], [null]]", "[[], [], [], [], [], []]")
    '[[7], [null], ["aborted"], [3], [null], [null]]'
    """
    if first is None or second is None:
        return None
    try:
        columns = [one + other for one, other in zip(parsed_json(first), parsed_json(second), strict=True)]
    except (TypeError, ValueError):  # damaged: the rows have the outcomes, too
        return None
    return json.dumps(columns) if len(columns[0]) <= _MOST else None


def outcomes_of_texts(texts: Sequence[str]) -> list[pa.RecordBatch]:
    """The inverse of `text_of_rows`, for several segments: batches with OUTCOMES_SCHEMA.

    Raises:
        ValueError: if a text was not written by `text_of_rows`.
    """
    expect_list("texts", texts)
    # One batch is made of all texts: making a batch takes longer than parsing a text.
    columns: list[list[int | str | None]] = [[] for _ in OUTCOMES_SCHEMA]
    counts = []
    try:
        for text in texts:
            found = parsed_json(text)
            if len({len(each) for each in found}) != 1:
                raise ValueError("its columns differ in length")
            counts.append(len(found[0]))
            for column, values in zip(columns, found, strict=True):
                column += values
        batch = pa.RecordBatch.from_arrays(
            [pa.array(values, field.type) for values, field in zip(columns, OUTCOMES_SCHEMA, strict=True)],
            schema=OUTCOMES_SCHEMA,
        )
        # Any other outcome would count as none, and the rows of its transaction would be omitted.
        if not set(columns[OUTCOMES_SCHEMA.get_field_index("outcome")]) <= {"committed", "aborted"}:
            raise ValueError("an outcome is neither committed nor aborted")
        if any(batch.column(name).null_count for name in ("txn", "at_seq")):
            raise ValueError("an outcome has no transaction, or no place")
    except (pa.ArrowException, LookupError, OverflowError, TypeError, ValueError) as problem:
        raise ValueError(f"the outcomes in its footer have a wrong form: {problem}") from None
    return _cut(batch, counts)


def outcomes_of_rows(rows: Sequence[pa.Table]) -> list[pa.RecordBatch]:
    """The outcomes in rows of segments, in stream order: batches with OUTCOMES_SCHEMA.

    Args:
        rows: the columns NEEDED of the control rows of each segment; other rows may be included.

    Raises:
        DecodeError: if a boundary message is malformed.
    """
    expect_list("rows", rows)
    # All segments are decoded at once, because a call costs more than the few rows of one segment.
    ends, counts = _ends(rows)
    outcomes = _decoded(ends)
    if outcomes.num_rows != ends.num_rows:  # an unknown transaction has no outcome
        return [_decoded(_ends([each])[0]) for each in rows]
    return _cut(outcomes, counts)


def _cut(batch: pa.RecordBatch, counts: Sequence[int]) -> list[pa.RecordBatch]:
    """Splits a batch into consecutive slices with these numbers of rows."""
    ends = np.cumsum(counts).tolist()
    return [batch.slice(end - count, count) for end, count in zip(ends, counts, strict=True)]


def _ends(tables: Sequence[pa.Table]) -> tuple[pa.Table, list[int]]:
    """(the rows that end transactions, by segment and in stream order; their number in each segment)."""
    if not tables:
        return TAGGED_SCHEMA.empty_table().select(NEEDED), []
    rows = pa.concat_tables(tables)
    of = np.repeat(np.arange(len(tables)), [each.num_rows for each in tables])
    kept = np.isin(rows.column("kind").to_numpy(), OUTCOMES)
    # `take` would first concatenate all chunks of each column, although it needs few rows. A filter does not.
    ends, of = rows.filter(pa.array(kept)), of[kept]
    counts: list[int] = np.bincount(of, minlength=len(tables)).tolist()
    return ends.take(pa.array(np.lexsort((ends.column("seq").to_numpy(), of)))), counts


def _decoded(ends: pa.Table) -> pa.RecordBatch:
    columns = [
        ends.column(field.name).cast(field.type)
        if field.name in NEEDED
        else pa.nulls(ends.num_rows, field.type)
        for field in TAGGED_SCHEMA
    ]
    return decode_tagged(pa.Table.from_arrays(columns, schema=TAGGED_SCHEMA), Catalog()).outcomes

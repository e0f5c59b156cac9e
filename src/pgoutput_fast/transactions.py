"""The committed view: changes wait, as tagged payloads, until their transaction's fate is known."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast._core.decode import NativeDecoder
from pgoutput_fast.decoded import Decoded, RelationBatch
from pgoutput_fast.options import Options
from pgoutput_fast.schema import TAGGED_SCHEMA

__all__ = ["CommittedView"]

# What is held back: changes, truncates and transactional messages.
_HELD_KINDS = pa.array([ord(kind) for kind in "IUDTM"], pa.int8())
_MESSAGE = ord("M")


class CommittedView:
    """Holds changes back until their commit comes, and drops those that are rolled back.

    Args:
        options: how to decode what is released.
        held: tagged rows that an earlier view held back.
    """

    def __init__(self, options: Options, held: pa.Table | None = None) -> None:
        self._options = options
        self._held = held if held is not None else TAGGED_SCHEMA.empty_table()
        self._decoder = NativeDecoder(options)

    @property
    def held(self) -> pa.Table:
        """Tagged rows of transactions whose fate is not known yet."""
        return self._held

    def decode(self, native: Any, arrays: list[pa.Array], lsns: Any, seqs: Any) -> Decoded:
        """Tags the payloads with `native` and decodes what is committed by now. As atomic as `native.tag` is."""
        with native.tentative():
            batches, records = native.tag(arrays, lsns, seqs)
            arrived = pa.Table.from_batches(batches, TAGGED_SCHEMA)
            arrived = arrived.filter(pc.is_in(arrived.column("kind"), _HELD_KINDS))
            rows = pa.concat_tables([self._held, arrived])
            rows = _without_aborted(rows, records.outcomes)
            released, held = _split(rows, records.outcomes)
            self._decoder.learn(native.catalog)
            changes, released_records = self._decoder.decode_tagged(_one_batch(released))
        self._held = held
        return Decoded(
            [RelationBatch(*each) for each in changes], _Records(records, released_records), self._options
        )

    @staticmethod
    def released(batch: pa.RecordBatch, outcomes: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of `batch` whose transaction is committed, with its commit's position and time."""
        rows = pa.Table.from_batches([batch])
        changes = rows.filter(pc.is_in(rows.column("kind"), _HELD_KINDS))
        others = rows.filter(pc.invert(pc.is_in(rows.column("kind"), _HELD_KINDS)))
        released, _ = _split(_without_aborted(changes, outcomes), outcomes)
        return _one_batch(pa.concat_tables([released, others]))


class _Records:
    """Boundaries and outcomes as they came, truncates and messages as they were released."""

    def __init__(self, arrived: Any, released: Any) -> None:
        self._arrived = arrived
        self._released = released

    @property
    def transactions(self) -> pa.RecordBatch:
        return self._arrived.transactions

    @property
    def outcomes(self) -> pa.RecordBatch:
        return self._arrived.outcomes

    @property
    def truncates(self) -> pa.RecordBatch:
        return self._released.truncates

    @property
    def messages(self) -> pa.RecordBatch:
        return self._released.messages

    @property
    def rejects(self) -> pa.RecordBatch:
        both = pa.Table.from_batches([self._arrived.rejects, self._released.rejects]).sort_by("seq")
        return both.combine_chunks().to_batches()[0] if both.num_rows else self._arrived.rejects


def _without_aborted(rows: pa.Table, outcomes: pa.RecordBatch) -> pa.Table:
    """Drops the rows that a subtransaction's abort rolls back: those of (txn, subxid) before it.

    A transactional message stays: the wire gives it the top transaction's xid, whatever savepoint it was in.
    """
    aborts = pa.Table.from_batches([outcomes]).filter(
        (pc.field("outcome") == "aborted") & pc.field("subxid").is_valid()
    )
    for abort in aborts.to_pylist():
        rolled_back = pc.and_(
            pc.and_(pc.equal(rows.column("txn"), abort["txn"]), pc.equal(rows.column("subxid"), abort["subxid"])),
            pc.and_(pc.less(rows.column("seq"), abort["at_seq"]), pc.not_equal(rows.column("kind"), _MESSAGE)),
        )
        rows = rows.filter(pc.invert(pc.fill_null(rolled_back, False)))
    return rows


def _split(rows: pa.Table, outcomes: pa.RecordBatch) -> tuple[pa.Table, pa.Table]:
    """(rows of committed transactions with their commit's position, rows that still wait), in order of commit."""
    final = pa.Table.from_batches([outcomes]).filter(pc.field("subxid").is_null())
    place = pc.index_in(rows.column("txn"), final.column("txn").combine_chunks())
    # A message that belongs to no transaction waits for none.
    outside = pc.is_null(rows.column("txn"))
    known = pc.is_valid(pc.if_else(outside, None, place))
    held = rows.filter(pc.invert(pc.or_(known, outside)))
    resolved = rows.filter(pc.or_(known, outside))
    at = pc.index_in(resolved.column("txn"), final.column("txn").combine_chunks()).combine_chunks()
    committed = pc.equal(final.column("outcome"), "committed").combine_chunks().take(at)
    alone = pc.is_null(resolved.column("txn"))
    released = resolved.append_column(
        "order", pc.coalesce(final.column("at_seq").combine_chunks().take(at), resolved.column("seq"))
    )
    for name in ("commit_lsn", "commit_timestamp"):
        position = released.schema.get_field_index(name)
        released = released.set_column(position, TAGGED_SCHEMA.field(name), final.column(name).combine_chunks().take(at))
    released = released.filter(pc.or_(alone, pc.fill_null(committed, False)))
    order = pc.sort_indices(released, [("order", "ascending"), ("seq", "ascending")])
    return released.take(order).drop_columns(["order"]), held


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], TAGGED_SCHEMA)

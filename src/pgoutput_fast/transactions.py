"""The committed view: changes wait, as tagged payloads, until their transaction's fate is known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast._core.decode import NativeDecoder
from pgoutput_fast.decoded import Decoded, RelationBatch
from pgoutput_fast.errors import STATE_LOST, reason_text
from pgoutput_fast.options import Options
from pgoutput_fast.schema import REJECTS_SCHEMA, TAGGED_SCHEMA
from pgoutput_fast.user_types import UserTypes

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
        self._decoder = NativeDecoder(options)
        self._learnt = 0  # how many of the tagging decoder's relation versions it knows
        # By transaction, so that a call touches only what it brings or ends: pieces in stream order, and (subxid, seq)
        # of the subtransactions that were rolled back, whose rows are dropped at the end.
        self._pieces: dict[int, list[pa.Table]] = {}
        self._rolled_back: dict[int, list[tuple[int, int]]] = {}
        if held is not None:
            self._keep(_by_transaction(held))

    @property
    def held(self) -> pa.Table:
        """Tagged rows of transactions whose fate is not known yet, in stream order."""
        return self._collect(self._pieces, {}, TAGGED_SCHEMA.empty_table()).sort_by("seq").combine_chunks()

    def decode(self, native: Any, arrays: list[pa.Array], lsns: Any, seqs: Any) -> Decoded:
        """Tags the payloads with `native` and decodes what is committed by now. As atomic as `native.tag` is."""
        with native.tentative():
            tagged, records = native.tag(arrays, lsns, seqs)
            arrived = pa.Table.from_batches([tagged])
            arrived = arrived.filter(pc.is_in(arrived.column("kind"), _HELD_KINDS))
            final, rolled_back = _fates(records.outcomes)
            forgotten = records.forgotten
            ended = np.concatenate([final.column("txn").to_numpy(), np.array(forgotten, np.int64)])
            txns = arrived.column("txn").fill_null(-1).to_numpy()
            ends = np.isin(txns, ended) | (txns < 0)
            waiting = _by_transaction(arrived.filter(pa.array(~ends)))
            held = np.fromiter(self._pieces, np.int64, len(self._pieces))
            due = held[np.isin(held, ended)].tolist()
            rows = self._collect(due, rolled_back, arrived.filter(pa.array(ends)))
            lost = (
                rows.filter(pc.is_in(rows.column("txn"), pa.array(forgotten, pa.int64())))
                if forgotten
                else None
            )
            learnt = self._decoder.learn_from(native, self._learnt)
            changes, released = self._decoder.decode_tagged(_one_batch(_committed(rows, final)))
        self._learnt = learnt
        for txn in due:
            del self._pieces[txn]
            self._rolled_back.pop(txn, None)
        self._keep(waiting)
        for txn, aborts in rolled_back.items():
            if txn in self._pieces:
                self._rolled_back.setdefault(txn, []).extend(aborts)
        return Decoded(
            [RelationBatch(*each) for each in changes], _Records(records, released, lost), self._options
        )

    def _keep(self, pieces: dict[int, pa.Table]) -> None:
        for txn, piece in pieces.items():
            self._pieces.setdefault(txn, []).append(piece)

    def _collect(
        self,
        txns: Iterable[int],
        rolled_back: dict[int, list[tuple[int, int]]],
        others: pa.Table,
    ) -> pa.Table:
        """What is held of some transactions, and other rows behind it, without what was rolled back by now."""
        txns = list(txns)
        tables = [piece for txn in txns for piece in self._pieces[txn]]
        aborts = [(txn, *abort) for txn in txns for abort in self._rolled_back.get(txn, ())]
        aborts += [(txn, *abort) for txn, found in rolled_back.items() for abort in found]
        return _without_rolled_back(pa.concat_tables([*tables, others]), aborts)

    @staticmethod
    def released(batch: pa.RecordBatch, outcomes: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of `batch` whose transaction is committed, with its commit's position and time."""
        rows = pa.Table.from_batches([batch])
        waits = pc.is_in(rows.column("kind"), _HELD_KINDS)
        final, rolled_back = _fates(outcomes)
        aborts = [(txn, *abort) for txn, found in rolled_back.items() for abort in found]
        changes = _committed(_without_rolled_back(rows.filter(waits), aborts), final)
        return _one_batch(pa.concat_tables([changes, rows.filter(pc.invert(waits))]))


class _Records:
    """Boundaries and outcomes as they came, truncates and messages as they were released."""

    def __init__(self, arrived: Any, released: Any, lost: pa.Table | None) -> None:
        self._arrived = arrived
        self._released = released
        self._lost = lost

    @property
    def types(self) -> UserTypes:
        types: UserTypes = self._arrived.types
        return types

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
        parts = [pa.Table.from_batches([each.rejects]) for each in (self._arrived, self._released)]
        if self._lost is not None:
            parts.append(_rejected(self._lost))
        both = pa.concat_tables(parts).sort_by("seq")
        return both.combine_chunks().to_batches()[0] if both.num_rows else self._arrived.rejects


def _rejected(rows: pa.Table) -> pa.Table:
    """Reject rows of whole messages of a transaction whose end is not known. A Truncate has one row here."""
    seqs = rows.column("seq").to_numpy()
    _, first = np.unique(seqs, return_index=True)
    rows = rows.take(pa.array(first))
    columns = {"seq": rows.column("seq"), "lsn": rows.column("lsn"), "raw": rows.column("payload")}
    columns["reason"] = pa.array([reason_text(STATE_LOST)] * rows.num_rows, pa.string())
    return pa.Table.from_arrays(
        [columns.get(field.name, pa.nulls(rows.num_rows, field.type)) for field in REJECTS_SCHEMA],
        schema=REJECTS_SCHEMA,
    )


def _by_transaction(rows: pa.Table) -> dict[int, pa.Table]:
    """{txn: its rows in stream order}."""
    if rows.num_rows == 0:
        return {}
    txns = rows.column("txn").to_numpy()
    if bool(np.any(txns[1:] != txns[:-1])):
        order = np.lexsort((rows.column("seq").to_numpy(), txns))
        rows, txns = rows.take(pa.array(order)), txns[order]
    starts = np.flatnonzero(np.concatenate([[True], txns[1:] != txns[:-1]]))
    ends = np.append(starts[1:], len(txns))
    return {int(txns[a]): rows.slice(a, b - a) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)}


def _fates(outcomes: pa.RecordBatch) -> tuple[pa.Table, dict[int, list[tuple[int, int]]]]:
    """(outcomes of whole transactions, {txn: (subxid, at_seq) of what was rolled back in it})."""
    table = pa.Table.from_batches([outcomes])
    whole = pc.is_null(table.column("subxid"))
    rolled_back: dict[int, list[tuple[int, int]]] = {}
    parts = table.filter(pc.invert(whole))
    aborts = parts.filter(pc.equal(parts.column("outcome"), "aborted"))
    for txn, subxid, at_seq in zip(
        *(aborts.column(name).to_pylist() for name in ("txn", "subxid", "at_seq")), strict=True
    ):
        rolled_back.setdefault(txn, []).append((subxid, at_seq))
    return table.filter(whole), rolled_back


def _without_rolled_back(rows: pa.Table, aborts: list[tuple[int, int, int]]) -> pa.Table:
    """Drops what subtransactions' aborts roll back: rows of (txn, subxid) before at_seq, for each of `aborts`.

    A transactional message stays: the wire gives it the top transaction's xid, whatever savepoint it was in.
    """
    if not aborts or rows.num_rows == 0:
        return rows
    txns, subxids, seqs = np.array(aborts, np.int64).T
    names = np.unique(txns)
    # One integer for both: subxids have 32 bits, and there are not 2^31 transactions in one call.
    keys = np.searchsorted(names, txns) << 32 | subxids
    order = np.lexsort((seqs, keys))
    keys, seqs = keys[order], seqs[order]
    last = np.append(keys[1:] != keys[:-1], True)
    keys, seqs = keys[last], seqs[last]
    of_rows = rows.column("txn").fill_null(-1).to_numpy()
    place = np.searchsorted(names, of_rows)
    known = names[np.minimum(place, len(names) - 1)] == of_rows
    wanted = place << 32 | rows.column("subxid").fill_null(-1).to_numpy() & 0x1FFFFFFFF
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    gone = (
        known
        & (keys[place] == wanted)
        & rows.column("subxid").is_valid().to_numpy()
        & (rows.column("seq").to_numpy() < seqs[place])
        & (rows.column("kind").to_numpy() != _MESSAGE)
    )
    return rows.filter(pa.array(~gone)) if bool(gone.any()) else rows


def _committed(rows: pa.Table, final: pa.Table) -> pa.Table:
    """The rows of committed transactions and of none, with their commit's position, in the order of the commits."""
    final = final.combine_chunks()
    at = pc.index_in(rows.column("txn"), final.column("txn").combine_chunks()).combine_chunks()
    alone = pc.is_null(rows.column("txn"))
    committed = pc.equal(final.column("outcome"), "committed").combine_chunks().take(at)
    released = rows.append_column(
        "order", pc.coalesce(final.column("at_seq").combine_chunks().take(at), rows.column("seq"))
    )
    for name in ("commit_lsn", "commit_timestamp"):
        position = released.schema.get_field_index(name)
        column = final.column(name).combine_chunks().take(at)
        released = released.set_column(position, TAGGED_SCHEMA.field(name), column)
    released = released.filter(pc.or_(alone, pc.fill_null(committed, False)))
    order = pc.sort_indices(released, [("order", "ascending"), ("seq", "ascending")])
    return released.take(order).drop_columns(["order"])


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise ValueError("more than 2 GiB of payloads end in one call: pass fewer payloads to a call")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], TAGGED_SCHEMA)

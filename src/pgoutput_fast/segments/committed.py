"""Committed changes of segments, in commit order, with bounded memory: one segment after the other.

A change is released with the segment in which its transaction commits, wherever the change itself is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.decoding.state import StreamState
from pgoutput_fast.protocol.kinds import CHANGES, MSG_RELATION, ROW_CHANGES
from pgoutput_fast.protocol.limits import PIECE_BYTES
from pgoutput_fast.schema.options import Options
from pgoutput_fast.segments.names import Named
from pgoutput_fast.segments.outcomes import NEEDED, outcomes_of_rows
from pgoutput_fast.segments.read import in_stream_order, open_segment, read_segment
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.transactions.outcomes import TransactionOutcomes, chosen_rows, values_of
from pgoutput_fast.transactions.release import Releaser
from pgoutput_fast.transactions.reorder_buffer import ReorderBuffer
from pgoutput_fast.transactions.spill import Spiller

__all__ = ["CommittedChanges"]

# The number of rows released at a time, approximately.
_PIECE_ROWS = 1 << 16
# Batches that are shorter on average are copied into one, because a batch costs a call of the decoder.
_BATCH_ROWS = 1 << 12
_LAST = (1 << 63) - 1  # after every message


class CommittedChanges:
    """Releases the changes of segments once their transactions have committed.

    Args:
        store: the store with the segments.
        options: changes of open transactions wait in memory up to `memory_limit`, then in files in `spill_directory`.

    Attributes:
        last_commit: LSN and time (microseconds since 1970) of the last commit in the newest segment passed to `of` that
            has one; None if there is none.
    """

    def __init__(self, store: Store, options: Options) -> None:
        self._store = store
        self._options = options
        self._spiller = Spiller(None if options.spill_directory is None else str(options.spill_directory))
        self._reorder_buffer = ReorderBuffer()
        # The versions of waiting rows and of the current segment. The stream may have many more.
        self._versions: dict[int, Relation] = {}
        # {ordinal of the next message: (transaction, relation)} of the Relation messages of the current segment and of
        # open transactions.
        self._described: dict[int, tuple[int, Relation]] = {}
        # The changes up to this message were read: those of open transactions wait.
        self._last_seq = -1
        self.last_commit: tuple[int, int] | None = None

    def resume(self, done: Sequence[Named]) -> None:
        """Begins after some segments: keeps the changes of the transactions that are still open at their end.

        Args:
            done: these segments, in stream order.

        Raises:
            FileNotFoundError: if one of them does not exist.
            ValueError: if one of them is damaged.
        """
        self._reorder_buffer = ReorderBuffer()
        self._versions, self._described = {}, {}
        self._last_seq = done[-1].last_seq if done else -1
        running = open_segment(self._store.at(done[-1].name)).open_txns if done else []
        if running:
            for each in done:
                if each.last_seq >= running[0]:
                    path = self._store.at(each.name)
                    rows = read_segment(path)
                    self._learn(rows, open_segment(path).state)
                    self._releaser().keep(_changes(rows), _outcomes(rows), running)

    def of(
        self, rows: pa.Table, state: StreamState, after: int = -1
    ) -> Iterator[tuple[pa.RecordBatch, Catalog]]:
        """Yields the changes that the next segment releases. Exhaust the iterator; after an error, call `resume`.

        A segment may begin with messages that were already read, if it was joined meanwhile.

        Args:
            rows: all rows of the segment, in the order of the stream or of the file.
            state: the state of the stream after it.
            after: skip transactions that end at or before this message.

        Yields:
            (tagged rows with the positions of their commits, the relation versions that they refer to).
        """
        changes, outcomes, running = _changes(rows, self._last_seq), _outcomes(rows, after), state.open_txns
        self._learn(rows, state)
        catalog = Catalog(self._versions.values(), state.catalog.types)
        releaser = self._releaser()
        for piece in releaser.committed(changes, outcomes):
            for batch in _batches(piece):
                yield batch, catalog
        releaser.keep_open(changes, outcomes, running)
        if not self._reorder_buffer.waiting:
            self._versions = {}
        self._described = {seq: each for seq, each in self._described.items() if each[0] in running}
        self._last_seq = max(self._last_seq, state.next_seq - 1)
        self.last_commit = outcomes.last_commit or self.last_commit

    def partitions_of(self, changes: pa.RecordBatch) -> list[tuple[int, Relation, int]]:
        """The partitions that were described for changes of their root: before the first one, and after an alteration.

        Args:
            changes: as `of` yields them, before the next ones.

        Returns:
            [(oid of the root, the partition, LSN of the commit)].
        """
        if not self._described:
            return []
        # TRUNCATE of several tables has the relations of all of them, directly before it.
        is_one = np.isin(changes["seq"].to_numpy(), list(self._described))
        is_one &= np.isin(changes["kind"].to_numpy(), ROW_CHANGES)
        rows = changes.select(["seq", "relation", "commit_lsn"]).filter(pa.array(is_one)).to_pydict()
        # The server describes the root, then the partition, and sends the change, with the oid of the root.
        found = ((root, self._described[seq][1], lsn) for seq, root, lsn in zip(*rows.values(), strict=True))
        return [each for each in found if each[0] != each[1].oid]

    def _learn(self, rows: pa.Table, state: StreamState) -> None:
        """Adds the relation versions of a segment's rows."""
        found = state.in_order(rows.column("version").unique().drop_null().to_pylist())
        versions = {relation.version: relation for relation in found}
        self._versions |= versions
        sent = chosen_rows(rows, values_of(rows, "kind") == MSG_RELATION).select(["seq", "txn", "version"])
        for seq, txn, version in zip(*sent.to_pydict().values(), strict=True):
            if version in versions:
                self._described[seq + 1] = txn, versions[version]

    def _releaser(self) -> Releaser:
        return Releaser(
            self._reorder_buffer, self._spiller, self._options.memory_limit, _PIECE_ROWS, PIECE_BYTES
        )


def _batches(rows: pa.Table) -> list[pa.RecordBatch]:
    """The rows as few batches. Long ones are not copied."""
    batches: list[pa.RecordBatch] = rows.to_batches()
    if len(batches) * _BATCH_ROWS > rows.num_rows + 2 * _BATCH_ROWS:
        batches = rows.combine_chunks().to_batches()
    return batches


def _changes(rows: pa.Table, after: int = -1) -> pa.Table:
    """The changes in these rows after message `after`, in stream order."""
    wanted = np.isin(values_of(rows, "kind"), CHANGES) & (values_of(rows, "seq") > after)
    # In file order, changes come after all other rows: those of one table need no copy.
    return in_stream_order(chosen_rows(rows, wanted))


def _outcomes(rows: pa.Table, after: int = -1) -> TransactionOutcomes:
    """The outcomes of transactions in these rows, but not the commits up to message `after`.

    A transaction that continues after this message may have lost a subtransaction before it.
    """
    (outcomes,) = outcomes_of_rows([rows.select(NEEDED)])
    return TransactionOutcomes.of_batch(outcomes).between(after + 1, _LAST)

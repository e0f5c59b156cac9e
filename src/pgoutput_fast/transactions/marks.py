"""What the rows of rejected messages and of unknown outcomes add to decoded rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.decoding.rejected_rows import error_of, outcomes_of, rejects_of
from pgoutput_fast.decoding.result import RecordTables
from pgoutput_fast.protocol.kinds import REJECTED, UNKNOWN_OUTCOME
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.tables import one_batch
from pgoutput_fast.transactions.lost import rejected
from pgoutput_fast.transactions.outcomes import TransactionOutcomes, values_of

__all__ = ["Marks"]


@dataclass(frozen=True)
class Marks:
    """The rejects of tagged rows, and the transactions whose outcome they do not know.

    Attributes:
        rejects: of messages that tagging rejected, and of those of lost transactions; with REJECTS_SCHEMA.
        outcomes: the unknown outcomes, with OUTCOMES_SCHEMA.
    """

    rejects: pa.Table
    outcomes: pa.RecordBatch

    @classmethod
    def of(
        cls,
        batch: pa.RecordBatch,
        catalog: Catalog,
        options: Options,
        outcomes: pa.RecordBatch | pa.Table | None,
    ) -> tuple[Marks, pa.RecordBatch]:
        """Returns the marks of a batch with TAGGED_SCHEMA, and its other rows.

        Raises:
            DecodeError: if there are rejects, and the options raise errors.
        """
        rows = pa.Table.from_batches([batch])
        unknown = outcomes_of(rows)
        rejects = rejects_of(rows)
        if options.transactions == "committed" and unknown.num_rows and outcomes is not None:
            known = pa.Table.from_batches([unknown])
            lost = TransactionOutcomes.of_batch(_with(known, outcomes)).lost_rows(rows)
            rejects = pa.concat_tables([rejects, rejected(lost, catalog)])
        if options.on_error == "raise" and rejects.num_rows:
            raise error_of(rejects)
        kept = ~np.isin(values_of(rows, "kind"), (REJECTED, UNKNOWN_OUTCOME))
        return cls(rejects, unknown), batch.filter(pa.array(kept))

    def added_to(self, records: Any) -> RecordTables:
        """The records of the other rows, with these."""
        tables = RecordTables.of(records)
        rejects = pa.concat_tables([pa.Table.from_batches([tables.rejects]), self.rejects]).sort_by("seq")
        # A transaction may have a commit, and an unknown outcome: a part of it may have been rolled back.
        is_unknown = np.isin(values_of(tables.outcomes, "txn", -1), values_of(self.outcomes, "txn"))
        is_unknown &= np.asarray(tables.outcomes.column("subxid").is_null())
        known = tables.outcomes.filter(pa.array(~is_unknown))
        outcomes = pa.Table.from_batches([known, self.outcomes])
        return replace(tables, rejects=one_batch(rejects), outcomes=one_batch(outcomes))


def _with(unknown: pa.Table, outcomes: pa.RecordBatch | pa.Table) -> pa.Table:
    given = outcomes if isinstance(outcomes, pa.Table) else pa.Table.from_batches([outcomes])
    return pa.concat_tables([given.cast(unknown.schema), unknown])

"""Rows of transactions that are lost: it is unknown whether they committed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.base.errors import reason_text
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.protocol.kinds import MSG_TRUNCATE
from pgoutput_fast.protocol.reasons import Reason
from pgoutput_fast.schema.tables import REJECTS_SCHEMA
from pgoutput_fast.transactions.outcomes import values_of

__all__ = ["rejected"]


def rejected(rows: pa.Table, catalog: Catalog) -> pa.Table:
    """Reject rows for whole messages: it is unknown whether they were committed.

    A Truncate has one row, with the original message.
    """
    seqs, lengths = values_of(rows, "seq"), pc.binary_length(rows.column("payload")).to_numpy()
    longest_first = np.lexsort((-lengths, seqs))
    _, first = np.unique(seqs[longest_first], return_index=True)
    rows = rows.take(pa.array(longest_first[first]))
    columns = {"seq": rows.column("seq"), "lsn": rows.column("lsn"), "raw": rows.column("payload")}
    names = {relation.version: relation.qualified_name for relation in catalog.relations}
    changed = zip(values_of(rows, "kind").tolist(), rows.column("version").to_pylist(), strict=True)
    relations = [names.get(version) if kind != MSG_TRUNCATE else None for kind, version in changed]
    columns["relation"] = pa.array(relations, pa.string())
    columns["reason"] = pa.array([reason_text(Reason.OUTCOME_UNKNOWN)] * rows.num_rows, pa.string())
    return pa.Table.from_arrays(
        [columns.get(field.name, pa.nulls(rows.num_rows, field.type)) for field in REJECTS_SCHEMA],
        schema=REJECTS_SCHEMA,
    )

"""Surveys of tagged payloads: what a decoding needs to know of all of them. Imports no PySpark."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.decoding.decoder import decode_tagged
from pgoutput_fast.protocol.kinds import CHANGES, DESCRIPTIONS, MSG_TYPE, OUTCOME_ROWS
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.tables import OUTCOMES_SCHEMA
from pgoutput_fast.spark.tasks.rows import rows_of_kinds

__all__ = ["SURVEY_SCHEMA", "Survey", "SurveyTags"]

# One row per task.
SURVEY_SCHEMA = pa.schema(
    [
        (
            "descriptions",
            pa.list_(pa.struct([("seq", pa.int64()), ("kind", pa.int8()), ("body", pa.binary())])),
        ),
        ("relations", pa.list_(pa.int64())),
        ("outcomes", pa.binary()),  # an Arrow stream
    ]
)


@dataclass(frozen=True)
class Survey:
    """What a decoding needs to know of all payloads.

    Attributes:
        descriptions: `seq`, `kind` and `body` of the Type messages, and of the first Relation message of each version,
            by `seq`. A body has no tag and no xid.
        relations: the oids of the relations that have changes.
        outcomes: the outcomes of transactions, with OUTCOMES_SCHEMA.
    """

    descriptions: Sequence[dict[str, Any]]
    relations: frozenset[int]
    outcomes: pa.Table

    @classmethod
    def of_tagged(cls, batches: Iterable[pa.RecordBatch], *, outcomes: bool) -> Survey:
        """The survey of tagged payloads, of which the headers of changes suffice.

        Args:
            batches: the payloads.
            outcomes: whether the outcomes of transactions are wanted.
        """
        described: dict[tuple[int, bytes, int], int] = {}
        relations: set[int] = set()
        ended = [OUTCOMES_SCHEMA.empty_table()]
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            names: dict[bytes, bytes] = {}  # oid -> last Type message
            for row in rows_of_kinds(rows, DESCRIPTIONS).to_pylist():
                body = row["payload"][5 if row["in_stream"] else 1 :]
                # The first description of a relation counts, and of a type the last one before it.
                is_type = row["kind"] == MSG_TYPE
                if not is_type and row["version"] is None:
                    continue  # it follows a rejected Type, so the types of its columns are unknown
                if is_type and names.get(body[:4]) == body:
                    continue
                if is_type:
                    names[body[:4]] = body
                key = (row["kind"], body, row["seq"] if is_type else 0)
                described[key] = min(row["seq"], described.get(key, row["seq"]))
            relations.update(rows_of_kinds(rows, CHANGES).column("relation").unique().to_pylist())
            ends = rows_of_kinds(rows, OUTCOME_ROWS)
            if outcomes and ends.num_rows:
                ended.append(pa.Table.from_batches([decode_tagged(ends, Catalog(), Options()).outcomes]))
        rows_of = [{"seq": seq, "kind": kind, "body": body} for (kind, body, _), seq in described.items()]
        return cls(rows_of, frozenset(relations), pa.concat_tables(ended))

    @classmethod
    def joined(cls, parts: Iterable[Survey]) -> Survey:
        """The survey of all payloads, from those of their parts in any order."""
        parts = list(parts)
        described: dict[tuple[int, bytes, int], dict[str, Any]] = {}
        for row in sorted(
            itertools.chain.from_iterable(each.descriptions for each in parts),
            key=lambda row: int(row["seq"]),
        ):
            key = (row["kind"], row["body"], row["seq"] if row["kind"] == MSG_TYPE else 0)
            described.setdefault(key, row)
        return cls(
            list(described.values()),
            frozenset(oid for each in parts for oid in each.relations),
            pa.concat_tables([OUTCOMES_SCHEMA.empty_table(), *(each.outcomes for each in parts)]),
        )

    def to_batch(self) -> pa.RecordBatch:
        """The survey as a row with SURVEY_SCHEMA."""
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(sink, self.outcomes.schema, options=options) as writer:
            writer.write_table(self.outcomes)
        row = {
            "descriptions": self.descriptions,
            "relations": sorted(self.relations),
            "outcomes": bytes(sink.getvalue()),
        }
        return pa.RecordBatch.from_pylist([row], SURVEY_SCHEMA)

    @classmethod
    def of_rows(cls, rows: pa.Table) -> Survey:
        """The survey of all payloads, from rows with SURVEY_SCHEMA."""
        return cls.joined(
            cls(
                row["descriptions"],
                frozenset(row["relations"]),
                pa.ipc.open_stream(row["outcomes"]).read_all(),
            )
            for row in rows.to_pylist()
        )


@dataclass(frozen=True)
class SurveyTags:
    """Tagged payloads, with or without the tuples of changes -> SURVEY_SCHEMA.

    Attributes:
        outcomes: whether the outcomes of transactions are wanted.
    """

    outcomes: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield Survey.of_tagged(batches, outcomes=self.outcomes).to_batch()

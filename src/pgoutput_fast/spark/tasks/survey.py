"""Surveys of tagged payloads: what a decoding needs to know of all of them. Imports no PySpark."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.decoding.decoder import decode_tagged
from pgoutput_fast.protocol.kinds import CHANGES, DESCRIPTIONS, MSG_TYPE, OUTCOME_ROWS
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.tables import OUTCOMES_SCHEMA
from pgoutput_fast.spark.tasks.rows import rows_of_kinds
from pgoutput_fast.transactions.outcomes import TransactionOutcomes

__all__ = ["SURVEY_SCHEMA", "Survey", "SurveyTags", "Surveyor"]

_OF_DESCRIPTIONS = ["seq", "kind", "version", "in_stream", "payload"]

# One row per task, or per range.
SURVEY_SCHEMA = pa.schema(
    [
        (
            "descriptions",
            pa.list_(pa.struct([("seq", pa.int64()), ("kind", pa.int8()), ("body", pa.binary())])),
        ),
        ("relations", pa.list_(pa.int64())),
        ("outcomes", pa.binary()),  # pickled
    ]
)

_OF_DESCRIPTIONS = ["seq", "kind", "version", "in_stream", "payload"]


@dataclass(frozen=True)
class Survey:
    """What a decoding needs to know of all payloads.

    Attributes:
        descriptions: `seq`, `kind` and `body` of the Type messages, and of the first Relation message of each version,
            by `seq`. A body has no tag and no xid.
        relations: the oids of the relations that have changes.
        outcomes: the outcomes of transactions.
    """

    descriptions: Sequence[dict[str, Any]]
    relations: frozenset[int]
    outcomes: TransactionOutcomes

    @classmethod
    def joined(cls, parts: Iterable[Survey]) -> Survey:
        """The survey of all payloads, from those of their parts in stream order."""
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
            TransactionOutcomes.joined(each.outcomes for each in parts),
        )

    def to_row(self) -> dict[str, Any]:
        """The survey as a row with SURVEY_SCHEMA."""
        return {
            "descriptions": self.descriptions,
            "relations": sorted(self.relations),
            "outcomes": pickle.dumps(self.outcomes),
        }

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Survey:
        """The inverse of `to_row`."""
        return cls(row["descriptions"], frozenset(row["relations"]), pickle.loads(row["outcomes"]))


class Surveyor:
    """Makes the survey of tagged payloads, of which the headers of changes suffice.

    Args:
        outcomes: whether the outcomes of transactions are wanted.
    """

    def __init__(self, *, outcomes: bool) -> None:
        self._outcomes = outcomes
        self._described: dict[tuple[int, bytes, int], int] = {}
        self._relations: set[int] = set()
        self._ended = [OUTCOMES_SCHEMA.empty_table()]

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds the next payloads."""
        rows = pa.Table.from_batches([batch])
        names: dict[bytes, bytes] = {}  # oid -> last Type message
        # Without the times, some of which Python does not have.
        for row in rows_of_kinds(rows, DESCRIPTIONS).select(_OF_DESCRIPTIONS).to_pylist():
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
            self._described[key] = min(row["seq"], self._described.get(key, row["seq"]))
        self._relations.update(rows_of_kinds(rows, CHANGES).column("relation").unique().to_pylist())
        ends = rows_of_kinds(rows, OUTCOME_ROWS)
        if self._outcomes and ends.num_rows:
            self._ended.append(pa.Table.from_batches([decode_tagged(ends, Catalog(), Options()).outcomes]))

    def survey(self) -> Survey:
        """The survey of the payloads so far."""
        described = [
            {"seq": seq, "kind": kind, "body": body} for (kind, body, _), seq in self._described.items()
        ]
        outcomes = TransactionOutcomes.of_batch(pa.concat_tables(self._ended))
        return Survey(described, frozenset(self._relations), outcomes)


@dataclass(frozen=True)
class SurveyTags:
    """Tagged payloads, with or without the tuples of changes -> SURVEY_SCHEMA."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        surveyor = Surveyor(outcomes=True)
        for batch in batches:
            surveyor.add(batch)
        yield pa.RecordBatch.from_pylist([surveyor.survey().to_row()], SURVEY_SCHEMA)

"""Builds the catalog of tagged payloads from their Relation and Type messages."""

from __future__ import annotations

from typing import Literal

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from pgoutput_fast._core.protocol.relations import Malformed, parse_type, relation_of
from pgoutput_fast.base.errors import DecodeError, reason_text
from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.decoding.state import StreamState
from pgoutput_fast.protocol.kinds import DESCRIPTIONS, MESSAGE_KINDS, MSG_TYPE
from pgoutput_fast.spark.dataframes.tagged import ends_of, expect_tagged, untagged_of

__all__ = ["read_catalog", "relations"]

_RELATIONS_SCHEMA = (
    "oid long, version long, namespace string, name string, replica_identity string, columns array<struct<"
    "name string, type_oid long, typmod int, key boolean, type_namespace string, type_name string>>"
)


def read_catalog(wal: DataFrame, *, on_error: Literal["raise", "quarantine"] = "raise") -> Catalog:
    """Returns all relation versions described by tagged payloads. Only distinct descriptions are sent to the driver.

    The result of `tag(..., state=...)` also includes the relation versions of that state, which its rows may refer to.

    Args:
        wal: tagged payloads. Do not filter out Relation and Type rows.
        on_error: `"raise"` fails on a malformed description. `"quarantine"` skips it: its version is then unknown, and
            changes of that version are `rejects`.

    Raises:
        DecodeError: if a description is malformed.
        TypeError: if `wal` is not a DataFrame.
        ValueError: if `wal` is not tagged.
    """
    expect_tagged(wal, ("seq", "kind", "in_stream", "payload"))
    untagged = untagged_of(wal)
    described = _descriptions(wal) if untagged is None else untagged.survey.descriptions
    ends = ends_of(wal)
    before = StreamState() if ends is None else ends.before
    names = _type_names(before)
    found: list[Relation] = []
    for row in described:
        try:
            if row["kind"] == MSG_TYPE:
                oid, namespace, name = parse_type(bytes(row["body"]))
                names[oid] = (namespace, name)
            else:
                found.append(relation_of(bytes(row["body"]), tuple(sorted(names.items()))))
        except Malformed as problem:
            if on_error == "raise":
                kind = MESSAGE_KINDS[row["kind"]]
                raise DecodeError(reason_text(problem.reason), seq=row["seq"], kind=kind) from None
    return before.catalog.merged(Catalog(found))


def _descriptions(wal: DataFrame) -> list[Row]:
    """`seq`, `kind` and `body` of the distinct Relation and Type messages, by `seq`."""
    # The body begins after the tag byte. Inside a stream block it begins after the tag byte and the xid.
    body = F.when(F.col("in_stream"), F.substring("payload", 6, 1 << 30)).otherwise(
        F.substring("payload", 2, 1 << 30)
    )
    rows = wal.where(F.col("kind").isin(*DESCRIPTIONS))
    if "version" in wal.columns:
        # In quarantine, a Relation after a rejected Type has no version: the types of its columns are unknown.
        rows = rows.where((F.col("kind") == MSG_TYPE) | F.col("version").isNotNull())
    return (
        rows.select("seq", "kind", body.alias("body"))
        .groupBy("kind", "body")
        .agg(F.min("seq").alias("seq"))
        .orderBy("seq")
        .collect()
    )


def _type_names(state: StreamState) -> dict[int, tuple[str, str]]:
    """Returns (namespace, name) of the types in Type messages, by oid; the last message counts."""
    values = state.values or {}
    scopes = [*values.get("streamed", ()), *values.get("prepared", ()), values.get("current") or {}]
    named = [(seq, int(oid), name) for oid, (*name, seq) in values.get("types", {}).items()]
    named += [(seq, oid, name) for scope in scopes for oid, _, *name, seq in scope.get("types", ())]
    return {oid: (namespace, name) for _, oid, (namespace, name) in sorted(named)}


def relations(wal: DataFrame) -> DataFrame:
    """Returns the relation versions as a DataFrame: oid, version, namespace, name, replica_identity, columns."""
    rows = [
        (
            r.oid,
            r.version,
            r.namespace,
            r.name,
            r.replica_identity,
            [(c.name, c.type_oid, c.typmod, c.key, c.type_namespace, c.type_name) for c in r.columns],
        )
        for r in read_catalog(wal).relations
    ]
    return wal.sparkSession.createDataFrame(rows, _RELATIONS_SCHEMA)

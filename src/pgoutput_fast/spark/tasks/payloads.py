"""The functions on single payloads, for the executors: Arrow arrays in and out. Imports no PySpark."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast._core.protocol.headers import headers
from pgoutput_fast.base.errors import DecodeError, reason_text
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.decoding.decoder import decode_tagged
from pgoutput_fast.decoding.result import fit
from pgoutput_fast.protocol.kinds import KIND_NAMES, ROW_CHANGES
from pgoutput_fast.protocol.reasons import OK
from pgoutput_fast.schema.metadata_columns import metadata_fields
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.schema.tables import TAGGED_SCHEMA

__all__ = ["DETAILS", "PREFIX", "DecodeRow", "MessageKind", "RelationOid", "Xid"]

_NAME_OF_TAG = pa.array([KIND_NAMES.get(tag) for tag in range(256)], pa.string())
_CHANGE_OF_TAG = np.array([KIND_NAMES[tag] if tag in ROW_CHANGES else None for tag in range(256)])

DETAILS = (
    ("key_only", pa.bool_()),
    ("unchanged", pa.list_(pa.string())),
    ("unrepresentable", pa.list_(pa.string())),
)

# No column can have this name: PostgreSQL's names have at most 63 bytes.
PREFIX = "_" * 64


def _binary(payload: pa.Array) -> pa.Array:
    return payload if pa.types.is_binary(payload.type) else payload.cast(pa.large_binary())


def _headers(payload: pa.Array, in_stream: pa.Array | None, malformed: str) -> dict[str, pa.Array]:
    """Returns the headers of an array of payloads, and `present`: whether the row has a payload with a readable header.

    Raises:
        DecodeError: for the first unreadable header, unless `malformed` says that these become null.
    """
    given = None if in_stream is None else in_stream.cast(pa.int8()).fill_null(-1)
    fields = headers(payload, given)
    present = payload.is_valid().to_numpy(zero_copy_only=False)
    wrong = (fields["reason"].to_numpy() != OK) & present
    if malformed == "raise" and wrong.any():
        row = int(wrong.argmax())
        reason = reason_text(fields["reason"][row].as_py())
        raise DecodeError(
            f"{reason} (row {row} of its Arrow batch)", byte_offset=fields["byte_offset"][row].as_py()
        )
    return {**fields, "present": pa.array(present & ~wrong)}


@dataclass(frozen=True)
class MessageKind:
    """Payloads -> names of their kinds. Reads only the tag byte."""

    malformed: str

    def __call__(self, payload: pa.Array, in_stream: pa.Array | None = None) -> pa.Array:
        payload = _binary(payload)
        # The layout is irrelevant here.
        known = pa.array(np.zeros(len(payload), np.int8))
        fields = headers(payload, known)
        names = pc.if_else(payload.is_valid(), _NAME_OF_TAG.take(fields["kind"]), None)
        if self.malformed == "raise" and names.null_count > payload.null_count:
            _headers(payload, known, "raise")
        return names


@dataclass(frozen=True)
class RelationOid:
    """Payloads -> oid of the relation of an Insert, Update, Delete or Relation message."""

    malformed: str

    def __call__(self, payload: pa.Array, in_stream: pa.Array | None = None) -> pa.Array:
        return _field(_headers(_binary(payload), in_stream, self.malformed), "relation")


@dataclass(frozen=True)
class Xid:
    """Payloads -> the xid in each message."""

    malformed: str

    def __call__(self, payload: pa.Array, in_stream: pa.Array | None = None) -> pa.Array:
        return _field(_headers(_binary(payload), in_stream, self.malformed), "xid")


def _field(fields: dict[str, pa.Array], name: str) -> pa.Array:
    return pc.if_else(pc.and_(fields["present"], pc.greater_equal(fields[name], 0)), fields[name], None)


@dataclass(frozen=True)
class DecodeRow:
    """Payloads -> struct(change_type, before, after); null if the payload is not a change of the relation.

    Attributes:
        catalog: JSON of the relation's versions, no two with the same number of columns, the requested version last;
            and of the known types.
        options: how to decode.
        own: the schema of the requested version's columns.
        images: the same columns in Spark's types.
        details: whether the struct also describes the nulls.
        malformed: `raise` or `null`.
    """

    catalog: str
    options: Options
    own: pa.Schema
    images: pa.Schema
    details: bool
    malformed: str

    def __call__(self, payload: pa.Array, in_stream: pa.Array | None = None) -> pa.Array:
        catalog = Catalog.from_json(self.catalog)
        relation = catalog.relations[-1]
        payload = _binary(payload)
        fields = _headers(payload, in_stream, self.malformed)
        kinds = fields["kind"].to_numpy()
        ours = fields["present"].to_numpy(zero_copy_only=False) & np.isin(kinds, ROW_CHANGES)
        ours &= fields["relation"].to_numpy() == relation.oid
        rows = np.flatnonzero(ours)
        versions = _versions(payload, fields["in_stream"].to_numpy(), rows, catalog)
        decoded = self._decoded(payload, fields, rows[versions >= 0], versions[versions >= 0], catalog)
        types = decoded.column(PREFIX + "change_type")
        seqs = decoded.column(PREFIX + "seq").to_numpy()
        is_before = pc.is_in(types, pa.array(["update_preimage", "delete"]))
        is_before = is_before.to_numpy(zero_copy_only=False).astype(bool)
        count = len(payload)
        before, after = _places(seqs, is_before, count), _places(seqs, ~is_before, count)
        batches = to_types(decoded.select(self.images.names), self.images).combine_chunks().to_batches()
        # A table without rows has no batch.
        whole = batches[0].to_struct_array() if batches else pa.array([], pa.struct(list(self.images)))
        there = before.is_valid().to_numpy(zero_copy_only=False) | after.is_valid().to_numpy(
            zero_copy_only=False
        )
        change = pa.array(np.where(there, _CHANGE_OF_TAG[kinds], None), pa.string())
        children = {"change_type": change, "before": whole.take(before), "after": whole.take(after)}
        if self.details:
            key = PREFIX + "key_only"
            children["key_only"] = _take_whole(decoded.column(key), before)
            # Both images can have values without an Arrow form; only the new image has unchanged TOASTed values (`u`).
            children["unchanged"] = _take_whole(decoded.column(PREFIX + "unchanged"), after)
            named = decoded.column(PREFIX + "unrepresentable")
            children["unrepresentable"] = pc.coalesce(_take_whole(named, after), _take_whole(named, before))
        return pa.StructArray.from_arrays(
            list(children.values()), names=list(children), mask=pa.array(~there)
        )

    def _decoded(
        self,
        payload: pa.Array,
        fields: dict[str, pa.Array],
        rows: np.ndarray,
        versions: np.ndarray,
        catalog: Catalog,
    ) -> pa.Table:
        """Decodes the changes at `rows`, with their index in the array as their ordinal.

        `versions` are indices in the catalog.
        """
        relation = catalog.relations[-1]
        ids = np.array([each.version for each in catalog.relations], np.int64)
        at = pa.array(rows)
        none = pa.nulls(len(rows), pa.int64())
        columns = dict.fromkeys(TAGGED_SCHEMA.names, none)
        columns |= {
            "seq": at.cast(pa.int64()),
            "kind": fields["kind"].take(at).cast(pa.int8()),
            "relation": pa.repeat(pa.scalar(relation.oid, pa.int64()), len(rows)),
            "version": pa.array(ids[versions]),
            "in_stream": fields["in_stream"].take(at).cast(pa.bool_()),
            "commit_timestamp": none.cast(TAGGED_SCHEMA.field("commit_timestamp").type),
            "payload": payload.take(at).cast(pa.binary()),
        }
        batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=TAGGED_SCHEMA)
        try:
            decoded = decode_tagged(batch, catalog, self.options)
        except DecodeError as problem:
            # The ordinal in this error is the index in the array. `from None` hides the layers in between.
            raise DecodeError(
                f"{problem.reason} (row {problem.seq} of its Arrow batch)",
                byte_offset=problem.byte_offset,
                relation=problem.relation,
                column=problem.column,
                kind=problem.kind,
            ) from None
        schema = pa.schema([*metadata_fields(PREFIX), *self.own])
        changes = [fit(each.batch, schema) for each in decoded.changes]
        return pa.concat_tables(changes) if changes else schema.empty_table()


def _versions(payload: pa.Array, in_stream: np.ndarray, rows: np.ndarray, catalog: Catalog) -> np.ndarray:
    """Returns, for each change, the catalog index of the version with the same number of columns, or -1.

    A change that ends before its number of columns counts as one of the last version. The decoder then reports it as
    malformed.
    """
    counts = np.full(1 << 16, -1)
    for place, relation in enumerate(catalog.relations):
        counts[len(relation.columns)] = place
    kind = np.int64 if pa.types.is_large_binary(payload.type) else np.int32
    _, offsets, data = payload.buffers()
    ends = np.frombuffer(offsets, kind)[payload.offset : payload.offset + len(payload) + 1].astype(np.int64)
    values = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    # The number of columns comes after the tag byte, the xid (in a stream block), the oid and the tuple's tag.
    at = ends[rows] + np.where(in_stream[rows] > 0, 10, 6)
    whole = at + 2 <= ends[rows + 1]
    versions = np.full(len(rows), len(catalog.relations) - 1)
    at = at[whole]
    versions[whole] = counts[values[at].astype(np.int64) << 8 | values[at + 1]]
    return versions


def _places(seqs: np.ndarray, chosen: np.ndarray, count: int) -> pa.Array:
    """Returns, for each payload, the index of its image among the decoded rows; null if it has none."""
    places = np.full(count, -1, np.int64)
    places[seqs[chosen]] = np.flatnonzero(chosen)
    return pa.array(places, mask=places < 0)


def _take_whole(column: pa.ChunkedArray, places: pa.Array) -> pa.Array:
    taken = column.take(places)
    return taken.combine_chunks() if isinstance(taken, pa.ChunkedArray) else taken

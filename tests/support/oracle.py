"""The two oracles of the tests against real servers: the reference decoder, and tables replayed in plain Python."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.decoding.result import Decoded
from reference import messages as reference
from reference.nested import Described, Types
from support import pg

Row: TypeAlias = dict[str, Any]

METADATA = (
    "_change_type", "_seq", "_lsn", "_txn", "_xid", "_subxid", "_commit_lsn", "_commit_timestamp", "_key_only",
    "_unchanged", "_unrepresentable",
)  # fmt: skip
TABLES = ("transactions", "outcomes", "truncates", "messages", "rejects")


def require(database: pg.Database, version: int, what: str) -> None:
    """Skips a test of something that the server is too old for."""
    if database.version < version:
        pytest.skip(f"{what} since {version}")


def comparable(value: Any) -> Any:
    """Floats as their bits, so that NaN equals NaN and -0 differs from 0. Other values stay as they are."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value.hex()
    if isinstance(value, list):
        return [comparable(each) for each in value]
    if isinstance(value, tuple):  # a pair of a map
        return tuple(comparable(each) for each in value)
    if isinstance(value, dict):
        return {key: comparable(each) for key, each in value.items()}
    return value


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Dates become days, times and timestamps microseconds: Python's types have no BC and no year 294247."""
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_time64(kind) or pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(plain_type(field.type)) for field in kind])
    return kind


def plain_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    values: list[Any] = comparable(column.cast(plain_type(column.type)).to_pylist())
    return values


def plain_records(batch: pa.RecordBatch | pa.Table) -> list[Row]:
    """One dict per row, with values as in the reference decoder."""
    columns = [plain_values(column) for column in batch.columns]
    return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def plain_changes(outs: Iterable[Decoded]) -> list[Row]:
    """The rows of all batches in the form of the reference decoder, version by version."""
    rows = []
    for each in [each for out in outs for each in out.changes]:
        each.batch.validate(full=True)
        relation, names = each.relation, each.batch.schema.names
        assert names == [*METADATA, *(column.name for column in relation.columns)]
        for record in plain_records(each.batch):
            row = {name: record[name] for name in METADATA}
            row["columns"] = {name: record[name] for name in names[len(METADATA) :]}
            row["relation"] = (relation.oid, relation.namespace, relation.name)
            rows.append(row | {"version": relation.version})
    return rows


def in_apply_order(rows: list[Row], *, committed: bool = False) -> list[Row]:
    """The rows in apply order. Pre- and postimage keep their order; the relations of one truncate have no order."""
    return sorted(
        rows, key=lambda row: (row["_commit_lsn"] if committed else 0, row["_seq"], row["relation"][0])
    )


def decode_in_pieces(
    payloads: Sequence[pg.Payload],
    cuts: Iterable[int] = (),
    sessions: Iterable[int] = (),
    catalog: pgo.Catalog | None = None,
    **options: Any,
) -> list[Decoded]:
    """Decodes with one decoder. A new call starts at each cut, and a new session at each of `sessions`."""
    decoder = pgo.Decoder(pgo.Options(**options), catalog=catalog)
    sessions = set(sessions)
    edges = sorted({0, *cuts, *sessions, len(payloads)})
    outs = []
    for start, end in itertools.pairwise(edges):
        if start in sessions:
            decoder.start_session()
        piece = payloads[start:end]
        outs.append(decoder.decode([data for _, data in piece], lsn=[lsn for lsn, _ in piece]))
    return outs


def same_as_reference(
    payloads: Sequence[pg.Payload],
    sessions: Iterable[int] = (),
    cuts: Iterable[int] = (),
    catalog: pgo.Catalog | None = None,
    types: Types | None = None,
    **options: Any,
) -> list[Decoded]:
    """Decodes with both decoders, asserts that all results are equal, and returns those of the fast decoder.

    `catalog` is an enriched catalog. `types` is the result of `server_types` at the same time.
    """
    sessions = tuple(sessions)
    outs = decode_in_pieces(payloads, cuts, sessions, catalog, **options)
    expected = reference.decode(
        [data for _, data in payloads],
        [lsn for lsn, _ in payloads],
        sessions=sessions,
        types=types,
        **options,
    )
    committed = options.get("transactions") == "committed"
    found = in_apply_order(plain_changes(outs), committed=committed)
    equal_rows(found, comparable(in_apply_order(expected.rows, committed=committed)), "changes")
    for name in TABLES:
        records = [record for out in outs for record in plain_records(getattr(out, name))]
        wanted = getattr(expected, name)
        if name == "rejects":  # the two decoders word their reasons differently
            records, wanted = ([{**each, "reason": ""} for each in those] for those in (records, wanted))
        equal_rows(records, wanted, name)
    return outs


def equal_rows(found: list[Row], wanted: list[Row], what: str) -> None:
    """Asserts that lists of rows are equal. The error shows only the first difference: lists can be long."""
    for number, (one, other) in enumerate(zip(found, wanted, strict=False)):
        assert one == other, f"{what}, row {number}"
    assert len(found) == len(wanted), what


def same_as_reference_in_both_views(payloads: Sequence[pg.Payload]) -> None:
    for transactions in ("as_sent", "committed"):
        same_as_reference(payloads, transactions=transactions)


# --- tables -----------------------------------------------------------------------------------------------


class Replica:
    """Tables by oid, made only from decoded changes. A row is a {column: value}."""

    def __init__(self) -> None:
        self.tables: dict[int, list[Row]] = {}
        self.versions: dict[int, pgo.Relation] = {}

    def apply(self, outs: Iterable[Decoded], *, committed: bool = False) -> Replica:
        outs = list(outs)
        known = {each.relation.version: each.relation for out in outs for each in out.changes}
        old: Row | None = None
        for row in in_apply_order(plain_changes(outs), committed=committed):
            relation = known[row["version"]]
            self._describe(relation)
            if row["_change_type"] == "update_preimage":
                old = row
                continue
            self._change(relation, row, old)
            old = None
        return self

    def rows(self, oid: int) -> list[tuple[Any, ...]]:
        """The sorted rows of a table, with values in the order of the newest columns."""
        if oid not in self.tables:
            return []
        names = [column.name for column in self.versions[oid].columns]
        return sorted((tuple(row[name] for name in names) for row in self.tables[oid]), key=repr)

    def _describe(self, relation: pgo.Relation) -> None:
        """Converts old rows to a new version: removes dropped columns, and sets new columns to null.

        The messages do not tell a rename from a drop and an add. If the number of columns is the same, and only one
        name differs, this assumes a rename.
        """
        rows, before = self.tables.setdefault(relation.oid, []), self.versions.get(relation.oid)
        self.versions[relation.oid] = relation
        if before is None or before.version == relation.version:
            return
        names, old_names = ([column.name for column in each.columns] for each in (relation, before))
        pairs = zip(names, old_names, strict=False) if len(names) == len(old_names) else ()
        differing = [pair for pair in pairs if pair[0] != pair[1]]
        renamed = dict(differing) if len(differing) == 1 else {}
        self.tables[relation.oid] = [
            {name: row.get(renamed.get(name, name)) for name in names} for row in rows
        ]

    def _change(self, relation: pgo.Relation, row: Row, old: Row | None) -> None:
        rows, values = self.tables[relation.oid], row["columns"]
        kind = row["_change_type"]
        if kind == "truncate":
            rows.clear()
            return
        if kind == "insert":
            assert not row["_unchanged"]
            rows.append(dict(values))
            return
        identity = old or row
        names = [column.name for column in relation.columns]
        if identity["_key_only"] or (kind == "update_postimage" and old is None):
            names = [column.name for column in relation.columns if column.key]
        names = [name for name in names if name not in (identity["_unchanged"] or ())]
        wanted = {name: identity["columns"][name] for name in names}
        assert wanted, "a change of an unidentified row"
        found = [each for each in rows if all(each[name] == value for name, value in wanted.items())]
        assert found, f"{kind} of a row that is not there"
        if kind == "delete":
            rows.remove(found[0])
            return
        assert len(found) == 1 or relation.replica_identity == "f"
        for name, value in values.items():
            if name not in (row["_unchanged"] or ()):
                found[0][name] = value


def server_rows(slot: pg.Slot | pg.Database, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
    """The rows of a table, from a query on the server."""
    return sorted(
        (tuple(comparable(list(row))) for row in slot.execute(f"SELECT {columns} FROM {table}")), key=repr
    )


def server_types(slot: pg.Slot | pg.Database) -> dict[int, Described]:
    """The server's description of its types that are not built in, read with simple separate queries."""
    version = int(slot.execute("SHOW server_version_num")[0][0])
    multirange = "rngmultitypid" if version >= 140000 else "0"
    ranges = slot.execute(f"SELECT rngtypid::int8, rngsubtype::int8, ({multirange})::int8 FROM pg_range")
    bounds = {oid: of for oid, of, _ in ranges}
    range_of = {multi: oid for oid, _, multi in ranges}
    arrays = dict(slot.execute("SELECT typarray::int8, oid::int8 FROM pg_type WHERE typarray <> 0"))
    kinds = {"c": "composite", "d": "domain", "e": "enum", "r": "range", "m": "multirange"}
    types = {}
    for oid, schema, name, kind, base, typmod in slot.execute(
        "SELECT t.oid::int8, nspname, typname, typtype, typbasetype::int8, typtypmod FROM pg_type t"
        " JOIN pg_namespace n ON n.oid = typnamespace WHERE t.oid >= 16384"
    ):
        fields = slot.execute(
            "SELECT attname, atttypid::int8, atttypmod FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped"
            f" AND attrelid = (SELECT typrelid FROM pg_type WHERE oid = {oid}) ORDER BY attnum"
        )
        types[oid] = Described(
            "array" if oid in arrays else kinds.get(kind, "base"), schema, name,
            arrays.get(oid) or base or bounds.get(oid) or range_of.get(oid) or 0, typmod, tuple(fields),
        )  # fmt: skip
    return types


def enriched(slot: pg.Slot) -> dict[str, Any]:
    """Arguments for `same_as_reference`: the server's current description of its types."""
    return {"catalog": pgo.Catalog().enriched(slot.connection), "types": server_types(slot)}


def oid_of(slot: pg.Slot | pg.Database, table: str) -> int:
    return int(slot.execute(f"SELECT {pg.literal(table)}::regclass::oid")[0][0])


def kinds(payloads: Iterable[pg.Payload]) -> str:
    """The tags of the messages as one string."""
    return "".join(chr(data[0]) for _, data in payloads)


def runs(text: str) -> str:
    """The string with each run of a letter reduced to one letter."""
    return "".join(letter for at, letter in enumerate(text) if at == 0 or text[at - 1] != letter)


def changes_of(outs: Iterable[Decoded], **wanted: Any) -> list[Row]:
    """The rows in apply order whose metadata equal `wanted`, which has the names without the underscore."""
    conditions: Mapping[str, Any] = {f"_{name}": value for name, value in wanted.items()}
    return [
        row
        for row in in_apply_order(plain_changes(outs))
        if all(row[name] == value for name, value in conditions.items())
    ]

"""Plans how one relation is decoded: versions, schema, catalog. Needs no Spark session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.catalog.user_types import UserTypes
from pgoutput_fast.schema.column_types import column_types_of
from pgoutput_fast.schema.evolution import pin_schema, unify_schemas
from pgoutput_fast.schema.metadata_columns import metadata_fields, metadata_names
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.tables import relation_schema

__all__ = [
    "Resolved",
    "SchemaMode",
    "decoded_schema",
    "mode_of",
    "resolve",
    "resolves_alone",
    "with_metadata",
]

# For queries on Spark.
_ADVICE = (
    "read one version alone. spark.read.parquet(segments).where('version IS NULL OR version <> {version}') has no rows "
    "of the earlier one: pass it to changes(), or to write_tables() with another target. To write only the other "
    "tables, name them in tables="
)

SchemaMode = Literal["latest", "union", "pinned"]


@dataclass(frozen=True)
class Resolved:
    """The plan for one relation: the schema of its rows.

    Attributes:
        table: the relation's qualified name.
        versions: its versions, in order of description.
        catalog: these versions and the known types.
        fingerprint: of the whole catalog that planned the query.
        schema: of the decoded rows.
        oids: of the relations that had the name. A row of an unknown version with one of these oids is read, too, and
            fails.
        others: versions with these oids and another name.
    """

    table: str
    versions: tuple[Relation, ...]
    catalog: Catalog
    fingerprint: str
    schema: pa.Schema
    oids: tuple[int, ...]
    others: tuple[int, ...]


def mode_of(schema_mode: str | None, has_schema: bool) -> SchemaMode:
    """Returns the schema mode. The default is pinned if there is a schema, else latest.

    Raises:
        ValueError: if mode and schema contradict each other.
    """
    if schema_mode is None:
        return "pinned" if has_schema else "latest"
    if schema_mode not in ("latest", "union", "pinned"):
        raise ValueError(f"schema_mode must be 'latest', 'union' or 'pinned', not {schema_mode!r}")
    if (schema_mode == "pinned") != has_schema:
        raise ValueError(
            "schema_mode='pinned' needs a schema (schema= or Options(schemas=...)), and a schema needs this mode"
        )
    return schema_mode  # type: ignore[return-value]


def resolves_alone(catalog: Catalog | None, schema_mode: SchemaMode) -> bool:
    """Whether the passed catalog is sufficient. Otherwise the descriptions in the payloads are added to it."""
    return catalog is not None and len(catalog) > 0 and schema_mode == "latest"


def decoded_schema(relation: Relation, options: Options, types: UserTypes) -> pa.Schema:
    """Returns the schema of a relation version's decoded rows, with metadata columns."""
    column_types = column_types_of(relation.columns, options, types)
    schema = relation_schema(relation, column_types, options)
    if options.plain:
        # Imported lazily: it needs pyarrow.compute, which takes long to import.
        from pgoutput_fast.schema.flat import flat_schema

        return flat_schema(schema)
    return schema


def with_metadata(resolved: Resolved, names: Sequence[str], prefix: str) -> Resolved:
    """Returns the plan with only these metadata columns, in this order, before the relation's columns."""
    reserved = metadata_names(prefix)
    own = [field for field in resolved.schema if field.name not in reserved]
    fields = [*(resolved.schema.field(name) for name in names), *own]
    return replace(resolved, schema=pa.schema(fields, metadata=resolved.schema.metadata))


def resolve(
    known: Catalog, table: str | int, options: Options, schema: pa.Schema | Relation | None
) -> Resolved:
    """Determines the schema of the decoded rows of `table`, pinned to `schema` if that is not None.

    Raises:
        KeyError: if there is no such relation.
        ValueError: if its versions do not fit into one schema, or if the options exclude the relation or name a column
            that no version has.
    """
    versions = known.named(table)
    if not any(map(options.selects, versions)):
        raise ValueError(f"Options(tables=...) leaves out {table}")
    options.check_columns(versions[-1], versions, set())
    decoded = [(relation, decoded_schema(relation, options, known.types)) for relation in versions]
    if schema is None:
        whole = unify_schemas(decoded, _ADVICE)
    else:
        metadata = metadata_fields(options.metadata_prefix)
        pinned = decoded_schema(schema, options, known.types) if isinstance(schema, Relation) else schema
        whole = pin_schema(decoded, pinned, metadata, options.extra_columns)
    oids = tuple(sorted({relation.oid for relation in versions}))
    chosen = {relation.version for relation in versions}
    return Resolved(
        versions[-1].qualified_name,
        versions,
        Catalog(versions, known.types),
        known.fingerprint(),
        whole,
        oids,
        tuple(each.version for oid in oids for each in known.named(oid) if each.version not in chosen),
    )

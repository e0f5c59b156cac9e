"""Plans a streaming query, and replans it when a table changes during the query.

Options in addition to those of `plan.py`: `max_segments` (or `maxFilesPerTrigger`), `max_bytes` (or
`maxBytesPerTrigger`), `consumer`; and for the query's own capture `dsn`, `slot`, `publication`, `capture`.
`starting` (or `startingOffsets`) is where a query without a checkpoint begins. A stream has no `endingOffsets`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql.types import StructType

from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.schema.resolve import SchemaMode, mode_of
from pgoutput_fast.spark.source.options import byte_count, offset, option_of, positive
from pgoutput_fast.spark.source.plan import SourcePlan, TablePlan, plan_source
from pgoutput_fast.storage.paths import is_glob, redacted_uri

__all__ = ["StreamPlan", "check_options", "new_versions", "plan_stream", "plan_with_versions"]


@dataclass(frozen=True)
class StreamPlan:
    """The plan of a streaming query.

    Attributes:
        source: how rows are decoded.
        mode: what happens when an unknown version of a relation appears.
        given: the user's options, in lower case.
        directory: directory of the segments.
        starting: `earliest`, `latest` or the ordinal of a message.
        max_segments, max_bytes: limits of a batch, None for no limit; a batch has at least one segment.
        consumer: the name under which the query reports its position to retention, None for no reports.
    """

    source: SourcePlan
    mode: SchemaMode
    given: Mapping[str, str]
    directory: str
    starting: str
    max_segments: int | None
    max_bytes: int | None
    consumer: str | None


def check_options(options: Mapping[str, str]) -> None:
    """Checks the options of streams, before the query is planned.

    Raises:
        ValueError: for wrong options.
    """
    given = {key.lower(): value for key, value in options.items()}
    if "paths" in given:
        raise ValueError("a stream reads one directory: pass its path to load(path)")
    path = given.get("path", "")
    if not path:
        raise ValueError("format pgoutput needs the path of segments: load(path)")
    if is_glob(path):
        raise ValueError(
            f"a stream reads one directory, and {redacted_uri(path)} is a pattern: pass the directory's path"
        )
    if "endingoffsets" in given:
        raise ValueError("spark.readStream has no option endingOffsets: use spark.read")
    option_of(given, "starting", offset)
    option_of(given, "max_segments", positive)
    option_of(given, "max_bytes", byte_count)
    alone = sorted(
        name for name in ("slot", "publication", "capture") if name in given and "dsn" not in given
    )
    if alone:
        raise ValueError(f"option {alone[0]} needs the option dsn: it says what the query captures")
    if "dsn" in given:
        from pgoutput_fast.spark.source.stream_capture import settings_of

        settings_of(given)


def plan_stream(options: Mapping[str, str], schema: StructType, planned: SourcePlan | None) -> StreamPlan:
    """Plans a streaming query.

    Args:
        options: the user's options.
        schema: the schema that Spark has.
        planned: the plan of `plan_source`, unless the user gave a schema.

    Raises:
        ValueError: for wrong options, and as `plan_source`.
        KeyError: as `plan_source`.
    """
    check_options(options)
    given = {key.lower(): value for key, value in options.items()}
    source = plan_source(options, schema) if planned is None else planned
    return StreamPlan(
        source,
        mode_of(given.get("schema_mode"), planned is None),
        given,
        source.paths[0],
        option_of(given, "starting", offset) or "earliest",
        option_of(given, "max_segments", positive),
        option_of(given, "max_bytes", byte_count),
        given.get("consumer"),
    )


def new_versions(plan: StreamPlan, found: Catalog) -> list[str]:
    """Returns the query's tables with versions in `found` that were unknown when the query was planned."""
    tables = plan.source.tables
    known = {relation.version for relation in _planned(plan).relations}
    known.update(version for table in tables for version in table.others)
    names = {table.name for table in tables}
    oids = {oid: table.name for table in tables for oid in table.oids}
    new = [relation for relation in found.relations if relation.version not in known]
    tables_of_new = [oids.get(each.oid, each.qualified_name) for each in new]
    return [name for name in dict.fromkeys(tables_of_new) if name in names]


def plan_with_versions(plan: StreamPlan, found: Catalog) -> tuple[TablePlan, ...]:
    """Replans the tables, with the same schema, from the known versions and those in `found`.

    Raises:
        ValueError: if a version does not fit into the schema of the query.
    """
    options = {
        key: value
        for key, value in plan.given.items()
        if key not in ("schema_mode", "columns", "metadata", "catalog")
    }
    if "columns" in plan.given:
        options["extra_columns"] = "drop"
    known = _planned(plan).merged(found)
    return plan_source(options, plan.source.spark_schema, known).tables


def _planned(plan: StreamPlan) -> Catalog:
    catalogs = [Catalog.from_json(table.decode.catalog) for table in plan.source.tables]
    return reduce(Catalog.merged, catalogs)

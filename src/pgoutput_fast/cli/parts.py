"""Collects decoded tables in files: parts of one schema each, which become one file or table at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pgoutput_fast.catalog.relations import Relation
from pgoutput_fast.cli.payloads import InputError
from pgoutput_fast.decoding.result import Decoded, fit
from pgoutput_fast.schema.evolution import unify_schemas
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.files import TableFiles

__all__ = ["Collected", "Parts"]

# The other tables to keep, if they have rows. A truncate is a row of each table that it empties.
_BESIDE = ("rejects", "messages")


@dataclass
class Collected:
    """The rows of one table.

    Attributes:
        namespace, name: names of the table; the namespace of a table other than changes is empty.
        rows: number of rows.
        parts: (relation or None, schema, directory) of each part, in row order.
    """

    namespace: str
    name: str
    rows: int = 0
    parts: list[tuple[Relation | None, pa.Schema, Path]] = field(default_factory=list)

    @property
    def files(self) -> list[Path]:
        """The files of all parts, in row order."""
        return [file for _, _, directory in self.parts for file in sorted(directory.glob("*.parquet"))]

    @property
    def schema(self) -> pa.Schema:
        """A schema for all parts.

        Raises:
            InputError: if no schema fits all of them.
        """
        found = [(relation, schema) for relation, schema, _ in self.parts if relation is not None]
        with _explained():
            return unify_schemas(found) if len(found) > 1 else self.parts[0][1]

    def tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """The rows with this schema, some thousand at a time."""
        for path in self.files:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(1 << 14):
                    yield fit(batch, schema)


@contextmanager
def _explained() -> Iterator[None]:
    """Explains what to do if no table can hold all versions of a relation."""
    try:
        yield
    except ValueError as problem:
        what = str(problem).partition(": read `changes`")[0]
        raise InputError(
            f"{what}. Decode the other tables with --table, and this one in Python: `changes` of pgoutput_fast.decode "
            "has a batch for each version"
        ) from None


class Parts:
    """The decoded tables. A context manager.

    Args:
        directory: directory of the parts.

    Attributes:
        tables: the tables of changes, and the others.
        undecoded: number of rejects that are undecodable messages. The others are values without an Arrow form.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._parts = 0
        self._files = TableFiles(
            open_store(self._directory.parent), "decode", False, file_bytes=sys.maxsize, prefix=None
        )
        self.undecoded = 0
        self.tables: dict[tuple[str, str], Collected] = {}

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *error: object) -> None:
        self._files.__exit__(*error)

    def add(self, decoded: Decoded) -> None:
        """Adds changes, and the other tables.

        Raises:
            InputError: if no table can hold two versions of a relation.
        """
        newest = {each.relation.qualified_name: each.relation for each in decoded.changes}
        for name, relation in newest.items():
            with _explained():
                rows = decoded.table(name)
            self._add(relation.namespace, relation.name, relation, rows)
        self.undecoded += decoded.rejects.column("change_type").null_count
        for name in _BESIDE:
            rows = getattr(decoded, name)
            if rows.num_rows:
                self._add("", name, None, pa.Table.from_batches([rows]))

    def finish(self) -> None:
        """Completes the files."""
        self._files.finish()

    def _add(self, namespace: str, name: str, relation: Relation | None, rows: pa.Table) -> None:
        table = self.tables.setdefault((namespace, name), Collected(namespace, name))
        rows = to_types(rows, stored_schema(rows.schema, "parquet"))
        if not table.parts or not table.parts[-1][1].equals(rows.schema, check_metadata=False):
            self._parts += 1
            table.parts.append((relation, rows.schema, self._directory / f"part-{self._parts}"))
        _, schema, directory = table.parts[-1]
        for batch in rows.replace_schema_metadata(schema.metadata).to_batches():
            self._files.add(f"{self._directory.name}/{directory.name}", batch)
        table.rows += rows.num_rows

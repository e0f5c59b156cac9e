"""Tables of changes without Spark: what `write_tables` does to them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pgoutput_fast.tables.files import WrittenFile
from pgoutput_fast.tables.stream import Stream
from pgoutput_fast.tables.table import Commit, Mode, Ordinal, Table

__all__ = ["append", "join_files", "names_of", "ordinal_of", "seq_of"]


def append(
    table: Table,
    files: Sequence[WrittenFile],
    seq: int,
    schema: pa.Schema,
    mode: Mode = "append",
    partition_by: tuple[str, ...] = (),
    stream: Stream | None = None,
) -> None:
    """Commits files, with the position `seq`."""
    replaces = mode == "overwrite"
    schema = schema if replaces else table.fitted(schema)
    position = Ordinal(seq, stream)
    table.commit(Commit(table.known, schema, position, files, "all" if replaces else (), partition_by))


def join_files(table: Table) -> None:
    """Joins the short files of a table, if that is worth while."""
    joining = table.begin_joining()
    if joining is not None:
        table.end_joining(joining)


def ordinal_of(table: Table) -> Ordinal | None:
    """The position of a table."""
    return None if table.known is None else table.known.ordinal


def seq_of(table: Table) -> int | None:
    """The ordinal of the last message whose effect a table has."""
    position = ordinal_of(table)
    return None if position is None else position.seq


def names_of(table: Table) -> set[str]:
    """The names of a table's files."""
    return set() if table.known is None else table.known.names

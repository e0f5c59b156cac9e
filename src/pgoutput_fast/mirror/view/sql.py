"""SQL that gives a mirrored table as it is now, for engines that read its files themselves."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa

from pgoutput_fast.arguments import expect_list
from pgoutput_fast.lake.delta import reached
from pgoutput_fast.mirror.dialects import DIALECTS, Dialect, DuckDB, Spark
from pgoutput_fast.mirror.layout import CURRENT, HISTORY, directory_of
from pgoutput_fast.mirror.view.moment import Moment, Position, open_moment
from pgoutput_fast.mirror.view.read import chosen_columns
from pgoutput_fast.mirror.view.statement import Sources, statement
from pgoutput_fast.storage.paths import absolute
from pgoutput_fast.storage.stores import open_store

__all__ = ["fresh_sql", "sql_of"]


def fresh_sql(
    target: str | os.PathLike[str],
    table: str,
    dialect: Literal["duckdb", "spark"] = "duckdb",
    columns: Sequence[str] | None = None,
    position: Position = "latest",
    *,
    current: str | None = None,
    history: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    iceberg_catalog: Mapping[str, str] | None = None,
) -> str:
    """A query that gives the same rows as `fresh`.

    The query is for one moment: it names the versions or files that there are now. For a later moment, call this
    again. For DuckDB, the query reads Parquet files; DuckDB needs no extension for files of this machine. For Spark, it
    reads the versions of Delta tables; if the session cannot do that, use `pgoutput_fast.spark.read_fresh`.

    Args:
        target, table, columns, position, storage_options, iceberg_catalog: as for `fresh`.
        dialect: of the query.
        current: what the query reads instead of the current table: a name, or a subquery that gives its rows.
        history: the same for the history. It may have more changes than the query needs.

    Returns:
        A SELECT statement, without a semicolon.

    Raises:
        ValueError: if no SQL can express it. `fresh` reads such a table: names of columns differ only in case; in
            changes that wait, the replica identity was altered, or a table without a key lost a column; or the dialect
            cannot read the current table.
        KeyError, LookupError, MirrorError, TypeError: as `fresh`.
    """
    if columns is not None:
        expect_list("columns", columns)
        if not columns:
            raise ValueError("columns is empty: name a column, or leave columns out for all of them")
    if dialect not in DIALECTS:
        raise ValueError(f"dialect must be 'duckdb' or 'spark', not {dialect!r}")
    moment = open_moment(target, table, position, storage_options, iceberg_catalog)
    written = DIALECTS[dialect]
    sources = Sources(
        _current(moment, written, target) if current is None else f"SELECT * FROM {current}",
        _history(moment, written, target) if history is None else f"SELECT * FROM {history}",
    )
    return sql_of(moment, written, chosen_columns(columns, moment.schema, table), sources)


def sql_of(moment: Moment, dialect: Dialect, columns: Sequence[str], sources: Sources) -> str:
    """The query for a moment.

    Raises:
        ValueError: if no SQL can say it.
    """
    _expect_names(moment)
    keys = moment.keys()
    if len(keys) > 1:
        what = "the replica identity of {} was altered"
        if len({key for key, _ in keys}) == 1:
            what = "{} has no key, and a column of it was dropped"
        raise ValueError(
            f"{what.format(moment.table)} in changes that its current table lacks yet: read it with fresh, or wait "
            "until the mirror has applied them"
        )
    ((key, _),) = keys
    return statement(moment, dialect, columns, key, sources)


def _expect_names(moment: Moment) -> None:
    """
    Raises:
        ValueError: if the names of two columns differ only in case.
    """
    seen: dict[str, str] = {}
    for name in (*moment.schema.names, *moment.changes.schema.names):
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise ValueError(
                f"{moment.table}: the names of columns {other!r} and {name!r} differ only in case: read it with fresh"
            )


def _current(moment: Moment, dialect: Dialect, target: str | os.PathLike[str]) -> str:
    files, schema = moment.base.files, moment.base.schema
    if isinstance(dialect, DuckDB) and files is not None:
        return _files(dialect, files, schema)
    if isinstance(dialect, Spark) and moment.format == "delta":
        return dialect.delta(_place(target, CURRENT, moment.table), moment.base.number)
    raise ValueError(
        f"a query cannot name the version of a current table of the format {moment.format!r}: read it with fresh"
        + (", or with pgoutput_fast.spark.read_fresh" if files is not None else "")
    )


def _history(moment: Moment, dialect: Dialect, target: str | os.PathLike[str]) -> str:
    if isinstance(dialect, DuckDB):
        return _files(dialect, moment.changes.files, moment.changes.schema)
    assert isinstance(dialect, Spark)
    if moment.changes.grown:
        raise ValueError(
            f"{moment.table}: structs of {', '.join(map(repr, moment.changes.grown))} got another field behind this "
            "position, and Spark cannot leave it out: read it with fresh, or with pgoutput_fast.spark.read_fresh"
        )
    return dialect.delta(_place(target, HISTORY, moment.table), moment.changes.version)


def _place(target: str | os.PathLike[str], kind: str, table: str) -> str:
    return absolute(reached(str(open_store(target).at(f"{kind}/{directory_of(table)}")))[0])


def _files(dialect: DuckDB, files: Sequence[str], schema: pa.Schema) -> str:
    """The rows of files, with all columns of a schema: a file may lack some."""
    empty = ", ".join(
        f"CAST(NULL AS {dialect.type_of(field.type)}) AS {dialect.name(field.name)}" for field in schema
    )
    none = f"SELECT {empty} WHERE false"
    places = [absolute(reached(each)[0]) for each in files]
    return f"{none} UNION ALL BY NAME {dialect.files(places)}" if places else none

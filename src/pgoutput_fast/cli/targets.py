"""The output of decoded tables: a directory of files, or a database of DuckDB, written atomically."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import pyarrow as pa

from pgoutput_fast.base.arguments import UsageError
from pgoutput_fast.base.display import escaped
from pgoutput_fast.catalog.identifiers import quote_qualified_name, quoted
from pgoutput_fast.cli.names import expect_distinct, folded
from pgoutput_fast.cli.parts import Collected
from pgoutput_fast.cli.payloads import InputError
from pgoutput_fast.cli.rows import write_csv, write_json_lines
from pgoutput_fast.storage.stores import hidden_name, name_target, open_store
from pgoutput_fast.storage.table_directories import table_directory
from pgoutput_fast.tables.files import RowsFile

__all__ = ["Format", "format_of", "format_table", "name_of", "replaced", "write_tables"]


# DuckDB's magic bytes, after the first eight bytes.
_DUCKDB = b"DUCK"
# The remedy for names that DuckDB does not allow or does not distinguish.
_ELSEWHERE = "Choose --to parquet, or the tables with --table"


class Format(StrEnum):
    """The formats of decoded tables."""

    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"
    DUCKDB = "duckdb"


# Endings of names that suggest a single file.
_OF_ONE_TABLE = {
    ".parquet": Format.PARQUET,
    ".csv": Format.CSV,
    ".json": Format.JSONL,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
}


def format_of(target: Path) -> Format:
    """The format implied by a target's name.

    Raises:
        UsageError: for the name of a single-table file. The target is a directory with a file for each table.

    >>> format_of(Path("shop.duckdb")), format_of(Path("tables"))
    (<Format.DUCKDB: 'duckdb'>, <Format.PARQUET: 'parquet'>)
    """
    if (form := _OF_ONE_TABLE.get(target.suffix.lower())) is not None:
        raise UsageError(
            f"--out {target} is a directory with a file for each table, not one file: give --to {form} "
            f"--out {target.with_suffix('')}"
        )
    return Format.DUCKDB if target.suffix in (".duckdb", ".db") else Format.PARQUET


def name_of(table: Collected) -> str:
    """The name of a table's file, without its extension."""
    return table_directory(table.namespace, table.name) if table.namespace else f"_{table.name}"


def format_table(table: Collected) -> str:
    """The name of a table on the screen, quoted as in SQL."""
    if not table.namespace:
        return name_of(table)
    return escaped(quote_qualified_name(table.namespace, table.name))


@contextmanager
def replaced(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yields the name under which to write. The target appears when the block ends without an error.

    Args:
        target: a file or a directory.
        overwrite: whether to replace an earlier target of this command.

    Raises:
        UsageError: if the target exists.
        InputError: if it has files other than those of an earlier call.
    """
    if os.path.lexists(target):
        if not overwrite:
            raise UsageError(f"{target} exists: choose another name, or pass --overwrite to replace it")
        _expect_own(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    hidden = target.with_name(hidden_name(target.name))
    old = target.with_name(hidden_name(target.name))
    try:
        yield hidden
        if os.path.lexists(target):
            # A directory cannot replace another one atomically.
            os.rename(target, old)
        os.rename(hidden, target)
    except BaseException as problem:
        name_target(problem, target)
        if os.path.lexists(old) and not os.path.lexists(target):
            os.rename(old, target)
        raise
    finally:
        for each in (hidden, old):
            _remove(each)


def _expect_own(target: Path) -> None:
    """Checks that a directory has only files that this command may have written, or that a file is one of DuckDB."""
    if not target.is_dir():
        with open(target, "rb") as file:
            if file.read(12)[8:] != _DUCKDB:
                raise InputError(f"{target} is not a DuckDB file: it is not replaced. Choose another name")
        return
    endings = tuple(f".{each}" for each in Format)
    others = [each.name for each in target.iterdir() if each.is_dir() or not each.name.endswith(endings)]
    if others:
        raise InputError(
            f"{target} has other files, such as {others[0]}: it is not replaced. Choose another name"
        )


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_tables(
    tables: Iterable[Collected], target: Path, form: Format, step: Callable[[str], object] = lambda name: None
) -> None:
    """Writes tables.

    Args:
        tables: the tables, with all rows.
        target: a nonexistent directory or DuckDB file.
        form: the format.
        step: called with the name of each table before it is written.

    Raises:
        InputError: if no table can hold all versions of a relation, or if DuckDB does not allow a name.
        ModuleNotFoundError: if DuckDB is missing.
    """
    if form == Format.DUCKDB:
        _write_duckdb(tables, target, step)
        return
    target.mkdir()
    for each in tables:
        name = name_of(each)
        step(name)
        path = target / f"{name}.{form}"
        if form == Format.PARQUET and len(each.files) == 1:
            os.rename(each.files[0], path)
        else:
            _WRITERS[form](each, path)


def _write_parquet(table: Collected, path: Path) -> None:
    schema = table.schema
    with RowsFile(open_store(path.parent), path.name, schema) as file:
        for rows in table.tables(schema):
            file.write(rows)


def _write_csv(table: Collected, path: Path) -> None:
    with open(path, "wb") as file:
        write_csv(file, table.schema, table.tables(table.schema))


def _write_jsonl(table: Collected, path: Path) -> None:
    with open(path, "w", encoding="utf-8") as file:
        write_json_lines(file, table.tables(table.schema))


def _write_duckdb(tables: Iterable[Collected], target: Path, step: Callable[[str], object]) -> None:
    try:
        import duckdb
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "duckdb is missing: pip install 'pgoutput_fast[duckdb]'", name="duckdb"
        ) from None
    names: dict[tuple[str, str], str] = {}
    with duckdb.connect(str(target)) as database:
        for each in tables:
            step(name_of(each))
            namespace, name = each.namespace or "main", each.name if each.namespace else f"_{each.name}"
            schema = each.schema
            expect_distinct(format_table(each), schema.names, _ELSEWHERE)
            other = names.setdefault((folded(namespace), folded(name)), format_table(each))
            if other != format_table(each):
                raise InputError(
                    f"DuckDB ignores case: tables {other} and {format_table(each)} are the same. {_ELSEWHERE}"
                )
            rows = pa.RecordBatchReader.from_batches(
                schema, (batch for table in each.tables(schema) for batch in table.to_batches())
            )
            database.register("_rows", rows)
            try:
                database.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(namespace)}")
                database.execute(f"CREATE TABLE {quoted(namespace)}.{quoted(name)} AS SELECT * FROM _rows")
            except (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException) as problem:
                reason = str(problem).partition("\n")[0]
                raise InputError(
                    f"DuckDB cannot have the table {format_table(each)} ({reason}). {_ELSEWHERE}"
                ) from None
            database.unregister("_rows")


_WRITERS = {Format.PARQUET: _write_parquet, Format.CSV: _write_csv, Format.JSONL: _write_jsonl}

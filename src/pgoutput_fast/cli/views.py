"""A session of DuckDB with the tables of a mirror at one position as views."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import duckdb
import pyarrow as pa

from pgoutput_fast.base.arguments import UsageError
from pgoutput_fast.base.display import error_text, no_such_name
from pgoutput_fast.base.private_directory import PrivateDirectory
from pgoutput_fast.catalog.identifiers import parse_qualified_name, quoted
from pgoutput_fast.cli.names import expect_distinct, folded
from pgoutput_fast.cli.payloads import InputError
from pgoutput_fast.mirror import MirrorError
from pgoutput_fast.mirror.view.datasets import TableDataset, TablesAt

__all__ = ["Views", "expect_select"]

_BATCH_ROWS = 10_000
# Between two interrupts of a call that must end.
_AGAIN_SECONDS = 0.05
# The share of DuckDB's own limit.
_MEMORY = 0.6
# The name that DuckDB gives a database in memory.
_CATALOG = "memory"
# The schema of tables that are named without one, as in PostgreSQL.
_SEARCHED = "public"
# DuckDB's `MULTI` is a PIVOT.
_READING = ("SELECT", "EXPLAIN", "MULTI")
# The remedy for names that DuckDB does not distinguish.
_ELSEWHERE = "Read it in Python, with pgoutput_fast.mirror.fresh"
# What DuckDB adds for a person at a terminal.
_PLACE = re.compile(r"\n\nLINE \d+:.*", re.DOTALL)
_NO_TABLE = re.compile(r"Table with name (.+?) does not exist")


def expect_select(sql: str) -> None:
    """
    Raises:
        UsageError: if the text is not one statement that only reads.
    """
    with _explained():
        found = [str(each.type).rpartition(".")[2] for each in duckdb.extract_statements(sql)]
    if len(found) != 1:
        raise UsageError(f"give one SELECT: the SQL has {len(found) or 'no'} statements")
    if found[0] not in _READING:
        raise UsageError(f"a query only reads, and this is {found[0]}: give one SELECT")


class Views:
    """A view for each table that a query names. A context manager.

    Args:
        tables: the tables of the mirror.
        sql: the query; None for views of all tables.

    Attributes:
        problems: {name: why there is no view of this table}.
    """

    def __init__(self, tables: TablesAt, sql: str | None) -> None:
        self._tables = tables
        self._datasets: dict[str, TableDataset] = {}
        self.problems: dict[str, Exception] = {}
        names = tables.names if sql is None else _named(sql, tables.names)
        with ExitStack() as stack:
            # Results that do not fit into memory. By default, DuckDB writes them into the current directory.
            spilled = stack.enter_context(PrivateDirectory())
            self._database = stack.enter_context(_connected(spilled))
            self._make(names)
            self._database.execute("SET lock_configuration = true")
            self._thread = stack.enter_context(ThreadPoolExecutor(1))
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def columns(self) -> dict[str, list[tuple[str, str]]]:
        """{name of a table: its columns and their types in DuckDB}."""
        found = {}
        for table in self._datasets:
            rows = self._database.sql(f"FROM {_view(table)}")
            found[table] = [(name, str(kind)) for name, kind in zip(rows.columns, rows.types, strict=True)]
        return found

    def run(self, sql: str) -> tuple[pa.Schema, list[str], Iterator[pa.Table]]:
        """(columns of the result, those that are integers without a type in Arrow, rows) of a query.

        Raises:
            InputError, LookupError, MirrorError: if it fails, also while the rows are read.
        """
        with self._explained():
            result = self._interruptible(lambda: self._database.sql(sql))
            integers = [
                name
                for name, kind in zip(result.columns, result.types, strict=True)
                if str(kind) in ("HUGEINT", "UHUGEINT")
            ]
            reader = self._interruptible(lambda: result.to_arrow_reader(_BATCH_ROWS))
        return reader.schema, integers, self._rows(reader)

    def _rows(self, reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
        while True:
            with self._explained():
                batch = self._interruptible(lambda: next(reader, None))
            if batch is None:
                return
            yield pa.Table.from_batches([batch])

    def _interruptible(self, call: Callable[[], Any]) -> Any:
        """Calls DuckDB in another thread. While it computes, it looks at no signal, such as that of Ctrl-C."""
        try:
            return self._thread.submit(call).result()
        except BaseException:
            # DuckDB forgets an interrupt that comes before the call.
            after = self._thread.submit(bool)
            while not after.done():
                self._database.interrupt()
                wait([after], _AGAIN_SECONDS)
            raise

    def _make(self, names: Sequence[str]) -> None:
        for name in names:
            same = [each for each in self._tables.names if _folded_parts(each) == _folded_parts(name)]
            try:
                if len(same) > 1:
                    raise InputError(
                        f"DuckDB ignores case: tables {' and '.join(same)} are the same. {_ELSEWHERE}"
                    )
                dataset = self._tables.open(name)
                expect_distinct(name, dataset.schema.names, _ELSEWHERE)
            except (LookupError, MirrorError, OSError, ValueError) as problem:
                self.problems[name] = _read_problem(name, problem)
                continue
            self._datasets[name] = dataset
            schema, view = _parts(name)
            self._use(schema)
            self._database.from_arrow(dataset).create_view(view)
        self._use(_SEARCHED)

    def _use(self, schema: str) -> None:
        # DuckDB may have a catalog with the name of the schema.
        self._database.execute(f"CREATE SCHEMA IF NOT EXISTS {_CATALOG}.{quoted(schema)}")
        self._database.execute(f"USE {_CATALOG}.{quoted(schema)}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Explains an error of DuckDB, also one that comes out of a table, or out of Arrow's reader."""
        try:
            with _explained():
                yield
        except (InputError, pa.ArrowException, OSError) as problem:
            for name, dataset in self._datasets.items():
                if dataset.problem is not None:
                    raise _read_problem(name, dataset.problem) from None
            if (found := _NO_TABLE.search(str(problem))) is not None:
                raise self._no_table(found[1]) from None
            raise

    def _no_table(self, name: str) -> Exception:
        """The error for a name that no view has."""
        for other, problem in self.problems.items():
            if _folded_parts(other)[1] == folded(name):
                return problem
        names = [
            each.partition(".")[2] if _parts(each)[0] == _SEARCHED else each for each in self._tables.names
        ]
        return InputError(f"{no_such_name('table', name, names)}. Without SQL, the command lists all tables")


@contextmanager
def _connected(directory: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """A session of DuckDB that reaches no file but its own temporary ones."""
    settings: dict[str, Any] = {
        "temp_directory": directory,
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }
    with duckdb.connect(config=settings) as database:
        database.execute("SET TimeZone = 'UTC'")
        # By default 80 % of the memory, such as "12.4 GiB". DuckDB does not count the rows on their way to it.
        ((most,),) = database.sql("SELECT current_setting('memory_limit')").fetchall()
        number, unit = most.split()
        database.execute(f"SET memory_limit = '{float(number) * _MEMORY:.2f} {unit}'")
        if duckdb.__version__.startswith("1."):
            # It lets pyarrow compare floats, for which NaN is not the largest one, as it is here and on the server.
            database.execute("SET disabled_optimizers = 'filter_pushdown,join_filter_pushdown,top_n'")
        database.execute("SET enable_external_access = false")
        yield database


@contextmanager
def _explained() -> Iterator[None]:
    """Makes an error of DuckDB one sentence."""
    try:
        yield
    except duckdb.Error as problem:
        text = _PLACE.sub("", str(problem)).strip()
        raise InputError(f"DuckDB: {' '.join(text.split())}") from None


def _named(sql: str, names: Sequence[str]) -> Sequence[str]:
    """The tables whose names are in a query, and maybe others. All of them, if no name is in it."""
    text = folded(sql)
    found = []
    for each in names:
        _, name = _folded_parts(each)
        if name in text or name.replace('"', '""') in text:
            found.append(each)
    return found or names


def _read_problem(name: str, problem: Exception) -> Exception:
    """The error of a table, with its remedy."""
    if not isinstance(problem, FileNotFoundError):
        return problem
    return InputError(
        f"{name}: {error_text(problem)}. If the mirror has removed this file meanwhile, run the query again"
    )


def _view(name: str) -> str:
    return ".".join([_CATALOG, *map(quoted, _parts(name))])


def _folded_parts(name: str) -> tuple[str, str]:
    """(schema, table) as compared by DuckDB."""
    schema, table = _parts(name)
    return folded(schema), folded(table)


def _parts(name: str) -> tuple[str, str]:
    parts = parse_qualified_name(name)
    assert parts is not None
    return parts

"""Commits merged files, and tries again if another program has changed the table meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from pgoutput_fast.merge.search import Numbers
from pgoutput_fast.tables.data_files import NewFiles
from pgoutput_fast.tables.errors import MirrorBusyError
from pgoutput_fast.tables.file_table import CurrentFileTable
from pgoutput_fast.tables.table import ConflictError, OutcomeUnknownError, Version

__all__ = ["commit", "expect_conflict", "is_applied", "until_committed", "with_version"]

# Attempts if another program changes a table meanwhile.
_ATTEMPTS = 10

_T = TypeVar("_T")


def is_applied(table: object, position: int | None, end: int, after: int | None) -> bool:
    """Whether a table has changes already.

    Args:
        table: names the table.
        position: its position; None if there is no table.
        end: its position after the changes.
        after: the position that it must have before them; None for any.

    Raises:
        MirrorBusyError: if it has another one.
    """
    if position is not None and position >= end:
        return True
    if after is not None and position != after:
        raise MirrorBusyError(
            f"{table} has another position than this mirror gave it: another process mirrors into it, or it was "
            "restored from a copy. Stop the other process, if there is one, and run it again"
        )
    return False


def commit(
    table: CurrentFileTable,
    files: NewFiles,
    before: Version | None,
    schema: pa.Schema,
    position: int,
    removed: Collection[str] | None,
    deleted: Mapping[str, Numbers],
    *,
    data_change: bool = True,
) -> None:
    """Commits new files. After an error that leaves the outcome unknown, they stay.

    Args:
        table: the table.
        files: its new files.
        before, schema, position, removed, deleted, data_change: as for `CurrentFileTable.commit`.

    Raises:
        ConflictError: if another program has committed since `before`. The table is unchanged.
    """
    try:
        table.commit(before, schema, position, files.written, removed, deleted, data_change=data_change)
    except (ConflictError, MirrorBusyError):
        raise
    except BaseException as problem:
        # A store or a server may execute a request after it reported an error, and an error may follow the commit.
        may_come = table.commits_late or isinstance(problem, OutcomeUnknownError)
        if may_come or table.may_have(files.written):
            files.written = []
        raise


def expect_conflict(table: CurrentFileTable, before: Version | None, problem: Exception) -> None:
    """Checks that a merge into a version failed because another program has changed the table.

    Args:
        table: the table.
        before: the version; None if there was no table.
        problem: a ConflictError, or a file was missing.

    Raises:
        DamagedError: if a file of the current version is missing.
    """
    if isinstance(problem, ConflictError):
        return
    if before is None:
        raise problem
    # An OPTIMIZE and a VACUUM may have removed a file of the version that was read.
    if table.version() == before.number:
        raise table.damaged(problem) from problem


def until_committed(tables: Sequence[_T], attempt: Callable[[Sequence[_T]], Sequence[_T]]) -> None:
    """Repeats an attempt until no other program changes the tables meanwhile.

    Args:
        tables: the tables.
        attempt: merges into tables. Returns those that another program has changed.

    Raises:
        RuntimeError: if that happens again and again.
    """
    for _ in range(_ATTEMPTS):
        tables = attempt(tables)
        if not tables:
            return
    raise RuntimeError(
        f"something else changed {tables[0]} {_ATTEMPTS} times during a commit: let only one process mirror into it, "
        "and run OPTIMIZE and the like less often. The table is as before"
    )


def with_version(table: CurrentFileTable, task: Callable[[Version | None], _T]) -> _T:
    """Runs a task with the current version of a table, and again if another program has committed meanwhile.

    Raises:
        RuntimeError: if that happens again and again.
        DamagedError: if a file is missing.
    """
    results: list[_T] = []

    def attempt(tables: Sequence[CurrentFileTable]) -> Sequence[CurrentFileTable]:
        before = table.now()
        try:
            results.append(task(before))
        except (ConflictError, FileNotFoundError) as problem:
            expect_conflict(table, before, problem)
            return tables
        return ()

    until_committed([table], attempt)
    return results[0]

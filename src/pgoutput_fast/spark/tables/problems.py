"""Errors of single tables: the first one ends the run, or each stops its table and the others go on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from pgoutput_fast.base.display import error_text
from pgoutput_fast.tables.table import TABLE_ERRORS, ConflictError

__all__ = ["OnTableError", "TableProblems", "check_on_table_error"]

OnTableError = Literal["stop", "skip"]

_log = logging.getLogger(__name__)


def check_on_table_error(value: str) -> None:
    """Checks the argument `on_table_error`.

    Raises:
        ValueError: for a wrong value.
    """
    if value not in get_args(OnTableError):
        raise ValueError(f"on_table_error must be 'stop' or 'skip', not {value!r}")


class TableProblems:
    """The errors of the tables of a run.

    Args:
        on_table_error: `"stop"` raises the first one.
    """

    def __init__(self, on_table_error: OnTableError) -> None:
        self.skip = on_table_error == "skip"
        self.reasons: dict[str, str] = {}
        #: The tables whose error may be gone at the next try: something else changed them meanwhile.
        self.passing: set[str] = set()
        self._first: Exception | None = None

    @contextmanager
    def of(self, table: str) -> Iterator[None]:
        """Work for a table, named by its directory, or by its name if it is a current table."""
        try:
            yield
        except TABLE_ERRORS as problem:
            if not self.skip:
                raise
            self.add(table, problem)

    def add(self, table: str, problem: Exception) -> None:
        """Stops a table."""
        if table not in self.reasons:
            self.reasons[table] = error_text(problem)
            self._first = self._first or problem
            if isinstance(problem, ConflictError):
                self.passing.add(table)
            _log.warning("%s is stopped, and the other tables go on: %s", table, self.reasons[table])

    def expect_others(self, others: int) -> None:
        """Raises the first error if no table is left that goes on."""
        if self._first is not None and not others:
            raise self._first

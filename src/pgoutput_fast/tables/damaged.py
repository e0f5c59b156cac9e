"""The error of a table whose own files cannot be read. It concerns no other table."""

from __future__ import annotations

from typing import Any

from pgoutput_fast.tables.errors import LOAD_ANY_AGAIN

__all__ = ["DamagedError", "first_line"]


class DamagedError(ValueError):
    """A current table exists, but cannot be read.

    Args:
        table: names the table.
        problem: the error of the reader.
        remove: how to remove the table, so that it can be loaded again; None if it can be loaded again without that.
        again: how to load it again.
    """

    def __init__(
        self, table: object, problem: BaseException, remove: str | None, again: str = LOAD_ANY_AGAIN
    ) -> None:
        again = f"{'' if remove is None else f'{remove}, and '}{again}"
        super().__init__(f"{table} is damaged: {first_line(problem)}. Restore it. Or {again}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Tasks send it to the driver.
        return _rebuild, self.args


def _rebuild(text: str) -> DamagedError:
    error = DamagedError.__new__(DamagedError)
    error.args = (text,)
    return error


def first_line(problem: BaseException) -> str:
    """The message of an error in one line, without a full stop at its end; its type if it has none."""
    return (str(problem).strip() or type(problem).__name__).partition("\n")[0].strip().rstrip(".:")

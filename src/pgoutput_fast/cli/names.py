"""Names in DuckDB: small and capital letters are the same there, whether a name is quoted or not."""

from __future__ import annotations

from collections.abc import Sequence

from pgoutput_fast.base.display import escaped
from pgoutput_fast.cli.payloads import InputError

__all__ = ["expect_distinct", "folded"]


def expect_distinct(table: str, columns: Sequence[str], remedy: str) -> None:
    """Checks for column names that DuckDB would silently rename.

    Args:
        table: its name, for the error.
        columns: their names.
        remedy: a sentence for the error, without a full stop.

    Raises:
        InputError: if two names are one for DuckDB.
    """
    names: dict[str, str] = {}
    for column in columns:
        other = names.setdefault(folded(column), column)
        if other != column:
            raise InputError(
                f"DuckDB ignores case: columns {escaped(other)} and {escaped(column)} of {table} are the same. {remedy}"
            )


def folded(name: str) -> str:
    """The name as compared by DuckDB: only A to Z are folded to lower case."""
    return "".join(each.lower() if each.isascii() else each for each in name)

"""Names and patterns of tables, by which a user chooses them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pgoutput_fast.base.arguments import expect_list, kind_of
from pgoutput_fast.catalog.identifiers import parse_qualified_name

__all__ = ["Chosen", "check_patterns", "is_match"]


def is_match(table: str, names: Collection[str]) -> bool:
    """Whether a table has one of these names, quoted as in SQL, or matches one of these patterns.

    `*` and `?` make a pattern of a name that is not quoted. As in SQL, its letters are lower case.

    Args:
        table: its qualified name, quoted as in SQL.
        names: names and patterns, as `check_patterns` allows.

    >>> is_match("audit.log", ["AUDIT.*"]), is_match('public."Log"', ["public.log", 'public."Log"'])
    (True, True)
    """
    parts = parse_qualified_name(table)
    assert parts is not None
    return any(
        fnmatchcase(".".join(parts), each.lower().replace("[", "[[]"))
        if _is_pattern(each)
        else parse_qualified_name(each) == parts
        for each in names
    )


def check_patterns(argument: str, names: Any) -> None:
    """Checks names and patterns.

    Raises:
        TypeError: for a single text in place of a list, or something else than texts.
        ValueError: for what is neither a qualified name nor a pattern: it would match nothing.
    """
    expect_list(argument, names)
    for each in names:
        if not isinstance(each, str):
            raise TypeError(f"{argument} must be a list of names such as public.log, and has {kind_of(each)}")
        if not _is_pattern(each) and parse_qualified_name(each) is None:
            raise ValueError(
                f'{argument} has {each!r}, which is no qualified name: write public.log, "public"."Log", or a pattern '
                "such as audit.*"
            )


@dataclass(frozen=True)
class Chosen:
    """Chosen tables: those of `tables`, without those of `exclude`.

    Attributes:
        tables: names and patterns; None for all tables.
        exclude: names and patterns.

    >>> chosen = Chosen(("public.*",), ("public.log_?",))
    >>> chosen.has("public.orders"), chosen.has("public.log_1"), chosen.has("audit.log"), Chosen().has("audit.log")
    (True, False, False, True)
    """

    tables: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()

    def without_match(self, known: Collection[str]) -> list[str]:
        """The names and patterns of `tables` that match none of these tables: misspelt ones."""
        return [each for each in self.tables or () if not any(is_match(table, [each]) for table in known)]

    def has(self, table: str) -> bool:
        """Whether a table is chosen, by its qualified name, quoted as in SQL."""
        return (self.tables is None or is_match(table, self.tables)) and not is_match(table, self.exclude)


def _is_pattern(name: str) -> bool:
    return '"' not in name and ("*" in name or "?" in name)

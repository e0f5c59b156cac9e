"""The option `where`: conditions on metadata columns, which decide what is read and decoded.

The source has no `pushFilters`. Spark keeps what a query with pushed filters has planned, and then reads the same rows
for the other queries of the DataFrame, and for other branches of the query: so it did up to 4.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pgoutput_fast.protocol.kinds import MSG_DELETE, MSG_INSERT, MSG_TRUNCATE, MSG_UPDATE
from pgoutput_fast.protocol.lsn import parse_lsn
from pgoutput_fast.schema.metadata_columns import CHANGE_TYPES

__all__ = ["EVERY_ROW", "Where", "parse_where"]

_LITERAL = r"(?:(?:timestamp\s*)?'(?:[^']|'')*'|-?[0-9]+)"
_CONDITION = re.compile(
    rf"\s*(?P<column>[^\s=<>(]+)\s*(?:(?P<compare><=|>=|=|<|>)\s*(?P<value>{_LITERAL})"
    rf"|\bin\s*\((?P<values>\s*{_LITERAL}\s*(?:,\s*{_LITERAL}\s*)*)\))\s*(?:\band\b(?=.*\S)|$)",
    re.IGNORECASE | re.DOTALL,
)
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS = dict(zip(CHANGE_TYPES, (MSG_INSERT, MSG_UPDATE, MSG_UPDATE, MSG_DELETE, MSG_TRUNCATE), strict=True))


@dataclass(frozen=True)
class Where:
    """The requested rows. A null meets no condition.

    Attributes:
        bounds: tagged columns -> the smallest and the largest value; times in microseconds since 1970.
        members: tagged columns -> their values.
        change_types: the values of the column `change_type`; None for all.
        tables: names of relations; None for all.
    """

    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    members: Mapping[str, Collection[int]] = field(default_factory=dict)
    change_types: tuple[str, ...] | None = None
    tables: tuple[str, ...] | None = None


EVERY_ROW = Where()


def parse_where(text: str, prefix: str, tables: Sequence[str] | None) -> Where:
    """Parses the option.

    Args:
        text: conditions joined by AND, such as `_commit_lsn > '0/1B0D988' AND _change_type IN ('insert', 'delete')`.
        prefix: the prefix of the metadata columns.
        tables: names of the relations if several are read, otherwise None.

    Raises:
        ValueError: for a text that has another form, or a value that its column cannot have.
    """
    bounds: dict[str, tuple[int, int]] = {}
    members: dict[str, set[Any]] = {}
    at = 0
    while at < len(text.rstrip()) or not at:
        match = _CONDITION.match(text, at)
        if match is None:
            raise ValueError(
                "option where must be conditions joined by AND, each of them a metadata column with =, <, <=, > or >= "
                f"and a value, or with IN (...): not {text[at:].strip()!r}"
            )
        at = match.end()
        column, parse = _column(match["column"], prefix, tables)
        compare = "in" if match["compare"] is None else match["compare"]
        literals = re.findall(_LITERAL, match["value"] or match["values"], re.IGNORECASE)
        values = {_parsed(match["column"], parse, literal) for literal in literals}
        if column in ("change_type", "relation"):
            if compare not in ("=", "in"):
                raise ValueError(f"option where: compare {match['column']} with = or IN, not with {compare}")
        else:
            first, last = bounds.get(column, (_LOWEST, _HIGHEST))
            least, most = _range(compare, min(values), max(values))
            bounds[column] = max(first, least), min(last, most)
        if compare == "in" or column in ("change_type", "relation"):
            members[column] = members.get(column, values) & values
    names, types = members.pop("relation", None), members.pop("change_type", None)
    if types is not None:
        members["kind"] = {_KINDS[each] for each in types}
    return Where(
        bounds,
        members,
        None if types is None else tuple(sorted(types)),
        None if names is None else tuple(sorted(names)),
    )


def _column(text: str, prefix: str, tables: Sequence[str] | None) -> tuple[str, Callable[[str], Any]]:
    """(a metadata column without its prefix, the function that parses its values)"""
    kinds: dict[str, Callable[[str], Any]] = {
        "change_type": lambda value: _one_of(value, CHANGE_TYPES),
        "seq": int,
        "lsn": _lsn,
        "txn": int,
        "xid": int,
        "subxid": int,
        "commit_lsn": _lsn,
        "commit_timestamp": _microseconds,
    }
    if tables is not None:
        kinds["relation"] = lambda value: _one_of(value, tables)
    name = text.strip("`")
    column = name[len(prefix) :] if name.startswith(prefix) else ""
    if column not in kinds:
        there = ", ".join(prefix + each for each in kinds)
        raise ValueError(f"option where can have {there}, not {text}: let Spark filter by other columns")
    return column, kinds[column]


def _parsed(column: str, parse: Callable[[str], Any], literal: str) -> Any:
    value = literal[literal.index("'") + 1 : -1].replace("''", "'") if "'" in literal else literal
    try:
        return parse(value)
    except ValueError as problem:
        raise ValueError(f"option where: {literal} is no value of {column}: {problem}") from None


def _one_of(value: str, existing: Sequence[str]) -> str:
    if value not in existing:
        raise ValueError(f"there is {', '.join(existing)}")
    return value


def _lsn(value: str) -> int:
    return parse_lsn(value) if "/" in value else int(value)


def _microseconds(value: str) -> int:
    at = datetime.fromisoformat(value)
    if at.tzinfo is None:
        raise ValueError("it needs a time zone, as in '2024-02-29 12:00:00Z'")
    return (at - _EPOCH) // timedelta(microseconds=1)


def _range(compare: str, least: int, most: int) -> tuple[int, int]:
    """The integers that compare so with a value, or that lie between values."""
    if compare in (">", ">="):
        return least + (compare == ">"), _HIGHEST
    if compare in ("<", "<="):
        return _LOWEST, most - (compare == "<")
    return least, most

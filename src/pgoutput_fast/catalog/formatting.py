"""Names and types as text for people: as in SQL, and without terminal control characters."""

from __future__ import annotations

from pgoutput_fast.base.display import escaped
from pgoutput_fast.catalog.builtin_types import ELEMENT_OF_ARRAY, NAME_OF_OID, numeric_modifier
from pgoutput_fast.catalog.identifiers import quote_identifier

__all__ = ["format_name", "format_type"]

_NAME_CHARACTERS = 200

# The bits of an interval's range, from the highest unit to the lowest: the server's DTK_MONTH to DTK_SECOND.
_INTERVAL_FIELDS = {2: "year", 1: "month", 3: "day", 10: "hour", 11: "minute", 12: "second"}
_WHOLE_INTERVAL, _ANY_PRECISION = 0x7FFF, 0xFFFF


def format_name(name: str) -> str:
    """A name quoted as in SQL, escaped, and truncated if it is longer than a server allows.

    >>> format_name("orders"), format_name("Order Lines"), format_name("")
    ('orders', '"Order Lines"', '""')
    """
    if len(name) > _NAME_CHARACTERS:
        return f"{escaped(quote_identifier(name[:_NAME_CHARACTERS]))}... ({len(name):,} characters)"
    return escaped(quote_identifier(name))


def format_type(oid: int, typmod: int, name: str | None = None) -> str:
    """A column's type with its modifier, as in SQL.

    Args:
        oid: oid of the type.
        typmod: the modifier, -1 for none.
        name: the name of a type that is not built in, if it is known.

    >>> format_type(1700, (10 << 16 | 2) + 4), format_type(1015, 24), format_type(1184, 3), format_type(23, -1)
    ('numeric(10,2)', 'varchar(20)[]', 'timestamptz(3)', 'int4')
    >>> format_type(1186, 0x1C08 << 16 | 3), format_type(16500, -1), format_type(16500, 7, "public.mood")
    ('interval day to second(3)', 'type 16500', 'public.mood with modifier 7')
    """
    element = ELEMENT_OF_ARRAY.get(oid, oid)
    array = "[]" if element != oid else ""
    base = NAME_OF_OID.get(element)
    if base is None:
        known = f"type {oid}" if name is None else name
        return known if typmod == -1 else f"{known} with modifier {typmod}"
    return f"{base}{_modifier(base, typmod)}{array}"


def _modifier(name: str, typmod: int) -> str:
    """A type's modifier as SQL writes it after the name; an invalid one as a number."""
    if typmod == -1:
        return ""
    if name == "numeric" and (found := numeric_modifier(typmod)) is not None:
        return f"({found[0]},{found[1]})"
    if name in ("varchar", "bpchar") and typmod >= 4:
        return f"({typmod - 4})"
    if name in ("bit", "varbit", "time", "timetz", "timestamp", "timestamptz") and typmod >= 0:
        return f"({typmod})"
    if name == "interval" and typmod >= 0:
        return _interval_modifier(typmod >> 16, typmod & 0xFFFF)
    return f" with modifier {typmod}"


def _interval_modifier(fields: int, precision: int) -> str:
    names = [word for bit, word in _INTERVAL_FIELDS.items() if fields >> bit & 1]
    words = (
        ""
        if fields == _WHOLE_INTERVAL or not names
        else f" {' to '.join(dict.fromkeys((names[0], names[-1])))}"
    )
    return words if precision == _ANY_PRECISION else f"{words}({precision})"

"""The names of the directories of tables in a target."""

from __future__ import annotations

from pgoutput_fast.catalog.identifiers import parse_qualified_name, qualified_like
from pgoutput_fast.storage.table_directories import table_directory
from pgoutput_fast.tables.naming import SAME_NAMES, Naming

__all__ = ["CURRENT", "delta_directory", "directory_of"]

# The directory of current tables in a target.
CURRENT = "current"


def delta_directory(directory: str) -> str:
    """The name of a Delta table's directory. delta-rs 1.6 cannot read a table if its path has a percent sign.

    `+` replaces `%`. It is otherwise unused, because a `+` in a name is percent-encoded.

    >>> delta_directory("a%2Eb.C%2Fd")
    'a+2Eb.C+2Fd'
    """
    return directory.replace("%", "+")


def directory_of(table: str, naming: Naming = SAME_NAMES) -> str:
    """The name of a table's directory in the target of a mirror or of `current_sink`.

    Args:
        table: qualified name on the server, quoted as in SQL.
        naming: its name in the lake.

    Raises:
        ValueError: if it is no qualified name.

    >>> directory_of("public.orders"), directory_of('public."a.b"')
    ('public.orders', 'public.a+2Eb')
    >>> directory_of("public.orders", Naming("north_"))
    'north_public.orders'
    """
    parts = parse_qualified_name(table)
    if parts is None:
        raise ValueError(f"{table!r} is not a qualified name such as {qualified_like(table)}")
    return delta_directory(table_directory(*naming.of(None, *parts)))

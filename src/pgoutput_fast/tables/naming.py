"""Names of tables in a lake that several databases share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pgoutput_fast.base.arguments import kind_of

__all__ = ["SAME_NAMES", "Naming", "Rename"]

Rename = str | Callable[[str | None, str, str], str]


@dataclass(frozen=True)
class Naming:
    """The schema and the name of a table in the lake.

    Attributes:
        namespace: a prefix of the schema's name, or a function of database, schema and table that returns the name.
        table_name: the same of the table's name.
    """

    namespace: Rename = ""
    table_name: Rename = ""

    def __post_init__(self) -> None:
        for argument, rename in (("namespace", self.namespace), ("table_name", self.table_name)):
            if not isinstance(rename, str) and not callable(rename):
                raise TypeError(
                    f"{argument} must be a prefix, or a function of database, schema and table, not {kind_of(rename)}"
                )

    def of(self, database: str | None, *names: str) -> tuple[str, str]:
        """(schema, table) in the lake.

        Args:
            database: the database; None if the source does not say it.
            names: of the schema and of the table.

        Raises:
            TypeError, ValueError: if a function returns no name.

        >>> Naming("north_").of("shop", "public", "orders")
        ('north_public', 'orders')
        """
        namespace = _renamed("namespace", self.namespace, names[0], database, *names)
        return namespace, _renamed("table_name", self.table_name, names[1], database, *names)


SAME_NAMES = Naming()


def _renamed(argument: str, rename: Rename, name: str, *names: str | None) -> str:
    new = rename + name if isinstance(rename, str) else rename(*names)  # type: ignore[arg-type]
    if not isinstance(new, str):
        raise TypeError(f"{argument} must return a name, not {kind_of(new)}")
    problem = None if new else "an empty name"
    try:
        new.encode()
    except UnicodeEncodeError:
        problem = "a name that is no valid text"
    if problem is not None:
        raise ValueError(f"{argument} returned {problem} for {'.'.join(map(str, names))}")
    return new

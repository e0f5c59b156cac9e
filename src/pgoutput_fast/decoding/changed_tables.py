"""The tables of a result by name, built on access."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from pgoutput_fast.base.display import escaped, html_table, some_of
from pgoutput_fast.catalog.identifiers import parse_qualified_name
from pgoutput_fast.catalog.relations import Relation, no_such_table

__all__ = ["ChangedTables"]

_SHOWN = 20


class ChangedTables(Mapping[str, pa.Table]):
    """{qualified name: all changes of the table}, in order of first appearance.

    Args:
        rows: number of rows per relation version.
        table: builds the table for a qualified name.
    """

    def __init__(self, rows: Mapping[Relation, int], table: Callable[[str], pa.Table]) -> None:
        self._rows: dict[str, int] = {}
        for relation, count in rows.items():
            name = relation.qualified_name
            self._rows[name] = self._rows.get(name, 0) + count
        self._relations = {(relation.namespace, relation.name): relation for relation in rows}
        self._table = table

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and parse_qualified_name(name) in self._relations

    def __getitem__(self, name: str) -> pa.Table:
        if name not in self:
            raise KeyError(no_such_table(name, self._relations.values()))
        return self._table(name)

    def __repr__(self) -> str:
        names = [f"{escaped(name)} ({_counted(count)})" for name, count in self._rows.items()]
        return f"<tables with changes: {some_of(names)}>"

    def _repr_html_(self) -> str:
        listed = list(self._rows.items())[:_SHOWN]
        return html_table("tables with changes", ["table", "rows"], listed, len(self) - len(listed))


def _counted(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows:,} rows"

"""SQL that merges net effects into a current table, for engines that have MERGE INTO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pgoutput_fast.arguments import expect_list
from pgoutput_fast.errors import LOAD
from pgoutput_fast.mirror import dialects
from pgoutput_fast.mirror.dialects import DIALECTS
from pgoutput_fast.mirror.effect.effect_rows import OLD, OP, UNFILLED
from pgoutput_fast.mirror.effect.schema import COMMIT_LSN, UNREPRESENTABLE

__all__ = ["Dialect", "merge_statements"]

Dialect = Literal["delta", "iceberg", "duckdb"]

_LOST = f"the table lacks a row that changes refer to: load the table again with {LOAD}"


# Delta's and Iceberg's MERGE INTO are Spark's.
_DIALECTS = {"delta": DIALECTS["spark"], "iceberg": DIALECTS["spark"], "duckdb": DIALECTS["duckdb"]}


def merge_statements(
    target: str,
    source: str,
    key: Sequence[str],
    columns: Sequence[str],
    dialect: Dialect,
    *,
    truncated: bool = False,
    unfilled: Sequence[str] = (),
) -> list[str]:
    """The SQL statements that merge the net effect of some changes into a current table. Run them in this order.

    You may run all of them again, until you have run those of later changes: then they change nothing. The target needs
    the columns of the relation, then `_commit_lsn` and `_unrepresentable`. The statements do not add columns.

    Args:
        target: the name of the table, as SQL has it, with quotes where they are needed.
        source: the name of a view with the rows of `effect_rows`.
        key: the key columns, `effect.key`.
        columns: the other columns of the relation.
        dialect: `"delta"` or `"iceberg"` for Spark with one of these formats, or `"duckdb"`.
        truncated: `effect.truncated`: the first statement then removes all rows.
        unfilled: the columns of `effect.unfilled`. The target's value stays, also if the key of the row changes. The
            statement fails if the target lacks such a row.

    Raises:
        ValueError: without a key, if a column is named twice, or for an unknown dialect.
        TypeError: for a text instead of a list.

    >>> (merge,) = merge_statements("lake.orders", "effect", ["id"], ["note"], "delta")
    >>> print(merge)
    MERGE INTO lake.orders AS t
    USING effect AS s
    ON t.`id` = s.`id`
    WHEN MATCHED AND s.`_op` = 'gone' THEN DELETE
    WHEN MATCHED THEN UPDATE SET `note` = s.`note`, `_commit_lsn` = s.`_commit_lsn`, `_unrepresentable` = s.`_unrepresentable`
    WHEN NOT MATCHED AND s.`_op` = 'put' THEN INSERT (`id`, `note`, `_commit_lsn`, `_unrepresentable`) VALUES (s.`id`, s.`note`, s.`_commit_lsn`, s.`_unrepresentable`)
    """  # noqa: E501
    for name, given in (("key", key), ("columns", columns), ("unfilled", unfilled)):
        expect_list(name, given)
    if dialect not in _DIALECTS:
        raise ValueError(f"dialect must be {', '.join(map(repr, _DIALECTS))}, not {dialect!r}")
    if not key:
        raise ValueError(
            "a table without a key cannot be merged with SQL: its rows are copies. Give it a key"
        )
    values = [each for each in columns if each not in (COMMIT_LSN, UNREPRESENTABLE)]
    names = [*key, *values, COMMIT_LSN, UNREPRESENTABLE]
    if len(set(names)) < len(names):
        raise ValueError("a column is named twice: columns has those that are not in the key")
    sql = _DIALECTS[dialect]
    using = _filled(sql, target, source, key, values, unfilled) if unfilled else source
    merge = "\n".join(
        [
            f"MERGE INTO {target} AS t",
            f"USING {using} AS s",
            f"ON {_same(sql, 't', 's', key)}",
            f"WHEN MATCHED AND s.{sql.name(OP)} = 'gone' THEN DELETE",
            "WHEN MATCHED THEN UPDATE SET "
            + ", ".join(f"{sql.name(each)} = s.{sql.name(each)}" for each in names[len(key) :]),
            f"WHEN NOT MATCHED AND s.{sql.name(OP)} = 'put' THEN INSERT ({_listed(sql, '', names)}) "
            f"VALUES ({_listed(sql, 's.', names)})",
        ]
    )
    return [f"DELETE FROM {target}", merge] if truncated else [merge]


def _listed(sql: dialects.Dialect, before: str, names: Sequence[str]) -> str:
    return ", ".join(before + sql.name(each) for each in names)


def _same(sql: dialects.Dialect, one: str, other: str, key: Sequence[str], old: str = "") -> str:
    return " AND ".join(f"{one}.{sql.name(each)} = {other}.{sql.name(old + each)}" for each in key)


def _filled(
    sql: dialects.Dialect,
    target: str,
    source: str,
    key: Sequence[str],
    values: Sequence[str],
    unfilled: Sequence[str],
) -> str:
    """A query of the source with the values that only the target has: in `o`, the row before the changes.

    If the statement ran before, the target has the row of the new key already (`n`), and perhaps no row of the old one.
    """
    lacks = f"e.{sql.name(UNFILLED)}"
    lost = f"CASE WHEN o.{sql.name(COMMIT_LSN)} IS NULL THEN {sql.fail(_LOST)} ELSE o.{{0}} END"
    selected = [f"e.{sql.name(each)} AS {sql.name(each)}" for each in (*key, OP, COMMIT_LSN)]
    for each in values:
        name = sql.name(each)
        value = f"e.{name}"
        if each in unfilled:
            value = f"CASE WHEN {sql.has(lacks, each)} THEN {lost.format(name)} ELSE e.{name} END"
        selected.append(f"{value} AS {name}")
    marked = sql.name(UNREPRESENTABLE)
    none = sql.no_texts
    old = sql.both(f"coalesce(o.{marked}, {none})", f"coalesce({lacks}, {none})")
    every = sql.either(f"coalesce(e.{marked}, {none})", old)
    selected.append(f"nullif({every}, {none}) AS {marked}")
    lsn = sql.name(COMMIT_LSN)
    return (
        f"(SELECT {', '.join(selected)} FROM {source} AS e "
        f"LEFT JOIN {target} AS o ON {_same(sql, 'o', 'e', key, OLD)} "
        f"LEFT JOIN {target} AS n ON {_same(sql, 'n', 'e', key)} "
        f"WHERE e.{sql.name(OP)} = 'gone' OR n.{lsn} IS NULL OR n.{lsn} < e.{lsn})"
    )

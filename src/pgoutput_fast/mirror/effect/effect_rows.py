"""An effect as one table of rows, for engines that merge it with SQL (`mirror/merge_sql.py`)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pgoutput_fast.mirror.current.columns import in_schema, stored_schema
from pgoutput_fast.mirror.effect.column_names import with_names
from pgoutput_fast.mirror.effect.effect import Effect

__all__ = ["OLD", "OP", "UNFILLED", "effect_rows"]

#: What is done with a row: `put` or `gone`.
OP = "_op"
#: The columns of a row whose values only the target has; null for none.
UNFILLED = "_unfilled"
#: Before the name of a key column: the key under which the target has these values.
OLD = "_old_"


def effect_rows(effect: Effect) -> pa.Table:
    """An effect as rows: what comes and what goes.

    Args:
        effect: with a key. Its `truncated` is not in the rows.

    Returns:
        The columns of `effect.rows` in the types of current tables; then `_op` (`put` or `gone`; of a row that goes,
        only the key is there), `_unfilled` (the columns whose values only the target has), and for each key column
        `_old_` and its name: the key under which the target has these values; null if none is unfilled.

    Raises:
        ValueError: without a key: then rows are copies, which no engine can merge. Or if the table has a column of one
            of these names.

    >>> import pgoutput_fast as pgo
    >>> from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
    >>> from pgoutput_fast.mirror import net_effect
    >>> orders = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
    >>> writer = Writer()
    >>> sent = writer.begin(7, 100, 0) + writer.change(orders, "insert", new=["1", "a"])
    >>> sent += writer.change(orders, "delete", key=["2", None]) + writer.commit(100, 108, 0)
    >>> decoded = pgo.decode(sent, options=pgo.Options(transactions="committed"))
    >>> found = effect_rows(net_effect(decoded.table("public.orders"), ["id"]))
    >>> found.select(["id", "note", "_op"]).to_pylist()
    [{'id': 1, 'note': 'a', '_op': 'put'}, {'id': 2, 'note': None, '_op': 'gone'}]
    """
    if not effect.key:
        raise ValueError(
            "a table without a key cannot be merged with SQL: its rows are copies. Give it a key"
        )
    own = [OP, UNFILLED, *(OLD + name for name in effect.key)]
    taken = sorted(set(own) & set(effect.rows.column_names))
    if taken:
        raise ValueError(
            f"the table has a column {taken[0]!r}, which has a meaning of its own in a merge: rename it"
        )
    schema = stored_schema(effect.rows.schema)
    count = effect.rows.num_rows
    old = effect.rows.select(effect.key)
    moved = np.zeros(count, np.bool_)
    for each in effect.unfilled:
        old = _replaced(old, each.rows, each.keys)
        moved[each.rows.to_numpy()] = True
    unfilled = {each.column: each.rows.to_numpy() for each in effect.unfilled}
    puts = in_schema(effect.rows, schema).append_column(OP, pa.array(["put"] * count, pa.string()))
    puts = puts.append_column(UNFILLED, with_names(unfilled, count))
    for name in effect.key:
        kind = schema.field(name).type
        values = in_schema(old.select([name]), pa.schema([(name, kind)])).column(0)
        puts = puts.append_column(
            OLD + name, pa.compute.if_else(pa.array(moved), values, pa.scalar(None, kind))
        )
    gone = in_schema(effect.gone, pa.schema([schema.field(name) for name in effect.key]))
    gone = gone.append_column(OP, pa.array(["gone"] * gone.num_rows, pa.string()))
    return pa.concat_tables([puts, in_schema(gone, puts.schema)])


def _replaced(keys: pa.Table, rows: pa.Array, there: pa.Table) -> pa.Table:
    """The keys, with others in some rows."""
    numbers = np.arange(keys.num_rows)
    numbers[rows.to_numpy()] = keys.num_rows + np.arange(there.num_rows)
    return pa.concat_tables([keys, there.select(keys.column_names).cast(keys.schema)]).take(pa.array(numbers))

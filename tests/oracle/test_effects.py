"""Effects of random parts of what a server sends give the server's own rows."""

from __future__ import annotations

import os
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.merge.effect.net_effect import net_effect
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.schema.types import stored_schema
from reference.current import CurrentRows
from support import pg
from support.current_work import CurrentWork, Moment, readable
from support.forms import and_slow

SEED = os.environ.get("PGOUTPUT_FAST_SEED", "20261123")


def check(changes: pa.Table, key: list[str], table: str, moments: list[Moment]) -> int:
    """Applies the effect of what was committed between one moment and the next, and compares.

    Returns how many columns had values that were looked up.
    """
    columns = pa.schema([field for field in changes.schema if not field.name.startswith("_")])
    current = CurrentRows(key, columns)
    names, looked_up = [*columns.names, "_unrepresentable"], 0
    lsns = changes["_commit_lsn"]
    for before, moment in pairwise([Moment(0, {}), *moments]):
        between = pc.and_(pc.greater_equal(lsns, before.lsn), pc.less(lsns, moment.lsn))
        effect = net_effect(changes.filter(between), key)
        looked_up += len(effect.unfilled)
        current.apply_effect(effect)
        found = [[row[name] for name in names] for row in current.rows]
        assert readable(names, found) == moment.rows[table], (table, moment.lsn)
    return looked_up


@pytest.mark.parametrize("number", and_slow([0], [1]))
def test_effects_of_random_work(database: pg.Database, number: int) -> None:
    seed = f"{SEED} {number}"
    print(f"seed {seed} (PGOUTPUT_FAST_SEED)")
    through_root = " WITH (publish_via_partition_root = true)" if database.version >= 14 else ""
    with database.slot(f"FOR ALL TABLES{through_root}") as slot:
        work = CurrentWork(slot, database.version, seed)
        work.create()
        moments = list(work.moments(60))
        payloads = [slot.peek(pg.all_options(database.version, binary=False))]
        if database.version >= pg.FIRST_BINARY_VERSION:
            payloads.append(slot.peek(pg.all_options(database.version, binary=True)))
        slot.execute(*(f"DROP TABLE {name}" for name in work.tables))
    kinds, looked_up = set(), 0
    for each in payloads:
        decoded = pgo.decode([data for _, data in each], options=pgo.Options(transactions="committed"))
        for table, key in work.tables.items():
            changes = decoded.table(f"public.{table}")
            changes = to_types(changes, stored_schema(changes.schema, "parquet"))
            looked_up += check(changes, key, table, moments)
            kinds |= set(changes["_change_type"].to_pylist())
    assert {"insert", "update_preimage", "update_postimage", "delete"} <= kinds
    assert looked_up > 0


def test_a_row_that_a_filter_lets_in_may_lack_a_large_value(database: pg.Database) -> None:
    """To a subscriber it is a new row, but the server sends what it knows of an update."""
    if database.version < 15:
        pytest.skip("row filters exist since 15")
    database.execute(
        "CREATE TABLE filtered (id int PRIMARY KEY, big text)",
        "ALTER TABLE filtered ALTER big SET STORAGE EXTERNAL",
    )
    with database.slot("FOR TABLE filtered WHERE (id > 0)") as slot:
        slot.execute(
            "INSERT INTO filtered VALUES (-1, repeat('x', 3000)), (-2, 'short')",
            "UPDATE filtered SET id = 2 WHERE id = -2",
            "UPDATE filtered SET id = 1 WHERE id = -1",
        )
        options = pgo.Options(transactions="committed")
        changes = pgo.decode([data for _, data in slot.peek()], options=options).table("public.filtered")
    assert net_effect(changes.slice(0, 1), ["id"]).rows["big"].to_pylist() == ["short"]
    with pytest.raises(ValueError, match=r"column 'big': the server sent a new row without this value"):
        net_effect(changes, ["id"])

"""The tasks that merge effects into files, without Spark: together they do what a plain model does."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pgoutput_fast.merge.effect.effect import COMMIT_LSN, Effect
from pgoutput_fast.spark.tasks.current.fresh import WriteFresh
from pgoutput_fast.spark.tasks.current.jobs import packed, unpacked
from pgoutput_fast.spark.tasks.current.reduce import effect_files
from pgoutput_fast.spark.tasks.current.rewrite import RewriteFiles
from pgoutput_fast.tables.data_files import leading_bounds
from pgoutput_fast.tables.file_table import FileTable
from support.current_tables import KEYS, RandomEffects, open_table


def _parts(effect: Effect, dice: random.Random) -> list[Effect]:
    """The effect on some keys, and that on the others."""
    gone, rows = (
        np.array([dice.random() < 0.5 for _ in range(each.num_rows)], np.bool_)
        for each in (effect.gone, effect.rows)
    )
    return [
        Effect(effect.key, effect.truncated, effect.gone.filter(pa.array(a)), effect.rows.filter(pa.array(b)))
        for a, b in ((gone, rows), (~gone, ~rows))
    ]


def _apply(table: FileTable, place: Path, effect: Effect, position: int, dice: random.Random) -> None:
    before = table.now()
    schema = table.schema_with(before, effect.rows.schema)
    identity = effect.key or tuple(name for name in effect.rows.column_names if name != COMMIT_LSN)
    effects = tuple(
        effect_files(str(place / "scratch"), "public.orders", each, identity, schema)
        for each in _parts(effect, dice)
    )
    given = "public.orders", str(place), table.files, 4_000, effect.key, identity, schema
    placed, files, removed = [b"", b""], [], None
    if before is not None and not effect.truncated:
        bounds, short = leading_bounds(before, identity), table.short(before)
        every = list(range(len(before.files)))
        dice.shuffle(every)
        cut = dice.randint(0, len(every)) if effect.key else len(every)
        removed = set()
        for chosen in filter(None, (every[:cut], every[cut:])):
            numbers = pa.array(chosen, pa.int64())
            known = None if bounds is None else (bounds[0], bounds[1].take(numbers), bounds[2].take(numbers))
            job = RewriteFiles(
                *given,
                tuple(before.files[k] for k in chosen),
                known,
                frozenset(before.files[k].name for k in chosen if k in short),
                effects,
            )
            done = unpacked(packed(unpacked(packed(job))()))
            files += done.added
            removed |= set(done.removed)
            placed = [there + more.tobytes() for there, more in zip(placed, done.placed, strict=True)]
    files += unpacked(packed(WriteFresh(*given, effects, tuple(placed))))()[1]
    table.commit(before, schema, position, files, removed)


@pytest.mark.parametrize("key", [*KEYS, None], ids=str)
def test_tasks_do_what_is_done_to_a_model(key: str | None, tmp_path: Path) -> None:
    effects, table, dice = RandomEffects(len(str(key)), key), open_table("delta", tmp_path), random.Random(8)
    for position in range(10, 110, 10):
        _apply(table, tmp_path, effects.next(), position, dice)
        effects.model.assert_equal(table, effects.compared)
    assert table.position() == 100


def test_a_row_without_a_key_that_is_not_there(tmp_path: Path) -> None:
    effects, table, dice = RandomEffects(3, None), open_table("delta", tmp_path), random.Random(8)
    rows = effects.rows([0] * 5)
    _apply(table, tmp_path, Effect((), False, rows.slice(0, 0).drop_columns([COMMIT_LSN]), rows), 1, dice)
    gone = pa.concat_tables([rows, rows]).drop_columns([COMMIT_LSN])
    with pytest.raises(ValueError, match="lacks rows that go"):
        _apply(table, tmp_path, Effect((), False, gone, rows.slice(0, 0)), 2, dice)
    assert (table.position(), table.read().num_rows) == (1, 5)

"""Measures the net effect of changes of the wide table, compared with decoding as many rows and with plain Python.

    python -m benchmarks.mirror.effect

Every case is a range of decoded changes in the decoder's batches. All cases run in turns, on one thread. At full size
this rewrites the table in README.md.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import pgoutput_fast as pgo
from benchmarks import corpora
from benchmarks.report import README, Section, machine, rewrite
from benchmarks.timing import interleaved
from pgoutput_fast.merge.effect.column_names import with_names
from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.effect.net_effect import effect_of
from pgoutput_fast.schema.metadata_columns import metadata_fields
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.schema.types import stored_schema

__all__ = ["CASES", "check", "section"]

MARKERS = "<!-- effect figures -->", "<!-- end of effect figures -->"
ROUNDS = 7
BATCH_ROWS = 16_384
ROWS_PER_TRANSACTION = corpora.WIDE_ROWS_PER_TRANSACTION
# Plain Python gets only this share of the rows.
SHARE = 0.01
# The columns that large values would be in.
LARGE = ("note", "doc")


@dataclass(frozen=True)
class Case:
    """Changes of the wide table.

    Attributes:
        key: the columns of the key.
        messages: number of changes. An update with its old row is one.
        changes: the rows.
    """

    key: tuple[str, ...]
    messages: int
    changes: pa.Table


def _wide(scale: float) -> pa.Table:
    """The rows of the wide corpus in plain types."""
    table = corpora.corpus("wide text", scale).tables["public.wide"]
    return to_types(table, stored_schema(table.schema, "parquet")).combine_chunks()


def _case(rows: pa.Table, kinds: np.ndarray[Any, Any], key: Sequence[str] = ("id",), **given: Any) -> Case:
    """Rows with metadata. `given` has additional columns."""
    count = rows.num_rows
    starts = kinds != "update_postimage"
    starts[1:] |= kinds[:-1] != "update_preimage"
    starts[0] = True
    seq = np.cumsum(starts)
    metadata = {
        "_change_type": pa.array(kinds),
        "_seq": pa.array(seq),
        "_commit_lsn": pa.array(seq // ROWS_PER_TRANSACTION * 0x4000),
        "_key_only": pa.array(np.zeros(count, np.bool_)),
    }
    columns = {
        **{field.name: pa.nulls(count, field.type) for field in metadata_fields("_")},
        **metadata,
        **dict(zip(rows.column_names, rows.columns, strict=True)),
        **given,
    }
    table = pa.table(columns)
    batches = [table.slice(at, BATCH_ROWS).combine_chunks() for at in range(0, count, BATCH_ROWS)]
    return Case(tuple(key), int(seq[-1]), pa.concat_tables(batches))


def _drawn(count: int) -> np.random.Generator:
    return np.random.default_rng([corpora.SEED, count, 1])


def _inserts(rows: pa.Table) -> Case:
    return _case(rows, np.full(rows.num_rows, "insert"))


def _updates(of: float) -> Callable[[pa.Table], Case]:
    """Updates of random rows of a table that has `of` times as many rows as there are changes."""

    def make(rows: pa.Table) -> Case:
        count = rows.num_rows
        ids = _drawn(count).integers(0, max(int(count * of), 1), count)
        return _case(rows, np.full(count, "update_postimage"), id=pa.array(ids))

    return make


def _mixed(rows: pa.Table) -> Case:
    """45 % inserts, 45 % updates and 10 % deletes of existing or newly inserted rows."""
    count = rows.num_rows
    drawn = _drawn(count)
    kinds = drawn.choice(["insert", "update_postimage", "delete"], count, p=[0.45, 0.45, 0.1])
    ids, there, new = np.empty(count, np.int64), list(range(count)), count
    places = drawn.random(count)
    for row, kind in enumerate(kinds):
        place = int(places[row] * len(there))
        if kind == "insert":
            ids[row], new = new, new + 1
            there.append(int(ids[row]))
        else:
            ids[row] = there[place]
        if kind == "delete":
            there[place] = there[-1]
            there.pop()
    gone = kinds == "delete"
    others = {
        name: pc.if_else(pa.array(gone), pa.scalar(None, rows[name].type), rows[name])
        for name in rows.column_names
    }
    return _case(rows, kinds, **{**others, "id": pa.array(ids), "_key_only": pa.array(gone)})


def _unchanged(of: float, moves: float = 0) -> Callable[[pa.Table], Case]:
    """Updates as above, where half of them do not send two columns. A share `moves` changes its key."""

    def make(rows: pa.Table) -> Case:
        count = rows.num_rows
        drawn = _drawn(count)
        unsent = drawn.random(count) < 0.5
        kept = {
            name: pc.if_else(pa.array(unsent), pa.scalar(None, rows[name].type), rows[name]) for name in LARGE
        }
        rows = rows.append_column(
            "_unchanged", with_names(dict.fromkeys(LARGE, np.flatnonzero(unsent)), count)
        )
        for name, column in kept.items():
            rows = rows.set_column(rows.column_names.index(name), name, column)
        now = np.arange(max(int(count * of), 1))
        ids, old, new = drawn.integers(0, len(now), count), np.empty(count, np.int64), len(now)
        moved = drawn.random(count) < moves
        for row in range(count):
            place = ids[row]
            old[row] = now[place]
            if moved[row]:
                now[place], new = new, new + 1
            ids[row] = now[place]
        # A moved row is preceded by its old row.
        order = np.repeat(np.arange(count), 1 + moved)
        before = np.zeros(len(order), np.bool_)
        before[:-1] = order[1:] == order[:-1]
        kinds = np.where(before, "update_preimage", "update_postimage")
        rows = rows.take(pa.array(order))
        empty = {
            name: pc.if_else(pa.array(before), pa.scalar(None, rows[name].type), rows[name])
            for name in rows.column_names
        }
        ids = np.where(before, old[order], ids[order])
        return _case(rows, kinds, **{**empty, "id": pa.array(ids), "_key_only": pa.array(before)})

    return make


def _whole(of: float) -> Callable[[pa.Table], Case]:
    """Updates with whole old rows: half as many changes as rows. `of` as above."""

    def make(rows: pa.Table) -> Case:
        count = rows.num_rows // 2
        ids = _drawn(count).integers(0, max(int(count * of), 1), count)
        # The n-th update of a row changes its quantity from n to n + 1. All other columns depend on the id.
        order = np.argsort(ids, kind="stable")
        starts = np.flatnonzero(np.concatenate([[True], ids[order][1:] != ids[order][:-1]]))
        sizes = np.diff([*starts, count])
        updates = np.empty(count, np.int64)
        updates[order] = np.arange(count) - np.repeat(starts, sizes)
        twice = np.repeat(np.arange(count), 2)
        quantity = updates[twice] + np.tile([0, 1], count)
        kinds = np.tile(["update_preimage", "update_postimage"], count)
        rows = rows.take(pa.array(ids[twice] % rows.num_rows))
        return _case(rows, kinds, (), id=pa.array(ids[twice]), quantity=pa.array(quantity, pa.int32()))

    return make


CASES: dict[str, Callable[[pa.Table], Case]] = {
    "inserts": _inserts,
    "updates": _updates(of=10),
    "updates, 10 for each row": _updates(of=0.1),
    "inserts, updates, 10 % deletes": _mixed,
    "updates, half without 2 columns": _unchanged(of=10),
    "the same, 10 for each row": _unchanged(of=0.1),
    "the same, 10 % change their key": _unchanged(of=0.1, moves=0.1),
    "whole old rows": _whole(of=10),
    "whole old rows, 10 for each row": _whole(of=0.1),
}


# ---- plain Python ------------------------------------------------------------------------------------------


def plain_python(case: Case) -> tuple[Any, Any]:
    """Returns (removed, added) as computed by a straightforward loop."""
    return _whole_rows(case) if not case.key else _keyed(case)


def _keyed(case: Case) -> tuple[set[int], dict[int, dict[str, Any]]]:
    gone: set[int] = set()
    new: set[int] = set()  # keys that did not exist before
    rows: dict[int, dict[str, Any]] = {}
    moves, moved = False, None
    for change in case.changes.drop_columns(_NOT_USED).to_pylist():
        kind, key = change["_change_type"], change["id"]
        if kind in ("delete", "update_preimage"):
            moves, moved = kind == "update_preimage", rows.pop(key, None)
            if key in new:
                new.remove(key)
            else:
                gone.add(key)
            continue
        before = moved if moves else rows.get(key)
        if (moves or kind == "insert") and key not in gone:
            new.add(key)
        for name in change["_unchanged"] or ():
            change[name] = before[name] if before is not None else None
        rows[key], moves = change, False
    return gone - rows.keys(), rows


def _whole_rows(case: Case) -> tuple[Counter[Any], Counter[Any]]:
    gone: Counter[Any] = Counter()
    rows: Counter[Any] = Counter()
    kinds = case.changes["_change_type"].to_pylist()
    columns = [case.changes[name].to_pylist() for name in corpora.WIDE_COLUMNS]
    for kind, row in zip(kinds, zip(*columns, strict=True), strict=True):
        if kind in ("insert", "update_postimage"):
            rows[row] += 1
        elif rows[row]:
            rows[row] -= 1
        else:
            gone[row] += 1
    return gone, +rows


_NOT_USED = [
    name
    for name in (field.name for field in metadata_fields("_"))
    if name not in ("_change_type", "_unchanged", "_commit_lsn")
]


def check(case: Case) -> None:
    """Compares the effect with the result of plain Python.

    Raises:
        AssertionError: if they differ.
    """
    effect: Effect = effect_of(case.changes, case.key)
    gone, rows = plain_python(case)
    names = list(corpora.WIDE_COLUMNS)
    if not case.key:
        for found, expected in ((effect.gone, gone), (effect.rows, rows)):
            assert Counter(zip(*(found[name].to_pylist() for name in names), strict=True)) == expected
        return
    found = {row["id"]: row for row in effect.rows.to_pylist()}
    assert found.keys() == rows.keys()
    for key, row in rows.items():
        assert all(row[name] == found[key][name] for name in (*names, "_commit_lsn"))
    assert set(effect.gone["id"].to_pylist()) == gone


def section(scale: float, rounds: int) -> Section:
    """The figures of all cases.

    Raises:
        AssertionError: if an effect differs from the result of plain Python.
    """
    rows, few = _wide(scale), _wide(max(scale * SHARE, 1e-9))
    cases = {name: make(rows) for name, make in CASES.items()}
    tasks: dict[str, Any] = {}
    for name, make in CASES.items():
        small = make(few)
        check(small)
        tasks[name] = lambda case=cases[name]: effect_of(case.changes, case.key)
        tasks[f"plain Python: {name}"] = lambda case=small: plain_python(case)
    payloads = corpora.corpus("wide text", scale).payloads
    committed = pgo.Options(transactions="committed")
    tasks["decode"] = lambda: pgo.decode(payloads, options=committed)
    measured = interleaved(tasks, {}, rounds)
    found = Section(
        f"the net effect of {rows.num_rows:,} rows of changes, {rows.nbytes / 1e6:.0f} MB in memory",
        ["", "rows that come", "CPU s", "M changes/s", "beside decode", "beside plain Python"],
    )
    for name, case in cases.items():
        share = few.num_rows / rows.num_rows
        python = measured[f"plain Python: {name}"]
        found.rows.append(
            [
                name,
                f"{effect_of(case.changes, case.key).rows.num_rows:,}",
                f"{measured[name].seconds:.3f}",
                f"{case.messages / measured[name].seconds / 1e6:.2f}",
                f"{measured[name].speed_beside(measured['decode']):.2f}",
                f"{measured[name].speed_beside(python) / share:.0f}",
            ]
        )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.mirror.effect", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the table's full size")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args(arguments)
    pa.set_cpu_count(1)
    text = str(section(given.scale, given.rounds))
    heading = f"{machine()}; median of {given.rounds} rounds."
    print(f"{heading}\n\n{text}")
    if given.scale == 1:
        rewrite(README, f"{heading}\n\n{text}", *MARKERS)


if __name__ == "__main__":
    main()

"""Buckets of keys: rows with equal values get the same one in every task, and rows are spread."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from pgoutput_fast.catalog.relations import Catalog, Column, Relation
from pgoutput_fast.spark.current.keyed_changes import changes_by_key, groups_of
from pgoutput_fast.spark.current.relation_checks import check_versions
from pgoutput_fast.spark.tasks.current.batch_file import BatchFile
from pgoutput_fast.spark.tasks.current.buckets import buckets_of
from pgoutput_fast.spark.tasks.current.divide import TRUNCATES, ShuffledChanges
from support.current_tables import KEYS
from support.histories import History, histories

SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("key", KEYS)
def test_rows_are_spread_and_equal_ones_meet(key: str) -> None:
    rows = pa.table(
        {f"k{n}": pa.array(map(make, range(100)), kind) for n, (kind, make) in enumerate(KEYS[key])}
    )
    found = buckets_of(rows, rows.column_names, 8)
    assert len(set(found.tolist())) > 4
    assert found.min() >= 0
    assert found.max() < 8
    # In another order, in pieces, and with a column that is null, as a new one is.
    other = np.random.default_rng(1).permutation(100)
    taken = rows.take(pa.array(other)).append_column("new", pa.nulls(100, pa.int32()))
    pieces = [buckets_of(taken.slice(at, 7), taken.column_names, 8) for at in range(0, 100, 7)]
    assert np.concatenate(pieces).tolist() == found[other].tolist()


@SETTINGS
@given(histories(keyed=False))
def test_equal_rows_of_any_types_meet(history: History) -> None:
    changes = history.table([change for each in history.transactions for change in each])
    names = history.columns.names
    buckets: dict[str, set[int]] = {}
    for row, bucket in zip(
        changes.select(names).to_pylist(), buckets_of(changes, names, 1000).tolist(), strict=True
    ):
        buckets.setdefault(repr(row), set()).add(bucket)
    assert all(len(each) == 1 for each in buckets.values())


def test_zeros_and_nans_are_equal_keys() -> None:
    rows = pa.table({"k": pa.array([0.0, -0.0, float("nan"), -float("nan"), 1.0])})
    zero, minus, one_nan, other_nan, one = buckets_of(rows, ["k"], 1000)
    assert (zero, one_nan) == (minus, other_nan)
    assert len({zero, one_nan, one}) == 3


# ---- what is done with buckets --------------------------------------------------------------------------------------


def _divided(
    buckets: list[int], links: list[tuple[int, int]], version: int = 1, commit: int = 1
) -> ShuffledChanges:
    none = pa.nulls(0)
    file = BatchFile(f"file {buckets}", (1,) * len(buckets), 1, (none, none))
    return ShuffledChanges(
        "public.t", version, file, tuple(buckets), pa.schema([]), (commit, commit + 5), frozenset(links)
    )


def test_linked_buckets_are_reduced_together() -> None:
    one, other = _divided([TRUNCATES, 0, 1, 2], [(2, 5)]), _divided([0, 3, 5], [(5, 3)])
    found = [
        {
            (file.path, bucket)
            for file, batches in group
            for bucket in (each.buckets[k] for each in (one, other) if each.file is file for k in batches)
        }
        for group in groups_of([one, other])
    ]
    truncate = ("file [-1, 0, 1, 2]", TRUNCATES)
    assert sorted(map(sorted, found)) == sorted(
        map(
            sorted,
            [
                {truncate, ("file [-1, 0, 1, 2]", 0), ("file [0, 3, 5]", 0)},
                {truncate, ("file [-1, 0, 1, 2]", 1)},
                {truncate, ("file [-1, 0, 1, 2]", 2), ("file [0, 3, 5]", 3), ("file [0, 3, 5]", 5)},
            ],
        )
    )
    assert groups_of([_divided([TRUNCATES], [])]) == [((_divided([TRUNCATES], []).file, (0,)),)]


def _relation(version: int, *names: str, oid: int = 7, key: int = 1) -> Relation:
    columns = tuple(Column(name, 23, key=n < key) for n, name in enumerate(names))
    return Relation(oid, version, "public", "t", "d", columns)


def test_changes_under_another_key_are_applied_by_themselves() -> None:
    catalog = Catalog([_relation(1, "a", "b"), _relation(2, "a", "b", key=2)])
    parts = [_divided([0], [], 2, 20), _divided([0], [], 1, 1), _divided([1], [], 1, 3)]
    assert [(each.key, each.last) for each in changes_by_key("public.t", parts, catalog)] == [
        (("a",), 8),
        (("a", "b"), 25),
    ]
    parts.append(_divided([0], [], 1, 21))
    with pytest.raises(ValueError, match=r"public.t: its replica identity was altered"):
        changes_by_key("public.t", parts, catalog)


def test_what_a_current_table_cannot_follow() -> None:
    known = [
        _relation(1, "a", "b"),
        _relation(2, "a", "c"),
        _relation(3, "a", "c", "d"),
        _relation(4, "a", oid=8),
    ]
    catalog = Catalog(known)
    assert check_versions("public.t", [1], catalog, ["a", "b"], None) == 7
    assert check_versions("public.t", [3], catalog, ["a", "c"], 7) == 7  # a new column
    assert check_versions("public.t", [2], catalog, ["a", "b", "c"], 7) == 7  # it was loaded since
    with pytest.raises(ValueError, match=r"its column 'c' was renamed"):
        check_versions("public.t", [2], catalog, ["a", "b"], 7)
    with pytest.raises(ValueError, match=r"the server has another table of this name now"):
        check_versions("public.t", [4], catalog, ["a"], 7)
    taken = Catalog([_relation(1, "a", "_seq")])
    with pytest.raises(ValueError, match=r"its column '_seq' has the name of a metadata column"):
        check_versions("public.t", [1], taken, None, None)

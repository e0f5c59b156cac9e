"""Measures what many small merges on read leave: scans of the table, beside scans of one that was just written.

    python -m benchmarks.mirror.scan            # 1,000 merges into 10,000,000 rows, some five minutes

Each merge has 10,000 changes at random keys: half of them are updates, four tenths are new rows, and a tenth are
deletes. Another thread writes files with many marked rows anew meanwhile, as in a mirror. In the end, the table must
have the right keys in the right versions.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.mirror.merge import KINDS, SCHEMA, batches, rows_of
from benchmarks.report import README, Section, machine, rewrite
from pgoutput_fast.merge.effect.effect import Effect

__all__ = ["main", "section"]

MARKERS = "<!-- scan figures -->", "<!-- end of scan figures -->"
SIZE, MERGES, CHANGES = 10_000_000, 1_000, 10_000
# A mirror removes files that no point needs.
_VACUUM_EVERY = 100
_ROUNDS = 3
_KIND = "Delta, merged on read"
_QUERY = "SELECT count(*), sum(customer), sum(price), max(note), max(at) FROM t"


class _Changes:
    """Random changes of a table, and the rows that it then has.

    Attributes:
        lsns: of the rows with the first keys; 0 for a deleted one.
        fresh: the number of new rows.
    """

    def __init__(self, size: int, count: int) -> None:
        self._noise, self._count = np.random.default_rng(size), count
        self.lsns: npt.NDArray[np.int64] = np.ones(size, np.int64)
        self.fresh = 0

    def next(self, lsn: int) -> Effect:
        """One more effect."""
        size, deletes, new = len(self.lsns), self._count // 10, self._count * 4 // 10
        keys = self._noise.choice(size, self._count // 2 + deletes, replace=False)
        keys = keys[self.lsns[keys] > 0]
        gone, updated = keys[:deletes], keys[deletes:]
        self.lsns[gone], self.lsns[updated] = 0, lsn
        first, self.fresh = size + self.fresh, self.fresh + new
        rows = [rows_of(2 * updated, lsn), rows_of(2 * np.arange(first, first + new), lsn)]
        return Effect(
            ("id",), False, pa.table({"id": pa.array(2 * gone, pa.int64())}), pa.concat_tables(rows)
        )

    def check(self, table: Any) -> None:
        """Asserts that a table has the right keys, each in the right version."""
        there = table.read().select(["id", "_commit_lsn"]).sort_by("id")
        (kept,) = np.nonzero(self.lsns)
        assert np.array_equal(there["id"].to_numpy()[: len(kept)], 2 * kept)
        assert np.array_equal(there["_commit_lsn"].to_numpy()[: len(kept)], self.lsns[kept])
        assert there.num_rows == len(kept) + self.fresh


def _cpu(task: Callable[[], object]) -> float:
    began = time.process_time()
    task()
    return time.process_time() - began


def _scans(table: Any) -> tuple[float, float]:
    """The least CPU seconds of a query by delta-rs over all columns, and of a read by this package."""
    place = str(table.table.store.at(table.table.files))

    def query() -> None:
        builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(place))
        assert pa.table(builder.execute(_QUERY)).num_rows == 1

    return min(_cpu(query) for _ in range(_ROUNDS)), min(_cpu(table.read) for _ in range(_ROUNDS))


def section(size: int = SIZE, merges: int = MERGES, changes: int = CHANGES) -> Section:
    """The figures.

    Raises:
        AssertionError: if a table has wrong rows.
    """
    with tempfile.TemporaryDirectory(prefix="pgoutput-fast-scan-") as directory:
        table, fresh = (KINDS[_KIND](Path(directory) / name) for name in ("merged", "fresh"))
        table.replace(batches(size), SCHEMA, 1)
        made, costs = _Changes(size, changes), []
        for lsn in range(2, merges + 2):
            effect = made.next(lsn)
            costs.append(_cpu(lambda: table.apply(effect, lsn)))  # noqa: B023
            table.commit_rewritten()
            if lsn % _VACUUM_EVERY == 0:
                table.vacuum()
        made.check(table)
        files = table.table.now().files
        marked = sum(file.deleted.count for file in files if file.deleted is not None)
        fresh.replace((batch for rows in [table.read()] for batch in rows.to_batches()), SCHEMA, 1)
        delta, own = _scans(table)
        delta_fresh, own_fresh = _scans(fresh)
    found = Section(
        f"A table of {size:,} rows after {merges:,} merges of {changes:,} random changes",
        [
            "CPU s a merge",
            "99 % at most",
            "files",
            "marked rows",
            "scan by delta-rs",
            "of a new table",
            "by us",
            "of it",
        ],
    )
    share = marked / sum(file.rows for file in files)
    found.rows.append(
        [
            f"{np.mean(costs):.3f}",
            f"{np.quantile(costs, 0.99):.2f}",
            f"{len(files)}",
            f"{share:.1%}",
            f"{delta:.2f}",
            f"{delta / delta_fresh:.2f}",
            f"{own:.2f}",
            f"{own / own_fresh:.2f}",
        ]
    )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.mirror.scan", description=__doc__)
    parser.add_argument("--size", type=int, default=SIZE, help="rows of the table")
    parser.add_argument("--merges", type=int, default=MERGES, help="how many merges")
    given = parser.parse_args(arguments)
    text = f"{machine()}.\n\n{section(given.size, given.merges)}"
    print(text)
    if (given.size, given.merges) == (SIZE, MERGES):
        rewrite(README, text, *MARKERS)


if __name__ == "__main__":
    main()

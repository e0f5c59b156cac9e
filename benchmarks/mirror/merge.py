"""Measures the cost of applying 10,000 changes to current tables of several sizes.

    python -m benchmarks.mirror.merge            # 100,000 to 10,000,000 rows, in some minutes
    python -m benchmarks.mirror.merge --full     # and 100,000,000 rows in the format of Delta

Every table has an ascending int64 key and four more columns. Half of the changes are updates, four tenths are new rows,
and a tenth are deletes. The updates and deletes are of the newest keys (`local`) or of any keys (`random`, and then
`again`). All kinds of tables get the same changes, and must have the right rows afterwards. `delta-rs's MERGE` is the
alternative that was not chosen, with the bounds of the keys as literals.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.report import README, Section, machine, rewrite
from pgoutput_fast.merge.duckdb import DuckDBMerge
from pgoutput_fast.merge.effect.effect import Effect, current_schema
from pgoutput_fast.merge.local import LocalMerge
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.duckdb import DuckDBCurrent
from pgoutput_fast.tables.file_table import CurrentFileTable
from pgoutput_fast.tables.formats import open_target
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.table import Table

__all__ = ["SIZES", "section"]

MARKERS = "<!-- merge figures -->", "<!-- end of merge figures -->"
SIZES = (100_000, 1_000_000, 10_000_000)
FULL_SIZE, FULL_KINDS = 100_000_000, ("Delta", "Delta, merged on read")
CHANGES = 10_000
_PIECE = 100_000
_COLUMNS = pa.schema(
    {
        "id": pa.int64(),
        "customer": pa.int32(),
        "note": pa.string(),
        "price": pa.float64(),
        "at": pa.timestamp("us", "UTC"),
    }
)
SCHEMA = current_schema(_COLUMNS)


def rows_of(keys: np.ndarray[Any, Any], version: int) -> pa.Table:
    """Rows with these keys. `version` is their LSN, and changes their values."""
    noise = np.random.default_rng([version, int(keys[0]) if len(keys) else 0])
    count = len(keys)
    columns = [
        pa.array(keys, pa.int64()),
        pa.array(noise.integers(0, 50_000, count), pa.int32()),
        pc.binary_join_element_wise(
            "note", pa.array(noise.integers(0, 1 << 40, count)).cast(pa.string()), " "
        ),
        pa.array(noise.random(count).round(2)),
        pa.array(keys * 1_000_000 + version, pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array(np.full(count, version, np.int64)),
        pa.nulls(count, SCHEMA.field(6).type),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def batches(size: int) -> Iterator[pa.RecordBatch]:
    """A table's first rows: the even keys below twice the size."""
    for begin in range(0, size, _PIECE):
        yield from rows_of(2 * np.arange(begin, min(begin + _PIECE, size)), 1).to_batches()


def effects(size: int, changes: int) -> Mapping[str, Effect]:
    """The local changes, and then random ones twice."""
    noise = np.random.default_rng(size)
    updates, deletes = changes // 2, changes // 10
    newest = 2 * np.arange(size - updates - deletes, size)
    fresh = 2 * np.arange(size, size + changes - updates - deletes)
    count = updates + deletes
    anywhere = 2 * noise.choice(size - count, 2 * count, replace=False)
    return {
        "local": _effect(noise.permutation(newest), fresh, deletes, 2),
        "random": _effect(anywhere[:count], fresh + 2 * len(fresh), deletes, 3),
        "again": _effect(anywhere[count:], fresh + 4 * len(fresh), deletes, 4),
    }


def _effect(old: Any, fresh: Any, deletes: int, version: int) -> Effect:
    gone = pa.table({"id": pa.array(old[:deletes], pa.int64())})
    rows = pa.concat_tables([rows_of(old[deletes:], version), rows_of(fresh, version)])
    return Effect(("id",), False, gone, rows)


class _Merged(LocalMerge):
    """A Delta table whose effects delta-rs's own MERGE applies."""

    def apply(self, effect: Effect, position: int) -> None:
        gone = effect.gone.append_column("_gone", pa.repeat(True, effect.gone.num_rows))
        rows = effect.rows.append_column("_gone", pa.repeat(False, effect.rows.num_rows))
        source = pa.concat_tables([rows, gone], promote_options="default")
        bounds = pc.min_max(source.column("id")).as_py()
        table = deltalake.DeltaTable(str(self.table.store.at(self.table.files)))
        columns = {f"`{name}`": f"s.`{name}`" for name in SCHEMA.names}
        merge = table.merge(
            source,
            f"t.id = s.id AND t.id >= {bounds['min']} AND t.id <= {bounds['max']}",
            source_alias="s",
            target_alias="t",
            streamed_exec=False,
            commit_properties=deltalake.CommitProperties(
                app_transactions=[deltalake.Transaction("pgoutput_fast.mirror", position)]
            ),
        )
        merge = merge.when_matched_delete("s._gone").when_matched_update(columns)
        merge.when_not_matched_insert(columns, "NOT s._gone").execute()


def _table(format: str, place: Path) -> Table:
    return open_target(format, open_store(place), TableOptions()).table("t", "current")


def _duckdb(place: Path) -> DuckDBMerge:
    return DuckDBMerge(DuckDBCurrent(place / "x.duckdb", "t"))


KINDS: Mapping[str, Callable[[Path], Any]] = {
    "Delta": lambda place: LocalMerge(CurrentFileTable(_table("delta", place))),
    "Delta, merged on read": lambda place: LocalMerge(
        CurrentFileTable(_table("delta", place), merge="on_read")
    ),
    "Delta, delta-rs's MERGE": lambda place: _Merged(CurrentFileTable(_table("delta", place))),
    "Iceberg": lambda place: LocalMerge(CurrentFileTable(_table("iceberg", place))),
    "DuckDB": _duckdb,
}


@dataclass(frozen=True)
class _Cost:
    cpu: float
    wall: float
    rewritten: str
    megabytes: float


def _written() -> int:
    """The number of bytes that this process has passed to the kernel."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("wchar")).split()[1])


def _names(table: Any) -> set[str]:
    version = table.table.now() if isinstance(table, LocalMerge) else None
    return set() if version is None else {file.name for file in version.files}


def _measured(table: Any, task: Callable[[], object]) -> _Cost:
    before, wall, cpu, written = _names(table), time.perf_counter(), time.process_time(), _written()
    task()
    cpu, wall, written = time.process_time() - cpu, time.perf_counter() - wall, _written() - written
    rewritten = f"{len(before - _names(table))} of {len(before)}" if isinstance(table, LocalMerge) else ""
    return _Cost(cpu, wall, rewritten, written / 1e6)


def _check(table: Any, size: int, changes: int) -> None:
    """Asserts that the table has the right keys, each in the right version."""
    keys, lsns = 2 * np.arange(size), np.ones(size, np.int64)
    for version, effect in enumerate(effects(size, changes).values(), 2):
        new = effect.rows.column("id").to_numpy()
        stays = ~np.isin(keys, np.concatenate([effect.gone.column("id").to_numpy(), new]))
        keys = np.concatenate([keys[stays], new])
        lsns = np.concatenate([lsns[stays], np.full(len(new), version)])
    order, there = np.argsort(keys), table.read().select(["id", "_commit_lsn"]).sort_by("id")
    assert np.array_equal(there.column("id").to_numpy(), keys[order])
    assert np.array_equal(there.column("_commit_lsn").to_numpy(), lsns[order])


def costs(kind: str, size: int, changes: int = CHANGES) -> dict[str, _Cost]:
    """The costs of the first load, local changes and random changes.

    Raises:
        AssertionError: if the table has wrong rows afterwards.
    """
    place = Path(tempfile.mkdtemp(prefix="pgoutput-fast-merge-"))
    try:
        table = KINDS[kind](place)
        found = {"load": _measured(table, lambda: table.replace(batches(size), SCHEMA, 1))}
        for position, (name, effect) in enumerate(effects(size, changes).items(), 2):
            found[name] = _measured(table, lambda: table.apply(effect, position))  # noqa: B023
        if size <= SIZES[-1]:
            _check(table, size, changes)
        return found
    finally:
        shutil.rmtree(place)


def section(sizes: Sequence[int] = SIZES, changes: int = CHANGES, *, full: bool = False) -> Section:
    """The figures of all kinds of tables. With `full`, also those of one very large table."""
    found = Section(
        f"Current tables: {changes:,} changes",
        [
            "",
            "rows",
            "load, CPU s",
            *(
                f"{where}, {what}"
                for where in ("local", "random")
                for what in ("CPU s", "wall s", "files rewritten", "MB written")
            ),
            "again, CPU s",
            "again, MB written",
        ],
    )
    for kind in KINDS:
        for size in (*sizes, FULL_SIZE) if full and kind in FULL_KINDS else sizes:
            each = costs(kind, size, changes)
            row = [kind, f"{size:,}", f"{each['load'].cpu:.2f}"]
            for where in ("local", "random"):
                cost = each[where]
                row += [f"{cost.cpu:.2f}", f"{cost.wall:.2f}", cost.rewritten, f"{cost.megabytes:.1f}"]
            row += [f"{each['again'].cpu:.2f}", f"{each['again'].megabytes:.1f}"]
            print(" | ".join(row), flush=True)
            found.rows.append(row)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.mirror.merge", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="rows of the tables")
    parser.add_argument(
        "--full", action="store_true", help=f"{FULL_SIZE:,} rows, too; needs about 4 GB of disk"
    )
    given = parser.parse_args(arguments)
    began, heading = time.monotonic(), machine()
    text = f"{heading}; one run of each.\n\n{section(given.sizes, full=given.full)}"
    print(text)
    print(f"took {time.monotonic() - began:.0f} s")
    if given.sizes == SIZES:
        rewrite(README, text, *MARKERS)


if __name__ == "__main__":
    main()

"""The fresh view, as Arrow and on Spark: both give what the changes give when they are applied one by one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from pgoutput_fast.merge.effect.effect import current_schema
from pgoutput_fast.mirror.state.table_record import KnownColumn, TableRecord
from pgoutput_fast.mirror.view.changes import Changes
from pgoutput_fast.mirror.view.moment import Moment
from pgoutput_fast.mirror.view.read import rows_of
from pgoutput_fast.spark.dataframes.fresh import frame_at
from pgoutput_fast.tables.table import OpenVersion
from reference.current import CurrentRows
from support.forms import and_slow
from support.histories import Change, History, histories

# Without shrinking: jobs of Spark for each try take their time.
PHASES = [Phase.explicit, Phase.generate]
MANY = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
FEW = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=PHASES,
)


def filled(history: History) -> History:
    """As the decoder does: without a key, a value that was not sent is that of the old row."""
    if not history.key:
        for each in (pair for transaction in history.transactions for pair in _pairs(transaction)):
            old, new = each
            for name in new["_unchanged"] or ():
                new[name] = old[name]
                if name in (old["_unrepresentable"] or ()):
                    marks = {*(new["_unrepresentable"] or ()), name}
                    new["_unrepresentable"] = [each for each in history.columns.names if each in marks]
            new["_unchanged"] = None
    # On a server, these are the same key.
    assume(
        not any(
            repr(each[name]) == "-0.0" for t in history.transactions for each in t for name in history.key
        )
    )
    return history


def _pairs(changes: list[Change]) -> list[tuple[Change, Change]]:
    return [(old, new) for old, new in pairwise(changes) if old["_change_type"] == "update_preimage"]


class Case:
    """A history, cut in two: what is applied already, and what is not."""

    def __init__(self, history: History, cut: int, directory: Path) -> None:
        self.history = filled(history)
        cut = min(cut, len(history.transactions))
        applied = [change for each in history.transactions[:cut] for change in each]
        self.expected = CurrentRows(history.key, history.columns)
        self.expected.apply_changes(history.table(applied).to_pylist())
        schema = current_schema(history.columns)
        base = pa.Table.from_pylist(self.expected.rows, schema)
        later = [change for each in history.transactions[cut:] for change in each]
        self.expected.apply_changes(history.table(later).to_pylist())
        self.base, self.changes = directory / "base.parquet", directory / "changes.parquet"
        pq.write_table(base, self.base)
        # The file has the applied changes, too, and is in no order.
        pq.write_table(history.table([*later, *applied]), self.changes)
        after = 100 * cut
        held = OpenVersion(after, schema, lambda names: iter([base.select(names)]), [str(self.base)])
        record = TableRecord(
            "public.t",
            columns={field.name: KnownColumn(None, str(field.type)) for field in history.columns},
            stage="follow",
            keys=((0, history.key),),
        )
        changes = Changes(history.schema.remove_metadata(), [[str(self.changes)]], after, 1 << 40)
        self.moment = Moment("public.t", 1 << 40, held, changes, record)

    def check(self, rows: pa.Table) -> None:
        found = CurrentRows(self.history.key, self.history.columns)
        found.rows = rows.to_pylist()
        assert found.sorted() == self.expected.sorted()


def _with_case(history: History, cut: int, check: Callable[[Case], None]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        check(Case(history, cut, Path(directory)))


@pytest.mark.parametrize("keyed", [True, False])
def test_the_reader(keyed: bool) -> None:
    @MANY
    @given(histories(keyed=keyed), st.integers(0, 6))
    def run(history: History, cut: int) -> None:
        def check(case: Case) -> None:
            rows = rows_of(case.moment, case.moment.schema.names)
            names = case.moment.schema.names
            case.check(pa.concat_tables([case.moment.schema.empty_table(), *rows.pieces(names)]))

        _with_case(history, cut, check)

    run()


@pytest.mark.parametrize("keyed", and_slow([True], [False]))
def test_spark(spark: Any, keyed: bool) -> None:
    @FEW
    @given(histories(keyed=keyed), st.integers(0, 6))
    def run(history: History, cut: int) -> None:
        def check(case: Case) -> None:
            case.check(frame_at(spark, case.moment, case.moment.schema.names).toArrow())

        _with_case(history, cut, check)

    run()

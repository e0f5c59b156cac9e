"""The text of the query that gives a table at a moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.mirror.apply_order import ORDER
from pgoutput_fast.mirror.dialects import Dialect
from pgoutput_fast.mirror.effect.column_names import naming_rows
from pgoutput_fast.mirror.effect.effect import COMMIT_LSN, UNREPRESENTABLE
from pgoutput_fast.mirror.errors import LOAD_AGAIN
from pgoutput_fast.mirror.view.moment import Moment

__all__ = ["Sources", "statement"]

_LOST = f"changes are missing: {LOAD_AGAIN}"


@dataclass(frozen=True)
class Sources:
    """What a query reads.

    Attributes:
        current: a SELECT with the rows of the current table.
        history: a SELECT with changes; it may have more than those that are needed.
    """

    current: str
    history: str


@dataclass(frozen=True)
class _Seen:
    """What the changes have, as far as the query depends on it.

    Attributes:
        any: whether there are changes.
        goes: whether there are old rows.
        truncate: (LSN, ordinal) of the last truncate; None if there is none.
        unsent: columns of which values were not sent.
        moved: whether updates that changed the key did not send values.
    """

    any: bool
    goes: bool
    truncate: tuple[int, int] | None
    unsent: Sequence[str]
    moved: bool


def _look(moment: Moment) -> _Seen:
    if not moment.changes.files:
        return _Seen(False, False, None, (), False)
    rows = moment.changes.read([*ORDER, "_unchanged"])
    any_row = rows.num_rows > 0
    truncates = np.flatnonzero(pc.equal(rows["_change_type"], "truncate").to_numpy())
    truncate = None
    if len(truncates):
        last = int(truncates[-1])
        truncate = rows[COMMIT_LSN][last].as_py(), rows["_seq"][last].as_py()
        rows = rows.slice(last + 1)
    kinds = rows["_change_type"]
    old = pc.is_in(kinds, pa.array(["update_preimage", "delete"])).to_numpy()
    before = np.zeros(rows.num_rows, bool)
    before[1:] = pc.equal(kinds, "update_preimage").to_numpy()[:-1]
    named = naming_rows(rows["_unchanged"])
    unsent = [name for name in moment.schema.names if name in named]
    moved = any(before[named[name]].any() for name in unsent)
    return _Seen(any_row, bool(old.any()), truncate, unsent, moved)


def statement(
    moment: Moment, dialect: Dialect, columns: Sequence[str], key: Sequence[str], sources: Sources
) -> str:
    """The query.

    Args:
        moment: the table at a moment.
        dialect: of the query.
        columns: which columns it gives.
        key: of all changes; empty if only whole rows identify rows.
        sources: what it reads.

    Raises:
        ValueError: if changes of a table without a key lack values.
    """
    seen = _look(moment)
    if not seen.any:
        names = ", ".join(map(dialect.name, columns))
        return f"SELECT {names}\nFROM ({sources.current})"
    if seen.unsent and not key:
        raise ValueError(f"{moment.table} has no key, and changes lack values: read it with fresh")
    return _Statement(moment, dialect, columns, key, sources, seen).text()


class _Statement:
    """Writes a query. In it, the n-th column of the table is called `c<n>`, so that no name means something else."""

    def __init__(
        self,
        moment: Moment,
        dialect: Dialect,
        columns: Sequence[str],
        key: Sequence[str],
        sources: Sources,
        seen: _Seen,
    ) -> None:
        self._moment, self._dialect, self._columns = moment, dialect, columns
        self._sources, self._seen = sources, seen
        schema = moment.schema
        self._types = {
            field.name: field.type for field in schema if field.name not in (COMMIT_LSN, UNREPRESENTABLE)
        }
        self._short = {name: f"c{n}" for n, name in enumerate(self._types)}
        self._key = [self._short[name] for name in key]
        self._changed = set(moment.columns(key))

    def text(self) -> str:
        """The query."""
        if not self._key:
            parts, body = self._without_key()
        elif self._seen.unsent:
            parts, body = self._with_unsent()
        else:
            parts, body = self._with_key()
        begin = self._dialect.recursive if self._seen.moved else "WITH"
        named = ",\n".join(f"{name} AS (\n{query}\n)" for name, query in parts)
        return f"{begin} {named}\n{body}"

    # ---- sources -------------------------------------------------------------------------------------------------

    def _base(self) -> tuple[str, str]:
        """The rows of the current table; none of them count behind a truncate."""
        there = set(self._moment.base.schema.names)
        columns = self._aliased(there, [(COMMIT_LSN, "lsn"), (UNREPRESENTABLE, "marks")])
        where = "" if self._seen.truncate is None else "\nWHERE false"
        return "base", f"SELECT {columns}\nFROM ({self._sources.current}){where}"

    def _changes(self) -> tuple[str, str]:
        name, changes = self._dialect.name, self._moment.changes
        more = [(COMMIT_LSN, "lsn"), (UNREPRESENTABLE, "marks"), ("_seq", "seq"), ("_unchanged", "unsent")]
        kind, lsn, seq = name("_change_type"), name(COMMIT_LSN), name("_seq")
        columns = (
            f"{self._aliased(self._changed, more)}, {kind} AS kind, "
            f"{kind} IN ('insert', 'update_postimage') AS puts, "
            f"CASE WHEN {kind} = 'update_postimage' THEN 1 ELSE 0 END AS step"
        )
        where = f"{lsn} > {changes.after} AND {lsn} <= {changes.through}"
        if self._seen.truncate is not None:
            at, number = self._seen.truncate
            where += f" AND ({lsn} > {at} OR {lsn} = {at} AND {seq} > {number})"
        return "changes", f"SELECT {columns}\nFROM ({self._sources.history})\nWHERE {where}"

    def _aliased(self, there: set[str], more: Sequence[tuple[str, str]]) -> str:
        """All columns under their short names. Those that are not there are null."""
        columns = [self._column(name, name in there) for name in self._types]
        return ", ".join([*columns, *(f"{self._dialect.name(name)} AS {short}" for name, short in more)])

    def _column(self, name: str, is_there: bool) -> str:
        value = self._dialect.name(name) if is_there else "NULL"
        return f"CAST({value} AS {self._dialect.type_of(self._types[name])}) AS {self._short[name]}"

    def _result(self, values: Callable[[str], str], lsn: str, marks: str) -> str:
        """The columns that the query gives."""
        found = {COMMIT_LSN: lsn, UNREPRESENTABLE: marks}
        return ", ".join(
            f"{found[name] if name in found else values(name)} AS {self._dialect.name(name)}"
            for name in self._columns
        )

    def _plain(self, table: str) -> str:
        return self._result(lambda name: f"{table}.{self._short[name]}", f"{table}.lsn", f"{table}.marks")

    def _by(self, *more: str) -> str:
        return ", ".join([*self._key, *more])

    def _equal(self, left: str, right: str, prefix: str = "") -> str:
        return " AND ".join(f"{left}.{prefix}{each} = {right}.{each}" for each in self._key)

    # ---- without a key -------------------------------------------------------------------------------------------

    def _without_key(self) -> tuple[list[tuple[str, str]], str]:
        """Equal rows are copies. Of each kind of row, as many go as there are old rows."""
        names = ", ".join([*self._short.values(), "lsn", "marks"])
        if not self._seen.goes:
            rows = f"SELECT {names} FROM base UNION ALL SELECT {names} FROM changes"
            return [
                self._base(),
                self._changes(),
                ("result", rows),
            ], f"SELECT {self._plain('result')}\nFROM result"
        rows = (
            f"SELECT {names}, true AS puts, CAST(-3 AS BIGINT) AS seq FROM base\nUNION ALL "
            f"SELECT {names}, puts, seq FROM changes"
        )
        same = [self._short[name] for name in self._types if name in self._changed] + ["marks"]
        same += [
            self._dialect.exact(self._short[name])
            for name, kind in self._types.items()
            if name in self._changed and _has_floats(kind)
        ]
        by = ", ".join(same)
        counted = (
            f"SELECT *, count(CASE WHEN puts THEN NULL ELSE 1 END) OVER (PARTITION BY {by}) AS goes, "
            f"count(CASE WHEN puts THEN 1 END) OVER (PARTITION BY {by}) AS comes, "
            f"row_number() OVER (PARTITION BY {by}, puts ORDER BY seq) AS n\nFROM copies"
        )
        lost = self._dialect.fail(f"{self._moment.table}: {_LOST}")
        body = (
            f"SELECT {self._plain('counted')}\nFROM counted\n"
            f"WHERE CASE WHEN goes > comes THEN {lost} ELSE puts AND n > goes END"
        )
        return [self._base(), self._changes(), ("copies", rows), ("counted", counted)], body

    # ---- with a key ----------------------------------------------------------------------------------------------

    def _stay(self) -> str:
        """The rows of the current table whose key no change has."""
        return (
            f"SELECT {self._plain('base')}\nFROM base\n"
            f"WHERE NOT EXISTS (SELECT 1 FROM newest WHERE {self._equal('newest', 'base')})"
        )

    def _with_key(self) -> tuple[list[tuple[str, str]], str]:
        """The last change of a key counts."""
        numbered = (
            f"SELECT *, row_number() OVER (PARTITION BY {self._by()} ORDER BY lsn DESC, seq DESC, step DESC) AS n\n"
            "FROM changes"
        )
        parts = [self._base(), self._changes(), ("numbered", numbered)]
        parts.append(("newest", "SELECT * FROM numbered WHERE n = 1"))
        return parts, f"{self._stay()}\nUNION ALL\nSELECT {self._plain('newest')}\nFROM newest\nWHERE puts"

    def _with_unsent(self) -> tuple[list[tuple[str, str]], str]:
        """The same, where values come from earlier changes or from the current table.

        The changes of a key between a row's beginning and its end are a *life*. A value that was not sent is the one
        that was sent last in the life. If there is none, it is that of the life that the row had before under another
        key, and so on; and before the first of these, it is in the current table.
        """
        parts = [self._base(), self._changes(), *self._lives()]
        origin = self._walked() if self._seen.moved else self._unmoved()
        parts += origin
        own = f"{self._equal('origins', 'newest', 'r_')}"
        lost = self._dialect.fail(f"{self._moment.table}: {_LOST}")

        def value(name: str) -> str:
            short = self._short[name]
            if name not in self._seen.unsent:
                return f"newest.{short}"
            return (
                f"CASE WHEN origins.s_{short} IS NOT NULL THEN origins.s_{short}.v "
                f"WHEN base.{self._key[0]} IS NOT NULL THEN base.{short} ELSE {lost} END"
            )

        body = (
            f"{self._stay()}\nUNION ALL\nSELECT {self._result(value, 'newest.lsn', self._marks())}\nFROM newest "
            f"JOIN origins ON {own} LEFT JOIN base ON {self._equal('origins', 'base', 'o_')}\nWHERE newest.puts"
        )
        return parts, body

    def _lives(self) -> list[tuple[str, str]]:
        """Changes with the number of their life and what was sent last in it; the newest of each key."""
        dialect, by = self._dialect, self._by()
        order = "ORDER BY lsn, seq, step ROWS BETWEEN UNBOUNDED PRECEDING AND"
        numbered = (
            f"SELECT *, coalesce(sum(CASE WHEN puts THEN 0 ELSE 1 END) OVER (PARTITION BY {by} {order} 1 PRECEDING), 0)"
            f" AS life,\nrow_number() OVER (PARTITION BY {by} ORDER BY lsn DESC, seq DESC, step DESC) AS n\n"
            "FROM changes"
        )
        window = f"PARTITION BY {by}, life {order} UNBOUNDED FOLLOWING"
        sent = ", ".join(
            dialect.last_known(
                f"CASE WHEN puts AND NOT {dialect.has('unsent', name)} THEN "
                f"{dialect.struct(v=short, u=dialect.has('marks', name))} END",
                window,
            )
            + f" AS s_{short}"
            for name, short in self._unsent()
        )
        first = f"row_number() OVER (PARTITION BY {by}, life ORDER BY lsn, seq, step) AS f"
        return [
            ("numbered", numbered),
            ("sent", f"SELECT *, {first}, {sent}\nFROM numbered"),
            ("newest", "SELECT * FROM sent WHERE n = 1"),
        ]

    def _unsent(self) -> list[tuple[str, str]]:
        return [(name, self._short[name]) for name in self._seen.unsent]

    def _unmoved(self) -> list[tuple[str, str]]:
        """No value comes from another key."""
        sent = [f"s_{short}" for _, short in self._unsent()]
        keys = [f"{each} AS {letter}_{each}" for letter in "ro" for each in self._key]
        return [("origins", f"SELECT {', '.join([*keys, *sent])}\nFROM newest")]

    def _walked(self) -> list[tuple[str, str]]:
        """For each newest row (`r_`) the lives that it had, step by step back to the oldest (`o_`)."""
        sent = [f"s_{short}" for _, short in self._unsent()]
        old_keys = ", ".join(f"old.{each} AS p_{each}" for each in self._key)
        lives = (
            f"SELECT new.*, {old_keys}, old.life AS p_life\nFROM sent AS new LEFT JOIN sent AS old ON "
            "new.kind = 'update_postimage' AND old.kind = 'update_preimage' AND old.lsn = new.lsn AND "
            "old.seq = new.seq\nWHERE new.f = 1"
        )
        keys = ", ".join(f"{each} AS r_{each}" for each in self._key)
        here = ", ".join(f"{each} AS w_{each}" for each in self._key)
        back = ", ".join(
            [*(f"walk.r_{each}" for each in self._key), *(f"lives.p_{each}" for each in self._key)]
        )
        on = " AND ".join([f"lives.{each} = walk.w_{each}" for each in self._key])
        walk = (
            f"SELECT {keys}, {here}, life AS w_life, 0 AS far FROM newest WHERE puts\nUNION ALL\n"
            f"SELECT {back}, lives.p_life, walk.far + 1 FROM walk JOIN lives ON {on} AND lives.life = walk.w_life\n"
            "WHERE lives.p_life IS NOT NULL"
        )
        # Not with aggregates: those of DuckDB make 0.0 of -0.0.
        group = ", ".join(f"walk.r_{each}" for each in self._key)
        window = f"PARTITION BY {group} ORDER BY walk.far DESC ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
        roots = [f"first_value(walk.w_{each}) OVER ({window}) AS o_{each}" for each in self._key]
        values = [f"{self._dialect.last_known(f'lives.{each}', window)} AS {each}" for each in sent]
        steps = (
            f"SELECT {', '.join([group, 'walk.far', *roots, *values])}\n"
            f"FROM walk JOIN lives ON {on} AND lives.life = walk.w_life"
        )
        origins = [("steps", steps), ("origins", "SELECT * FROM steps WHERE far = 0")]
        return [("lives", lives), ("walk", walk), *origins]

    def _marks(self) -> str:
        """The names of the columns whose value has no Arrow form. A value takes this along from where it is."""
        dialect, cases = self._dialect, []
        for name, short in self._short.items():
            marked = dialect.has("newest.marks", name)
            if name in self._seen.unsent:
                marked = (
                    f"CASE WHEN origins.s_{short} IS NOT NULL THEN origins.s_{short}.u "
                    f"ELSE {dialect.has('base.marks', name)} END"
                )
            cases.append(f"CASE WHEN {marked} THEN {dialect.text(name)} END")
        return dialect.those(cases)


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _has_floats(kind.value_type)
    if pa.types.is_struct(kind):
        return any(_has_floats(field.type) for field in kind)
    return bool(pa.types.is_floating(kind))

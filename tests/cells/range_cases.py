"""Values of ranges, multiranges and points, and the SQL that makes a server store them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from cells.scalar_cases import CASES, Case
from support import pg


@dataclass(frozen=True)
class RangeCase:
    """A range type, and the case of its bounds."""

    bounds: Case

    def values(self, version: int, rng: random.Random) -> list[str | None]:
        """Range literals: every bound alone and with itself."""
        singles = [quoted(value) for value in self.bounds.values_for(version, rng) if len(value) < 200]
        literals: list[str | None] = [None, "empty", "(,)"]
        for number, value in enumerate(singles):
            literals += [f"[{value},{value}]", f"[{value},)", f"(,{value}{'])'[number % 2]}"]
        return literals


def quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '""') + '"'


RANGES = {
    "int4range": RangeCase(CASES["int4"]),
    "int8range": RangeCase(CASES["int8"]),
    "numrange": RangeCase(CASES["numeric"]),
    "tsrange": RangeCase(CASES["timestamp"]),
    "tstzrange": RangeCase(CASES["timestamptz"]),
    "daterange": RangeCase(CASES["date"]),
    "textrange": RangeCase(CASES["text"]),
    "floatrange": RangeCase(CASES["float8"]),
}
MULTIRANGES = {name: name.replace("range", "multirange") for name in RANGES}
POINTS = [
    "(0,0)", "(-0,1)", "(1.5,-2.25)", "(NaN,Infinity)", "(-Infinity,1e300)", "(5e-324,1.7976931348623157e308)", "(0.1,1e23)",
]  # fmt: skip


def fill(slot: pg.Slot, name: str, values: list[str | None], version: int) -> None:
    """Ranges, arrays of them, multiranges of each one, of what is around it, and arrays of those."""
    slot.execute(f"CREATE TABLE v_{name} (id int PRIMARY KEY, v {name})")
    with slot.connection.cursor() as cursor:
        for number, value in enumerate(values):
            # Some are no range: the largest integer has no successor that an exclusive bound could be.
            try:
                cursor.execute(f"INSERT INTO v_{name} VALUES (%s, %s)", (number, value))
            except slot.connection.DataError:
                continue
    slot.execute(
        f"CREATE TABLE a_{name} (id int PRIMARY KEY, v {name}[])",
        f"INSERT INTO a_{name} VALUES (0, NULL), (1, '{{}}'), (2, '{{NULL}}')",
        f"INSERT INTO a_{name} SELECT 10 + id % 7, array_agg(v ORDER BY id) FROM v_{name} GROUP BY 1",
        f"INSERT INTO a_{name} SELECT 100 + id, ARRAY[v] FROM v_{name}",
    )
    if version < 14:
        return
    multi = MULTIRANGES[name]
    slot.execute(
        f"CREATE TABLE m_{name} (id int PRIMARY KEY, v {multi})",
        f"INSERT INTO m_{name} VALUES (0, NULL), (1, '{{}}')",
        f"INSERT INTO m_{name} SELECT 100 + id, {multi}(v) FROM v_{name} WHERE v IS NOT NULL",
        f"INSERT INTO m_{name} SELECT 1000 + id, {multi}(v) + {multi}(w) FROM (SELECT id, v, lag(v, 3) OVER (ORDER BY id) AS w"
        f" FROM v_{name} WHERE v IS NOT NULL) AS p WHERE w IS NOT NULL",
        f"CREATE TABLE ma_{name} (id int PRIMARY KEY, v {multi}[])",
        f"INSERT INTO ma_{name} VALUES (0, NULL), (1, '{{}}'), (2, '{{NULL}}')",
        f"INSERT INTO ma_{name} SELECT 10 + id % 7, array_agg(v ORDER BY id) FROM m_{name} GROUP BY 1",
    )

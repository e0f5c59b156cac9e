"""Random SQL statements from a seed, for a few tables with every replica identity."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from typing import Any

from support import pg

# Values of `big` are stored out of line. The server does not send them again unless they change.
SCHEMA = """
    CREATE TABLE {0}_key (id int PRIMARY KEY, n int, t text, big text);
    CREATE TABLE {0}_whole (a int, t text, big text);
    CREATE TABLE {0}_index (id int, code int NOT NULL UNIQUE, t text, big text);
    ALTER TABLE {0}_whole REPLICA IDENTITY FULL;
    ALTER TABLE {0}_index REPLICA IDENTITY USING INDEX {0}_index_code_key;
    ALTER TABLE {0}_key ALTER big SET STORAGE EXTERNAL;
    ALTER TABLE {0}_whole ALTER big SET STORAGE EXTERNAL;
    ALTER TABLE {0}_index ALTER big SET STORAGE EXTERNAL
"""
TEXTS = ["", "NULL", "a\tb", "\\N", "é€😀", "it's", 'q"q', "{}", "x" * 300]


class Workload:
    """The names of its tables begin with `prefix`. One statement inserts at most `rows` rows."""

    def __init__(self, prefix: str, seed: str, version: int, rows: int = 5) -> None:
        self.rng = random.Random(seed)
        self.prefix, self.version, self.rows = prefix, version, rows
        self.next_id = 1
        self.next_column = 1
        self.truncates = version >= 11  # older servers do not send them
        self.added: dict[str, list[str]] = {"key": [], "whole": [], "index": []}

    @property
    def schema(self) -> str:
        return SCHEMA.format(self.prefix)

    @property
    def tables(self) -> list[str]:
        return [f"{self.prefix}_{kind}" for kind in self.added]

    def transactions(self, count: int) -> Iterator[pg.Statement]:
        for _ in range(count):
            yield from self.transaction()

    def transaction(self, end: str | None = None) -> Iterator[pg.Statement]:
        """A transaction with savepoints, some rolled back, and DDL. Ends with `end`, by default COMMIT or ROLLBACK."""
        # A rollback also undoes changes of column names.
        before = {kind: list(names) for kind, names in self.added.items()}
        end = end or self.rng.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"])
        yield "BEGIN"
        for _ in range(self.rng.randint(1, 4)):
            if self.rng.random() < 0.4:
                at_savepoint = {kind: list(names) for kind, names in self.added.items()}
                yield "SAVEPOINT s"
                yield from self.work()
                if self.rng.random() < 0.5:
                    yield "ROLLBACK TO s"
                    self.added = at_savepoint
                yield "RELEASE s"
            else:
                yield from self.work()
        yield end
        if end == "ROLLBACK":
            self.added = before

    def work(self) -> Iterator[pg.Statement]:
        for _ in range(self.rng.randint(1, 4)):
            yield from self.statement()

    def statement(self) -> Iterator[pg.Statement]:
        rng, kind = self.rng, self.rng.choice(list(self.added))
        table = f"{self.prefix}_{kind}"
        key = {"key": "id", "whole": "a", "index": "code"}[kind]
        some = f"WHERE {key} % 3 = {rng.randrange(3)}"
        choice = rng.randrange(20)
        if choice < 6:
            yield self.insert(kind, table)
        elif choice < 8:
            yield self.copy(kind, table)
        elif choice < 12:
            yield f"UPDATE {table} SET t = {self.text()} {some}"
        elif choice < 13:
            yield f"UPDATE {table} SET big = repeat(md5(random()::text), {rng.choice([1, 90])}) {some}"
        elif choice < 15:
            yield f"UPDATE {table} SET {key} = {key} + 1000000 {some} AND {key} < 1000000"
        elif choice < 17:
            yield f"DELETE FROM {table} {some} AND {key} % 2 = 0"
        elif choice < 18 and self.truncates and rng.random() < 0.5:
            yield f"TRUNCATE {table}"
        elif choice < 19:
            yield from self.alter(kind, table)
            # The insert shows this version: two changes of columns at once would be ambiguous.
            yield self.insert(kind, table)
        else:
            yield f"ANALYZE {table}"

    def row(self, kind: str) -> list[str | int | None]:
        """Values for the first columns of the table. Ids are never used twice."""
        rng, number = self.rng, self.next_id
        self.next_id += 1
        text, big = rng.choice(TEXTS), rng.choice([None, "b", f"{number} " * 700])
        if kind == "whole":
            return [number % 5, text, big]
        return [number, number if kind == "index" else rng.choice([None, 7]), text, big]

    def insert(self, kind: str, table: str) -> str:
        rows = [self.row(kind) for _ in range(self.rng.randint(1, self.rows))]
        values = ", ".join(f"({', '.join(map(as_sql, row))})" for row in rows)
        return f"INSERT INTO {table} VALUES {values}"

    def copy(self, kind: str, table: str) -> pg.Statement:
        """Several rows in one WAL record."""
        rows = [self.row(kind) for _ in range(self.rng.randint(2, 3 * self.rows))]
        text = "".join("\t".join(map(as_copy, row)) + "\n" for row in rows)
        columns = {"key": "id, n, t, big", "whole": "a, t, big", "index": "id, code, t, big"}[kind]

        def run(connection: Any) -> None:
            with connection.cursor() as cursor:
                cursor.copy_expert(f"COPY {table} ({columns}) FROM STDIN", io.StringIO(text))

        return run

    def text(self) -> str:
        return as_sql(self.rng.choice([*TEXTS, None]))

    def alter(self, kind: str, table: str) -> Iterator[str]:
        added, rng = self.added[kind], self.rng
        choice = rng.randrange(4) if added else 0
        if choice in (0, 1):
            added.append(self.new_column())
            yield f"ALTER TABLE {table} ADD COLUMN {added[-1]} int"
        elif choice == 2:
            yield f"ALTER TABLE {table} DROP COLUMN {added.pop(rng.randrange(len(added)))}"
        else:
            place, name = rng.randrange(len(added)), self.new_column()
            yield f"ALTER TABLE {table} RENAME COLUMN {added[place]} TO {name}"
            added[place] = name

    def new_column(self) -> str:
        self.next_column += 1
        return f"c{self.next_column}"


def as_sql(value: str | int | None) -> str:
    if value is None:
        return "NULL"
    return pg.literal(value) if isinstance(value, str) else str(value)


def as_copy(value: str | int | None) -> str:
    if value is None:
        return "\\N"
    return str(value).replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")

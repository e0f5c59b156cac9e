"""Random commands between two looks, such as some that keep all rows, and some whose changes the stream lacks.

The mirror is killed at some steps. Current tables have the server's rows, and histories give them, too.
"""

from __future__ import annotations

import contextlib
import random
import re
import signal
from pathlib import Path

import psycopg2
import pytest

from pgoutput_fast.demo.servers import Server
from support.mirrors import Place, expect_equal, expect_replayed, opened
from support.repack import repacking

pytestmark = [pytest.mark.exhaustive, pytest.mark.few_servers]

_MADE = (
    "CREATE TABLE wide (id int PRIMARY KEY, n int, note text, p numeric(8, 2) DEFAULT 1.25)",
    "CREATE TABLE short (id int PRIMARY KEY, n int, p numeric(8, 2) DEFAULT 1.25)",
    "CREATE TABLE r (id int PRIMARY KEY, n int, note text, p numeric(8, 2) DEFAULT 1.25) PARTITION BY RANGE (id)",
    "CREATE TABLE r_1 PARTITION OF r FOR VALUES FROM (0) TO (1000000)",
)
# Table -> that of the mirror.
_TABLES = {"wide": "public.wide", "short": "public.short", "r_1": "public.r"}
_PUBLICATIONS = ["FOR ALL TABLES", "FOR TABLE wide, short, r"]
_COMMANDS = [
    ["VACUUM FULL {t}"],
    ["CLUSTER {t} USING {t}_pkey"],
    ["ALTER TABLE {t} SET UNLOGGED", "{change}", "ALTER TABLE {t} SET LOGGED"],
    [
        "BEGIN; ALTER TABLE {t} SET UNLOGGED; {change}; ALTER TABLE {t} SET LOGGED;"
        " ALTER TABLE {t} SET (fillfactor = 70); COMMIT"
    ],
    # A TRUNCATE of `short` hides what SET UNLOGGED does behind it: docs/mirror/concepts.md says so.
    ["TRUNCATE wide", "{change}"],
    ["TRUNCATE r_1", "{change}"],
    ["ALTER TABLE {root} ALTER n TYPE int USING n + 1"],
    ["ALTER TABLE {root} ALTER n TYPE bigint"],
    ["ALTER TABLE {root} ALTER p TYPE numeric(12, 4)"],
    ["ALTER TABLE {root} ALTER p TYPE numeric(20, 6)"],
    ["ALTER TABLE {root} RENAME TO gone", "UPDATE gone SET n = n + 2", "ALTER TABLE gone RENAME TO {name}"],
    ["ALTER TABLE {root} ADD c int DEFAULT 5"],
    ["ALTER TABLE {root} DROP c"],
    ["ALTER TABLE {root} RENAME c TO d"],
    ["ALTER TABLE {root} RENAME d TO c"],
    ["ALTER TABLE {root} ADD d text DEFAULT 'x'"],
    ["ALTER TABLE {root} RENAME n TO k", "ALTER TABLE {root} RENAME k TO n"],
    ["ALTER PUBLICATION mirrored OWNER TO CURRENT_USER"],
    [
        "ALTER PUBLICATION mirrored SET (publish = 'insert')",
        "{change}",
        "ALTER PUBLICATION mirrored SET (publish = 'insert, update, delete, truncate')",
    ],
    [
        "ALTER PUBLICATION mirrored DROP TABLE {root}",
        "{change}",
        "ALTER PUBLICATION mirrored ADD TABLE {root}",
    ],
]
_OF_19 = [
    ["REPACK {t}"],
    ["REPACK (CONCURRENTLY) {t}"],
    ["ALTER PUBLICATION mirrored SET ALL TABLES, ALL SEQUENCES"],
    ["ALTER PUBLICATION mirrored SET ALL TABLES"],
    [
        "ALTER PUBLICATION mirrored SET ALL TABLES EXCEPT (TABLE {root})",
        "{change}",
        "ALTER PUBLICATION mirrored SET ALL TABLES",
    ],
]
# What a user who trusts wider columns has stated not to do.
_DISTRUSTED = re.compile("USING n|UNLOGGED|TRUNCATE r_1")

_HISTORY, _MERGE = "pgoutput_fast.mirror.follow.history", "pgoutput_fast.merge.local"
_STEPS = [
    [module, name, sign * number]
    for module, name in (
        (_HISTORY, "AppendTable.commit"),
        (_MERGE, "LocalMerge.apply_parts"),
        ("pgoutput_fast.mirror.state.mirror_state", "MirrorState.set_table"),
    )
    for number in (1, 2, 3)
    for sign in (1, -1)
]


def _kill(place: Place, dice: random.Random, *, trusts: bool) -> None:
    """Mirrors in a process that is killed at a step, if it takes it."""
    process = place._process(*(["--trust-widening"] if trusts else []), kill=dice.choice(_STEPS), limits={})
    _, said = process.communicate(timeout=300)
    assert process.returncode in (0, -signal.SIGKILL), said


@pytest.mark.parametrize("trusts", [False, True], ids=["", "trusts"])
@pytest.mark.parametrize("publication", _PUBLICATIONS)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost(server: Server, tmp_path: Path, publication: str, seed: int, trusts: bool) -> None:
    if server.version < 15:
        pytest.skip("the statistics of earlier servers are not asked")
    dice = random.Random(seed)
    commands = _COMMANDS + (3 * _OF_19 if server.version >= 19 else [])
    if trusts:
        commands = [each for each in commands if not _DISTRUSTED.search("; ".join(each))]
    more = {"trust_widening": trusts}
    with opened(server, tmp_path) as place:
        database, done = place.database, []

        def change(table: str) -> str:
            key = len(done) * 10 + dice.randrange(10)
            return dice.choice(
                [
                    f"INSERT INTO {table} VALUES ({key}, {key}) ON CONFLICT DO NOTHING",
                    f"UPDATE {table} SET n = n + 1",
                    f"DELETE FROM {table} WHERE id % 3 = {key % 3}",
                ]
            )

        database.execute(
            *_MADE, f"CREATE PUBLICATION mirrored {publication} WITH (publish_via_partition_root)"
        )
        place.run(**more)
        for _ in range(5):
            if server.version >= 19 and dice.random() < 0.5:
                # Nothing waits for a load now: it would wait for the transaction of REPACK.
                with repacking(database, dice.choice(list(_TABLES))):
                    place.run(**more)
            for _ in range(dice.randint(2, 6)):
                table = dice.choice(list(_TABLES))
                for each in [["{change}"], dice.choice(commands)]:
                    for form in each:
                        root = _TABLES[table]
                        name = root.removeprefix("public.")
                        statement = form.format(t=table, root=root, name=name, change=change(table))
                        done.append(statement)
                        # Such as SET UNLOGGED of a table that the publication names.
                        with contextlib.suppress(psycopg2.Error):
                            database.execute(statement)
            for step in range(2):
                # A column becomes wider with the next change.
                changes = (
                    f"INSERT INTO {table} VALUES ({100_000 + 2 * len(done) + step}, 1)" for table in _TABLES
                )
                database.execute(*(changes if trusts else ()))
                if dice.random() < 0.5:
                    _kill(place, dice, trusts=trusts)
                place.run(**more)
            try:
                for table in _TABLES.values():
                    expect_equal(place, table)
                    expect_replayed(place, table, ["id"], loaded=True)
            except AssertionError as problem:
                raise AssertionError(f"seed {seed}: {done}") from problem

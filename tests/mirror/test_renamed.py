"""Tables that get another name or schema go on without a load, unless another table has a claim to one of the names."""

from __future__ import annotations

from typing import Any

import pytest

from pgoutput_fast.mirror import at, fresh, verify
from support.ducklake import lakes
from support.mirrors import (
    Place,
    current_of,
    expect_equal,
    expect_replayed,
    loads_of,
    mirrored_rows,
    place,
    rows_of,
)

__all__ = ["place"]

# Commands, with runs of the mirror in between; the name of the table after them; and how often it is loaded.
_CASES: dict[str, tuple[list[str], str, int]] = {
    "plain": (["ALTER TABLE t RENAME TO u", "{change u}", "run", "{change u}"], "u", 1),
    "quiet": (["ALTER TABLE t RENAME TO u", "run", "{change u}"], "u", 1),
    "schema": (["ALTER TABLE t SET SCHEMA elsewhere", "{change elsewhere.t}"], "elsewhere.t", 1),
    "within": (
        ["BEGIN; {change t}; ALTER TABLE t RENAME TO u; {change u}; COMMIT", "{change u}"],
        "u",
        1,
    ),
    "rolled_back": (["BEGIN; ALTER TABLE t RENAME TO u; {change u}; ROLLBACK", "{change t}"], "t", 1),
    "there_and_back": (
        ["{change t}", "ALTER TABLE t RENAME TO u", "{change u}", "ALTER TABLE u RENAME TO t", "{change t}"],
        "t",
        1,
    ),
    "back_later": (
        [
            "ALTER TABLE t RENAME TO u",
            "{change u}",
            "run",
            "{change u}",
            "ALTER TABLE u RENAME TO t",
            "{change t}",
        ],
        "t",
        1,
    ),
    "chain": (
        [
            "ALTER TABLE t RENAME TO u",
            "{change u}",
            "run",
            "{change u}",
            "ALTER TABLE u RENAME TO v",
            "{change v}",
            'ALTER TABLE v RENAME TO "W w"',
            '{change "W w"}',
        ],
        '"W w"',
        1,
    ),
    "columns": (
        [
            "ALTER TABLE t RENAME TO u",
            "ALTER TABLE u ADD c int DEFAULT 5",
            "{change u}",
        ],
        "u",
        1,
    ),
    "altered": (
        ["ALTER TABLE t RENAME TO u", "run", "ALTER TABLE u ALTER v TYPE text USING v || 'x'"],
        "u",
        2,
    ),
    "altered_at_once": (
        ["ALTER TABLE t RENAME TO u", "ALTER TABLE u ALTER v TYPE text USING v || 'x'"],
        "u",
        2,
    ),
    "rejected": (
        [
            "ALTER TABLE t ADD at date",
            "ALTER TABLE t RENAME TO u",
            "UPDATE u SET at = 'infinity' WHERE id = 2",
            "{change u}",
            "UPDATE u SET at = NULL WHERE id = 2",
        ],
        "u",
        1,
    ),
}
_numbers = iter(range(100, 10**6))


def _run(place: Place, commands: list[str], **more: Any) -> None:
    for command in commands:
        if command == "run":
            place.run(**more)
            continue
        while "{change " in command:
            head, _, rest = command.partition("{change ")
            name, _, tail = rest.partition("}")
            k = next(_numbers)
            change = (
                f"INSERT INTO {name} (id) VALUES ({k}); UPDATE {name} SET n = {k} WHERE id IN (3, {k - 2})"
            )
            command = f"{head}{change}; DELETE FROM {name} WHERE id = {k - 3}{tail}"
        place.database.execute(command)


def _make(place: Place, *names: str) -> None:
    place.database.execute("CREATE SCHEMA elsewhere")
    for name in names:
        place.database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v text, n int)",
            f"INSERT INTO {name} SELECT g, '{name}' FROM generate_series(1, 5) g",
        )
    place.database.execute("CREATE PUBLICATION mirrored FOR ALL TABLES")


def _expect_rows(place: Place, table: str, on_server: str, **more: Any) -> None:
    names, expected = rows_of(place.database, on_server)
    rows = current_of(place.target, table, format=more.get("format", "delta"))
    assert mirrored_rows(rows, names) == expected


@pytest.mark.slow
@pytest.mark.parametrize("case", _CASES)
def test_a_table_that_is_renamed(place: Place, case: str) -> None:
    commands, on_server, loads = _CASES[case]
    _make(place, "t")
    place.run()
    first = at(place.target)
    _run(place, commands)
    for _ in range(2):
        place.run()
        assert set(at(place.target)) == set(first)
        assert loads_of(place, "public.t") == loads
        _expect_rows(place, "public.t", on_server)
    (verified,) = verify(place.target, place.database.dsn)
    assert verified.equal, verified
    with place.mirror() as mirror:
        (state,) = mirror.status()
        qualified = on_server if "." in on_server else f"public.{on_server}"
        assert state.renamed == (None if on_server == "t" else qualified)
        assert (f"({qualified} on the server)" in str(state)) == (on_server != "t")
        if case == "rejected":
            assert state.rejects == 1
        mirror.reload("public.t")
        mirror.run(until_lsn="now")
        place.expect_no_errors(mirror)
    _expect_rows(place, "public.t", on_server)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["iceberg", "duckdb", *lakes(())])
def test_other_formats(place: Place, format: str) -> None:
    _make(place, "t")
    place.run(format=format)
    _run(place, _CASES["chain"][0], format=format)
    place.run(format=format)
    _expect_rows(place, "public.t", '"W w"', format=format)
    assert loads_of(place, "public.t") == 1


# What is done to tables t and u, and the tables then: {name: how often they were loaded}.
_CLAIMED: dict[str, tuple[list[str], dict[str, int]]] = {
    "swapped": (
        [
            "BEGIN; ALTER TABLE t RENAME TO x; ALTER TABLE u RENAME TO t; ALTER TABLE x RENAME TO u; COMMIT",
            "{change t}",
            "{change u}",
        ],
        {"t": 2, "u": 2},
    ),
    "swapped_within": (
        [
            "BEGIN; {change t}; ALTER TABLE t RENAME TO x; {change x}; ALTER TABLE u RENAME TO t; {change t};"
            " ALTER TABLE x RENAME TO u; {change u}; COMMIT"
        ],
        {"t": 2, "u": 2},
    ),
    "swapped_and_back": (
        [
            "BEGIN; ALTER TABLE t RENAME TO x; ALTER TABLE u RENAME TO t; ALTER TABLE x RENAME TO u; COMMIT",
            "{change t}",
            "BEGIN; ALTER TABLE t RENAME TO x; ALTER TABLE u RENAME TO t; ALTER TABLE x RENAME TO u; COMMIT",
            "{change t}",
        ],
        {"t": 2, "u": 2},
    ),
    "swapped_in_two_runs": (
        [
            "ALTER TABLE t RENAME TO x",
            "{change x}",
            "run",
            "ALTER TABLE u RENAME TO t",
            "{change t}",
            "run",
            "ALTER TABLE x RENAME TO u",
            "{change u}",
        ],
        {"t": 2, "u": 2},
    ),
    "replaced": (
        [
            "{change t}",
            "ALTER TABLE t RENAME TO t_old",
            "{change t_old}",
            "CREATE TABLE t (id int PRIMARY KEY, v text, n int)",
            "{change t}",
            "{change t_old}",
        ],
        {"t": 2, "u": 1, "t_old": 1},
    ),
    "replaced_later": (
        [
            "ALTER TABLE t RENAME TO t_old",
            "{change t_old}",
            "run",
            "CREATE TABLE t (id int PRIMARY KEY, v int, n int)",
            "{change t}",
            "{change t_old}",
        ],
        {"t": 2, "u": 1, "t_old": 1},
    ),
    "named_as_dropped": (["DROP TABLE u", "ALTER TABLE t RENAME TO u", "{change u}"], {"u": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("in_step", [False, True])
@pytest.mark.parametrize("case", _CLAIMED)
def test_a_name_that_another_table_has(place: Place, case: str, in_step: bool) -> None:
    """Then each table is loaded under its name."""
    commands, loads = _CLAIMED[case]
    _make(place, "t", "u")
    place.run(in_step=in_step)
    with place.mirror(in_step=in_step) as mirror:
        for command in commands:
            if command == "run":
                mirror.run(until_lsn="now")
            else:
                _run(place, [command])
        for _ in range(3):
            mirror.run(until_lsn="now")
        states = {each.table: each for each in mirror.status()}
    assert {name for name, each in states.items() if each.state == "follow"} == {
        f"public.{name}" for name in loads
    }
    assert {each.renamed for each in states.values()} == {None}
    for name, number in loads.items():
        expect_equal(place, f"public.{name}")
        if name == "t" and case == "replaced_later":  # a text became an integer, so its history has ended
            continue
        assert loads_of(place, f"public.{name}") == number
        if not case.startswith("swapped"):  # before the loads, each history has changes of both tables
            expect_replayed(place, f"public.{name}", ["id"])
        names, expected = rows_of(place.database, name)
        assert mirrored_rows(fresh(place.target, f"public.{name}"), names) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "kill",
    [
        ["pgoutput_fast.mirror.follow.history", "AppendTable.commit", 1],
        ["pgoutput_fast.mirror.follow.history", "AppendTable.commit", 2],
        ["pgoutput_fast.merge.local", "LocalMerge.apply_parts", 1],
        ["pgoutput_fast.merge.local", "LocalMerge.apply_parts", 2],
        ["pgoutput_fast.mirror.follow.registry", "MirroredTable.remember", 1],
        ["pgoutput_fast.mirror.state.mirror_state", "MirrorState.set_progress", 1],
    ],
    ids=lambda kill: f"{kill[1]} {kill[2]}",
)
def test_killed_when_a_table_is_renamed(place: Place, kill: list[Any]) -> None:
    _make(place, "t", "other")
    place.run()
    _run(place, ["{change other}"])
    _run(place, [each for each in _CASES["chain"][0] if each != "run"])
    place.killed(kill)
    place.run()
    _expect_rows(place, "public.t", '"W w"')
    assert loads_of(place, "public.t") == 1
    expect_equal(place, "public.other")


@pytest.mark.slow
def test_a_renamed_table_is_repaired(place: Place) -> None:
    _make(place, "t")
    place.run()
    _run(place, ["ALTER TABLE t RENAME TO u", "{change u}", "run"])
    place.drop()
    _run(place, ["{change u}"])
    with place.mirror() as mirror:
        (repaired,) = mirror.repair()
        assert repaired.loaded is None
        assert repaired.updated > 0
        mirror.run(until_lsn="now")
    _expect_rows(place, "public.t", "u")
    assert loads_of(place, "public.t") == 2  # the repair's rows also have no ordinal

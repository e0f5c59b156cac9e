"""Partitions that come and go between two checks of the catalogs. Their changes come as those of a root."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pgoutput_fast.mirror.load import source
from pgoutput_fast.mirror.service import run
from support.forms import and_slow
from support.mirrors import Place, expect_equal, loads_of, place

__all__ = ["place"]

_CREATE = "CREATE TABLE p PARTITION OF root FOR VALUES FROM (200) TO (300)"
_ATTACH = "ALTER TABLE root ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})"
_FILL = "INSERT INTO root SELECT n, 'y' FROM generate_series(200, 299) n"
_DETACH = "ALTER TABLE root DETACH PARTITION {}"
_MOVE = "UPDATE root SET id = id + 200"
# What happens between two checks -> the loads of root, of a table that may be its partition, and of another such root.
_CASES = {
    (_CREATE, _FILL, "DROP TABLE p"): (2, 1, 1),
    (_CREATE, _FILL): (1, 1, 1),
    (_CREATE, _FILL, _DETACH.format("p"), "DELETE FROM p", _ATTACH.format("p", 200, 300)): (2, 1, 1),
    (_ATTACH.format("mid", 300, 400), "UPDATE root SET m = 'y'", _DETACH.format("mid")): (2, 1, 2),
    (_ATTACH.format("other", 100, 200), "UPDATE root SET m = 'y'", _DETACH.format("other")): (2, 2, 1),
    (_CREATE, _MOVE, _DETACH.format("p"), "INSERT INTO root VALUES (2, 'y')"): (2, 1, 1),
    (f"BEGIN; {_CREATE}; {_FILL}; {_DETACH.format('p')}; COMMIT", "DROP TABLE p"): (2, 1, 1),
    (f"BEGIN; {_CREATE}; {_FILL}; ROLLBACK", "INSERT INTO root VALUES (2, 'y')"): (1, 1, 1),
    (_CREATE, _FILL, "TRUNCATE p", "INSERT INTO root VALUES (200, 'x')"): (2, 1, 1),
    (_CREATE, _FILL, "TRUNCATE p"): (2, 1, 1),
    (_CREATE, "TRUNCATE p"): (1, 1, 1),
    ("CREATE TABLE p (LIKE root)", _ATTACH.format("p", 200, 300)): (1, 1, 1),
    ("TRUNCATE other, root",): (2, 1, 1),
    (
        "CREATE TABLE mid_new PARTITION OF mid FOR VALUES FROM (400) TO (500)",
        _ATTACH.format("mid", 300, 500),
        "INSERT INTO root VALUES (401, 'y')",
        _DETACH.format("mid"),
    ): (2, 1, 2),
}
_FAST = 4


def _make(place: Place) -> None:
    place.database.execute(
        "CREATE TYPE mood AS ENUM ('x', 'y')",  # described between the root and the partition
        "CREATE TABLE root (id int PRIMARY KEY, m mood) PARTITION BY RANGE (id)",
        "CREATE TABLE first PARTITION OF root FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE other (id int PRIMARY KEY, m mood)",
        "CREATE TABLE mid (id int PRIMARY KEY, m mood) PARTITION BY RANGE (id)",
        "CREATE TABLE mid_leaf PARTITION OF mid FOR VALUES FROM (300) TO (400)",
        "INSERT INTO root VALUES (1, 'x')",
        "INSERT INTO other VALUES (101, 'x')",
        "INSERT INTO mid VALUES (301, 'x')",
        "CREATE PUBLICATION mirrored FOR ALL TABLES WITH (publish_via_partition_root)",
    )


def _unchecked(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The changes come, and the mirror is killed before the check."""
    with monkeypatch.context() as patch:
        patch.setattr(run, "check_publications", lambda tables, server, missing, *_: missing)
        place.run()


def _behind(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check comes before the changes, as at the beginning of a run."""


@pytest.mark.parametrize("when", and_slow([_behind], [(_unchecked,)]))
@pytest.mark.parametrize(
    "commands", and_slow(list(_CASES)[:_FAST], [(each,) for each in list(_CASES)[_FAST:]])
)
def test_all_cases(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    commands: tuple[str, ...],
    when: Callable[[Place, pytest.MonkeyPatch], None],
) -> None:
    _make(place)
    place.run()
    place.database.execute("INSERT INTO root VALUES (3, 'y')", *commands)
    when(place, monkeypatch)
    place.run()
    place.run()
    tables = [f"public.{each}" for each in ("root", "other", "mid")]
    expect_equal(place, *tables)
    assert tuple(loads_of(place, each) for each in tables) == _CASES[commands]


@pytest.mark.slow
@pytest.mark.parametrize("is_away", [False, True])
def test_attached_again(place: Place, monkeypatch: pytest.MonkeyPatch, is_away: bool) -> None:
    """A check has seen that it was empty, and asks again when the stream is further. Then it is another attachment."""
    _make(place)
    place.database.execute("DROP PUBLICATION mirrored")
    place.database.execute("CREATE PUBLICATION mirrored FOR TABLE root WITH (publish_via_partition_root)")
    place.run()
    place.database.execute("CREATE TABLE p (LIKE root INCLUDING ALL)", _ATTACH.format("p", 200, 300))
    check, checks = run.check_publications, 0

    def once(*arguments: Any) -> set[str]:
        nonlocal checks
        checks += 1
        return check(*arguments) if checks == 1 else set()

    with monkeypatch.context() as patch:
        patch.setattr(run, "check_publications", once)
        place.run()
    if is_away:
        place.database.execute(_DETACH.format("p"), "INSERT INTO root VALUES (2, 'y')")
        place.run()
        place.database.execute(_ATTACH.format("p", 200, 300))
    else:
        place.database.execute("INSERT INTO root VALUES (2, 'y')")
        _unchecked(place, monkeypatch)
    emptied = (_DETACH.format("p"), "DELETE FROM p", _ATTACH.format("p", 200, 300))
    place.database.execute("INSERT INTO root VALUES (201, 'y')", *emptied)
    for _ in range(3):
        place.run()
    expect_equal(place, "public.root")
    assert loads_of(place, "public.root") == 2


@pytest.mark.slow
def test_a_table_that_was_published_as_its_root(place: Place) -> None:
    _make(place)
    place.database.execute(
        "DROP PUBLICATION mirrored",
        _ATTACH.format("mid", 300, 400),
        "CREATE PUBLICATION mirrored FOR TABLE mid WITH (publish_via_partition_root)",
    )
    place.run()
    place.database.execute(
        "ALTER PUBLICATION mirrored ADD TABLE root",
        "INSERT INTO root VALUES (302, 'y')",
        "ALTER PUBLICATION mirrored DROP TABLE root",
    )
    place.run()
    place.run()
    expect_equal(place, "public.mid")


@pytest.mark.slow
def test_a_partition_that_comes_and_goes_during_a_load(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The load has known it before. Its ranges have not."""
    monkeypatch.setattr(source, "_LEAST_BYTES", 8 * 8192)
    limits = {"pgoutput_fast.mirror.load.source": {"_LEAST_BYTES": 8 * 8192}}
    place.database.execute(
        "CREATE TABLE root (id int PRIMARY KEY, m text, note text) PARTITION BY RANGE (id)",
        "CREATE TABLE first PARTITION OF root FOR VALUES FROM (0) TO (5000)",
        _ATTACH.format("p", 5000, 6000).replace(
            "ALTER TABLE root ATTACH PARTITION p", "CREATE TABLE p PARTITION OF root"
        ),
        "INSERT INTO root SELECT g, 'x', repeat('x', 700) FROM generate_series(1, 2200) g",
        "CREATE PUBLICATION mirrored FOR TABLE root WITH (publish_via_partition_root)",
    )
    place.run()
    place.database.execute(_DETACH.format("p"))
    place.killed(["pgoutput_fast.mirror.load.ranges", "LoadedRanges.add", -6], limits=limits)
    place.database.execute(
        _ATTACH.format("p", 5000, 6000),
        "INSERT INTO root SELECT n, 'y', 'y' FROM generate_series(5000, 5099) n",
        _DETACH.format("p"),
    )
    place.run()
    place.run()
    expect_equal(place, "public.root")

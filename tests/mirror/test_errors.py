"""What stands in the way of a mirror: errors that say what is wrong and what to do."""

from __future__ import annotations

import json
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from pgoutput_fast.capture import create_slot, drop_slot, find_slot, plugin_options
from pgoutput_fast.cli.main import main
from pgoutput_fast.mirror import (
    Mirror,
    MirrorBusyError,
    MirrorError,
    SlotLostError,
    at,
    fresh,
    points,
    status_of,
)
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.postgres.walsender import Walsender
from pgoutput_fast.storage.stores import open_store
from support import pg
from support.capturing import drop_when_free, freed, wait_until
from support.forms import and_slow
from support.mirrors import Following, Place, expect_equal, opened, place, recorded

__all__ = ["place"]


@pytest.fixture
def small(place: Place) -> Place:
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    return place


def _expect_nothing(place: Place) -> None:
    assert find_slot(place.database.dsn, place.slot) is None
    assert not (place.target / "_mirror" / "beginning.json").exists()


def test_a_publication_that_is_not_there(small: Place) -> None:
    with (
        Mirror(small.database.dsn, small.slot, ["wrong"], small.target) as mirror,
        pytest.raises(MirrorError, match=r"the mirror cannot begin: .*wrong.*CREATE PUBLICATION"),
    ):
        mirror.run(until_lsn="now")
    _expect_nothing(small)
    small.run()
    with (
        Mirror(small.database.dsn, small.slot, ["wrong"], small.target) as mirror,
        pytest.raises(MirrorError, match="its publications are mirrored, not wrong"),
    ):
        mirror.run(until_lsn="now")


def test_a_start_that_fails_leaves_nothing(small: Place, tmp_path: Path) -> None:
    """What the mirror made goes again, and what was there stays."""
    target = tmp_path / "above" / "lake"
    away = f"{small.database.dsn} port=1"
    for dsn, publication in ((small.database.dsn, "wrong"), (away, "mirrored")):
        with Mirror(dsn, small.slot, [publication], target) as mirror, pytest.raises(Exception, match=r"\w"):
            mirror.run(until_lsn="now")
        assert list(tmp_path.iterdir()) == []
    (target / "_mirror").mkdir(parents=True)
    (target / "mine").write_text("mine")
    (target / "_mirror" / "mine").write_text("mine")
    with (
        Mirror(small.database.dsn, small.slot, ["wrong"], target) as mirror,
        pytest.raises(MirrorError, match="the mirror cannot begin"),
    ):
        mirror.run(until_lsn="now")
    found = sorted(str(path.relative_to(target)) for path in target.rglob("*"))
    assert found == ["_mirror", "_mirror/mine", "mine"]
    _expect_nothing(small)
    small.run()
    assert (small.target / "_mirror" / "lock").exists()


@pytest.mark.slow
def test_relative_segments(small: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of the directory in which the mirror was made, wherever it works later."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with small.mirror(segments="segments") as mirror:
        monkeypatch.chdir(tmp_path / "elsewhere")
        mirror.run(until_lsn="now")
    small.database.execute("INSERT INTO t VALUES (2)")
    small.run(segments="../segments")
    expect_equal(small, "public.t")
    assert list((tmp_path / "elsewhere").iterdir()) == []
    known = MirrorState(open_store(small.target)).beginning()
    assert known is not None
    assert known.segments == str(tmp_path / "segments")


def test_a_role_without_rights(small: Place) -> None:
    role = f"{small.database.name}_role"
    small.database.execute(f"CREATE ROLE {role} LOGIN")
    dsn = re.sub(r"user=\S+", f"user={role}", small.database.dsn)
    try:
        with Mirror(dsn, small.slot, ["mirrored"], small.target) as mirror:
            small.database.execute(
                "CREATE TABLE u (id int PRIMARY KEY)", "ALTER PUBLICATION mirrored ADD TABLE u"
            )
            # One sentence for all tables, which can be run.
            advice = rf"\. Run GRANT SELECT ON public\.t, public\.u TO {role}\."
            with pytest.raises(
                MirrorError, match=r"public\.t, public\.u: the user has no right to read: .*" + advice
            ) as refused:
                mirror.run(until_lsn="now")
            # All that is missing, at once.
            assert f"Run ALTER ROLE {role} REPLICATION" in str(refused.value)
            small.database.execute(f"GRANT SELECT ON t, u TO {role}")
            with pytest.raises(psycopg2.Error, match=r"(?i)replication") as denied:
                mirror.run(until_lsn="now")
            assert f"Run ALTER ROLE {role} REPLICATION" in str(denied.value.__notes__)
            _expect_nothing(small)
            small.database.execute(f"ALTER ROLE {role} REPLICATION")
            mirror.run(until_lsn="now")
        expect_equal(small, "public.t")
    finally:
        small.database.execute(f"REVOKE ALL ON t, u FROM {role}", f"DROP ROLE {role}")


def test_a_publication_without_tables(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    place.database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION mirrored")
    place.run()
    assert capfd.readouterr().err.count("it has no tables") == 1  # each capture says it
    place.database.execute("ALTER PUBLICATION mirrored ADD TABLE t", "INSERT INTO t VALUES (1)")
    place.run()
    expect_equal(place, "public.t")


def test_a_target_that_nobody_may_write_to(small: Place) -> None:
    with (
        pytest.raises(OSError, match="_mirror") as refused,
        Mirror(small.database.dsn, small.slot, ["mirrored"], "/sys/kernel"),
    ):
        pass
    assert "This process may not write to /sys/kernel. Give it the permission" in str(refused.value.__notes__)


def test_a_target_that_is_a_file(small: Place, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with (
            pytest.raises(NotADirectoryError, match=r"the target .* is a file, or lies below one"),
            Mirror(small.database.dsn, small.slot, ["mirrored"], target),
        ):
            pass
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with (
        pytest.raises(NotADirectoryError, match=r"is a symbolic link to .*nothing, which does not exist"),
        Mirror(small.database.dsn, small.slot, ["mirrored"], tmp_path / "link"),
    ):
        pass


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="only Linux has this directory")
def test_a_target_that_cannot_be_made(small: Place) -> None:
    with (
        pytest.raises(OSError, match="/proc/lake") as caught,
        Mirror(small.database.dsn, small.slot, ["mirrored"], "/proc/lake"),
    ):
        pass
    assert "The target /proc/lake cannot be made: choose a place" in caught.value.__notes__[0]


@pytest.mark.slow
def test_a_second_mirror(small: Place) -> None:
    with small.mirror():
        with (
            pytest.raises(MirrorBusyError, match=r"another process mirrors into .*/lake: stop it first"),
            small.mirror(),
        ):
            pass
        process = small.start("--until", "now")
        _, said = process.communicate(timeout=240)
        assert process.returncode == 1
        assert said.startswith("pgoutput-fast: another process mirrors into")
    mirror = small.mirror()
    with pytest.raises(MirrorError, match="use it in a with block"):
        mirror.run(until_lsn="now")
    small.run()


def test_a_slot_of_somebody_else(small: Place) -> None:
    create_slot(small.database.dsn, small.slot)
    small.database.execute("INSERT INTO t VALUES (2)")
    with small.mirror() as mirror, pytest.raises(MirrorError, match=r"this mirror did not make it.*adopt"):
        mirror.run(until_lsn="now")
    assert find_slot(small.database.dsn, small.slot) is not None
    small.run(adopt=True)
    small.database.execute("INSERT INTO t VALUES (3)")
    small.run()
    expect_equal(small, "public.t")


@pytest.mark.parametrize("adopt", [False, True])
def test_a_slot_of_another_plugin(servers: pg.Servers, tmp_path: Path, adopt: bool) -> None:
    """Nobody is told to adopt it."""
    for version in sorted(servers, reverse=True):
        with opened(servers[version], tmp_path) as place, suppress(psycopg2.errors.UndefinedFile):
            place.database.execute(
                f"SELECT pg_create_logical_replication_slot('{place.slot}', 'test_decoding')",
                "CREATE PUBLICATION mirrored FOR ALL TABLES",
            )
            with (
                place.mirror(adopt=adopt) as mirror,
                pytest.raises(MirrorError, match=r"plugin test_decoding .* Choose another name") as caught,
            ):
                mirror.run(until_lsn="now")
            assert "adopt" not in str(caught.value)
            assert not place.target.exists()
            return
    pytest.skip("no server has the plugin test_decoding")


@pytest.mark.slow
@pytest.mark.parametrize("number", and_slow([signal.SIGTERM], [signal.SIGINT]))
def test_a_first_load_that_is_stopped_names_its_slot(place: Place, number: int) -> None:
    """The slot stays on the server, and keeps WAL. The exit status says that the work is not done."""
    tables = [f"t{n}" for n in range(40)]
    place.database.execute(
        *(f"CREATE TABLE {t} AS SELECT generate_series(1, 20000) id" for t in tables),
        *(f"ALTER TABLE {t} ADD PRIMARY KEY (id)" for t in tables),
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    # The process sends the signal to itself: if this one was late, the first tables would be loaded.
    status, said = place.signalled(number, ["pgoutput_fast.mirror.load.loads", "load_table", 1])
    assert status == 1, said
    last = said.splitlines()[-1]
    assert last.startswith("pgoutput-fast: it was stopped. Tables are still to be loaded (public.t0, ")
    assert "run the mirror again, and it goes on" in last
    assert f"Slot {place.slot} may stay" in last
    assert find_slot(place.database.dsn, place.slot) is not None


@pytest.mark.slow
def test_killed_while_the_first_slot_waits(small: Place) -> None:
    """The server goes on to make the slot, and does not notice that nobody waits for it. The next run ends that."""
    small.database.execute("CREATE TABLE other (id int)")
    slot = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{small.slot}' AND active"
    with small.database.session() as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO other VALUES (1)")
        process = small.start()
        try:
            wait_until(lambda: process.poll() is not None or small.database.execute(slot))
        finally:
            process.kill()
            process.communicate()
        left = small.database.execute(slot)
        assert left
        with small.mirror() as mirror, Following(mirror) as following:
            following.until(lambda: small.database.execute(slot) not in ([], left))
            cursor.execute("COMMIT")
            following.until(lambda: recorded(small.target))
    expect_equal(small, "public.t")


def test_a_slot_that_cannot_be_adopted(small: Place) -> None:
    """It is refused before the load, and the target is not bound to it."""
    elsewhere = small.database.dsn.replace(f"dbname={small.database.name}", "dbname=postgres")
    create_slot(elsewhere, small.slot)
    try:
        with (
            small.mirror(adopt=True) as mirror,
            pytest.raises(MirrorError, match="decodes database postgres, but"),
        ):
            mirror.run(until_lsn="now")
        assert not small.target.exists()
    finally:
        drop_slot(elsewhere, small.slot)


@pytest.mark.parametrize("adopt", and_slow([True], [False]))
def test_the_slot_of_a_standby(small: Place, adopt: bool) -> None:
    small.database.execute(f"SELECT pg_create_physical_replication_slot('{small.slot}')")
    with (
        small.mirror(adopt=adopt) as mirror,
        pytest.raises(MirrorError, match=r"physical slot.*Choose another"),
    ):
        mirror.run(until_lsn="now")
    assert not small.target.exists()
    small.database.execute(f"SELECT pg_drop_replication_slot('{small.slot}')")
    small.run()


def test_a_slot_that_has_a_reader(small: Place) -> None:
    create_slot(small.database.dsn, small.slot)
    with psycopg2.connect(small.database.dsn) as connection:
        options = plugin_options(connection.server_version, ["mirrored"])
    with Walsender(small.database.dsn, small.slot, options):
        with (
            small.mirror(adopt=True) as mirror,
            pytest.raises(MirrorError, match=r"cannot be adopted now: process \d+ .* has one reader"),
        ):
            mirror.run(until_lsn="now")
        assert not small.target.exists()
    freed(small.database.dsn, small.slot)
    small.run(adopt=True)


def test_a_slot_that_is_gone(small: Place) -> None:
    small.run()
    drop_when_free(small.database.dsn, small.slot)
    with (
        small.mirror() as mirror,
        pytest.raises(SlotLostError, match=rf"slot {small.slot} is gone: .*--repair"),
    ):
        mirror.run(until_lsn="now")


def test_another_slot_for_the_same_target(small: Place) -> None:
    small.run()
    with (
        Mirror(small.database.dsn, "other", ["mirrored"], small.target) as mirror,
        pytest.raises(MirrorError, match=f"its slot is {small.slot}, not other. Use another target"),
    ):
        mirror.run(until_lsn="now")


def test_a_target_of_a_format_that_is_gone(small: Place, tmp_path: Path) -> None:
    """Earlier versions had current tables in plain Parquet. The way that the error names works."""
    small.run()
    path = small.target / "_mirror" / "beginning.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": "parquet"}))
    said = (
        r"have the format 'parquet', .* Mirror into a new target with format='delta' .* adopt=True .* or drop"
    )
    with small.mirror() as mirror:
        for task in (
            lambda: mirror.run(until_lsn="now"),
            mirror.repair,
            mirror.status,
            lambda: fresh(small.target, "public.t"),
            lambda: status_of(small.target, small.database.dsn),
        ):
            with pytest.raises(MirrorError, match=said):
                task()
    assert path.exists()
    small.database.execute("INSERT INTO t VALUES (2)")
    small.target = tmp_path / "new"
    freed(small.database.dsn, small.slot)
    small.run(adopt=True)
    expect_equal(small, "public.t")


def test_wrong_arguments(small: Place, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TypeError, match="publications"):
        Mirror("", "s", "p", "t")
    with pytest.raises(
        ValueError, match="format must be one of 'delta', 'iceberg', 'duckdb', 'ducklake', not"
    ):
        Mirror("", "s", ["p"], "t", format="csv")
    with pytest.raises(ValueError, match="seconds must be positive"):
        Mirror("", "s", ["p"], "t", seconds=0)
    with small.mirror() as mirror:
        with pytest.raises(ValueError, match="give 'now'"):
            mirror.run(until_lsn="later")
        with pytest.raises(KeyError, match=r"t is not published: write public\.t"):
            mirror.reload("t")
    assert main(["mirror", "--slot", "s", "--target", "t"]) == 2
    assert capsys.readouterr().err == "pgoutput-fast: this argument is missing: --publication\n"
    with pytest.raises(LookupError, match="has no recorded point: run the mirror"):
        at(small.target)
    with pytest.raises(LookupError, match="has no recorded point: run the mirror"):
        points(small.target)
    assert main(["mirror", "--slot", "s", "--publication", "p", "--target", "t", "--another-source"]) == 2
    assert capsys.readouterr().err == "pgoutput-fast: --another-source is for --repair\n"
    assert main(["mirror", "--slot", "s", "--publication", "p", "--target", ""]) == 2
    assert capsys.readouterr().err == "pgoutput-fast: --target is empty: name a directory or a URI\n"
    assert main(["mirror", "--slot", "To-Lake", "--publication", "p", "--target", "t"]) == 2
    assert capsys.readouterr().err == (
        "pgoutput-fast: slot cannot be 'To-Lake': the name of a slot has 1 to 63 small letters (a to z), digits and "
        "underscores\n"
    )


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"seconds": "1"}, TypeError, "seconds must be a number of seconds, not a str"),
        ({"merge_seconds": "2"}, TypeError, "merge_seconds must be a number of seconds"),
        ({"retry_seconds": -1}, ValueError, "retry_seconds must not be negative"),
        ({"retention": True}, TypeError, "retention must be a Retention or None, not a bool"),
        ({"options": {}}, TypeError, "options must be an Options or None, not a dict"),
        ({"keep_points": 1.5}, TypeError, "keep_points must be a whole number, not a float"),
        ({"keep_points": 0}, ValueError, "keep_points must be at least 1, not 0"),
        ({"threads": 0}, ValueError, "threads must be at least 1, not 0"),
        ({"progress": 3}, TypeError, "progress must be a function or None, not an int"),
        ({"in_step": "no"}, TypeError, "in_step must be True or False, not a str"),
        ({"adopt": None}, TypeError, "adopt must be True or False, not None"),
        ({"storage_options": "x"}, TypeError, "storage_options must be a dict or None, not a str"),
        ({"segments": ""}, ValueError, "segments is empty"),
        ({"target": ""}, ValueError, "target is empty: give a path or a URI"),
    ],
)
def test_arguments_of_a_wrong_type(more: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Mirror("", "s", ["p"], **{"target": "t", **more})
    with (
        pytest.raises(TypeError, match="another_source must be True or False"),
        Mirror("", "s", ["p"], "t") as mirror,
    ):
        mirror.repair(another_source="yes")


def test_damaged_files(small: Place) -> None:
    small.run()
    for name in ("beginning", "progress", "tables/public.t"):
        path = small.target / "_mirror" / f"{name}.json"
        good = path.read_text()
        path.write_text("{")
        with (
            small.mirror() as mirror,
            pytest.raises(ValueError, match=rf"{name}\.json is damaged: restore it"),
        ):
            mirror.run(until_lsn="now")
        path.write_text(good)
    for wrong in (
        {"partitions": {"1": [5, "p"]}},
        {"partitions": {"1/2": 5}},
        {"attached": [1]},
        {"awaited": ["x", []]},
    ):
        path.write_text(json.dumps(json.loads(good) | wrong))
        with pytest.raises(ValueError, match=r"public\.t\.json is damaged: restore it"):
            small.run()
    path.write_text(good)
    (small.target / "_mirror" / "points.json").write_text("{}")
    with pytest.raises(ValueError, match=r"points\.json is damaged: remove it"):
        at(small.target)


# ---- the process ----------------------------------------------------------------------------------------------------


def test_a_process_ends_gracefully(small: Place) -> None:
    """It stops at SIGTERM, and all that it has taken is in the tables."""
    process = small.start()
    try:
        wait_until(lambda: recorded(small.target) or process.poll() is not None)
        small.database.execute("INSERT INTO t SELECT generate_series(10, 20)")
        wait_until(lambda: len(recorded(small.target)) > 1 or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert "public.t: follows at" in said
    assert small.database.dsn not in said
    expect_equal(small, "public.t")


def test_a_process_says_its_error_in_one_line(small: Place) -> None:
    process = small.start("--until", "never", "--quiet")
    _, said = process.communicate(timeout=240)
    assert process.returncode == 2
    assert said.startswith("pgoutput-fast: --until: an LSN as text is like '16/B374D848'")
    assert said.count("\n") == 1


def test_a_server_that_is_away(tmp_path: Path) -> None:
    with (
        Mirror("host=127.0.0.1 port=1 connect_timeout=1", "s", ["p"], tmp_path / "lake") as mirror,
        pytest.raises(psycopg2.OperationalError, match="refused"),
    ):
        mirror.run(until_lsn="now")

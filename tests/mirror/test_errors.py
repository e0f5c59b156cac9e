"""What stands in the way of a mirror: errors that say what is wrong and what to do."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import psycopg2
import pytest

from pgoutput_fast.capture import create_slot, drop_slot, find_slot
from pgoutput_fast.mirror import Mirror, MirrorBusyError, MirrorError, at, points
from pgoutput_fast.mirror.__main__ import main
from support.capturing import wait_until
from support.mirrors import Place, expect_equal, place

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
        pytest.raises(MirrorError, match="its publications is mirrored, not wrong"),
    ):
        mirror.run(until_lsn="now")


def test_a_role_without_rights(small: Place) -> None:
    role = f"{small.database.name}_role"
    small.database.execute(f"CREATE ROLE {role} LOGIN")
    dsn = re.sub(r"user=\S+", f"user={role}", small.database.dsn)
    try:
        with Mirror(dsn, small.slot, ["mirrored"], small.target) as mirror:
            with pytest.raises(Exception, match=r"GRANT SELECT ON public\.t"):
                mirror.run(until_lsn="now")
            small.database.execute(f"GRANT SELECT ON t TO {role}")
            with pytest.raises(Exception, match=r"(?i)replication"):
                mirror.run(until_lsn="now")
            _expect_nothing(small)
            small.database.execute(f"ALTER ROLE {role} REPLICATION")
            mirror.run(until_lsn="now")
        expect_equal(small, "public.t")
    finally:
        small.database.execute(f"REVOKE ALL ON t FROM {role}", f"DROP ROLE {role}")


def test_a_target_that_is_a_file(small: Place, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with (
            pytest.raises(NotADirectoryError, match=r"the target .* is a file, or lies below one"),
            Mirror(small.database.dsn, small.slot, ["mirrored"], target),
        ):
            pass
    assert (tmp_path / "file").read_text() == "mine"


def test_a_second_mirror(small: Place) -> None:
    with small.mirror():
        with (
            pytest.raises(MirrorBusyError, match=r"another process mirrors into .*/lake: stop it first"),
            small.mirror(),
        ):
            pass
        process = small.start("--until", "now")
        _, said = process.communicate(timeout=60)
        assert process.returncode == 1
        assert said.startswith("MirrorBusyError: another process mirrors into")
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


def test_a_slot_that_is_gone(small: Place) -> None:
    small.run()
    drop_slot(small.database.dsn, small.slot)
    with small.mirror() as mirror, pytest.raises(Exception, match=rf"slot {small.slot} is gone"):
        mirror.run(until_lsn="now")


def test_another_slot_for_the_same_target(small: Place) -> None:
    small.run()
    with (
        Mirror(small.database.dsn, "other", ["mirrored"], small.target) as mirror,
        pytest.raises(MirrorError, match=f"its slot is {small.slot}, not other. Use another target"),
    ):
        mirror.run(until_lsn="now")


def test_wrong_arguments(small: Place, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TypeError, match="publications"):
        Mirror("", "s", "p", "t")
    with pytest.raises(ValueError, match="format must be 'delta', 'parquet' or 'duckdb'"):
        Mirror("", "s", ["p"], "t", format="csv")
    with pytest.raises(ValueError, match="seconds must be positive"):
        Mirror("", "s", ["p"], "t", seconds=0)
    with small.mirror() as mirror, pytest.raises(ValueError, match="give 'now'"):
        mirror.run(until_lsn="later")
    assert main(["--slot", "s", "--target", "t"]) == 1
    assert capsys.readouterr().err == "ValueError: the option --publication is missing\n"
    with pytest.raises(LookupError, match="has no recorded point: run the mirror"):
        at(small.target)
    assert points(small.target) == []


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
    (small.target / "_mirror" / "points.json").write_text("{}")
    with pytest.raises(ValueError, match=r"points\.json is damaged: remove it"):
        at(small.target)


# ---- the process ----------------------------------------------------------------------------------------------------


def test_a_process_ends_gracefully(small: Place) -> None:
    """It stops at SIGTERM, and all that it has taken is in the tables."""
    process = small.start()
    try:
        wait_until(lambda: points(small.target) or process.poll() is not None)
        small.database.execute("INSERT INTO t SELECT generate_series(10, 20)")
        wait_until(lambda: len(points(small.target)) > 1 or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert "public.t: follow at" in said
    assert small.database.dsn not in said
    expect_equal(small, "public.t")


def test_a_process_says_its_error_in_one_line(small: Place) -> None:
    process = small.start("--until", "never", "--quiet")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.startswith("ValueError: --until: an LSN as text is like '16/B374D848'")
    assert said.count("\n") == 1


def test_a_server_that_is_away(tmp_path: Path) -> None:
    with (
        Mirror("host=127.0.0.1 port=1 connect_timeout=1", "s", ["p"], tmp_path / "lake") as mirror,
        pytest.raises(psycopg2.OperationalError, match="refused"),
    ):
        mirror.run(until_lsn="now")

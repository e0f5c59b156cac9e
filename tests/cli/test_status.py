"""`pgoutput-fast status` shows the tables of a mirror that another process may run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pgoutput_fast.cli.main import main
from support.capturing import drop_when_free, freed, wait_until
from support.mirrors import Following, Place, place

__all__ = ["place"]

TABLES = (
    "CREATE TABLE orders (id int PRIMARY KEY)",
    "CREATE TABLE customers (id int PRIMARY KEY)",
    "CREATE PUBLICATION mirrored FOR TABLE orders, customers",
)


def test_wrong_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 2
    assert "TARGET" in capsys.readouterr().err
    (tmp_path / "file").write_text("mine")
    for target in (tmp_path, tmp_path / "nothing", tmp_path / "file"):
        assert main(["status", str(target)]) == 1
        said = capsys.readouterr()
        assert (said.out, said.err) == (
            "",
            f"pgoutput-fast: {target} is not the target of a mirror, or its first load has not begun: name the target "
            "of the mirror, or run the mirror\n",
        )


@pytest.mark.slow
def test_a_mirror(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.database.execute(*TABLES)
    place.run()
    target, dsn = str(place.target), place.database.dsn
    freed(dsn, place.slot)
    assert main(["status", target, "--dsn", dsn]) == 0
    header, customers, orders, slot = capsys.readouterr().out.splitlines()
    assert slot.startswith(f"slot {place.slot}: nobody reads it: the mirror does not run; the server keeps ")
    assert header.split() == ["table", "state", "position", "behind", "seconds", "waiting"]
    assert customers.split()[:2] == ["public.customers", "follow"]
    assert orders.split()[:2] + orders.split()[-1:] == ["public.orders", "follow", "nothing"]

    with place.mirror() as mirror, Following(mirror) as following:
        following.until(lambda: mirror.metrics.running)
        wait_until(
            lambda: main(["status", target, "--dsn", dsn]) == 0 and "sends it" in capsys.readouterr().out
        )
    assert main(["status", target, "--dsn", "host=127.0.0.1 port=1"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[1].split()[-2:] == [orders.split()[2], "nothing"]
    assert said.err.startswith("the server does not answer")

    place.database.execute("ALTER PUBLICATION mirrored DROP TABLE customers")
    for _ in range(2):
        with place.mirror() as mirror:
            mirror.run(until_lsn="now")
            mirror.run(until_lsn="now")
    assert main(["status", target, "--dsn", dsn]) == 0
    said = capsys.readouterr()
    gone = said.out.splitlines()[1].split()
    assert gone[:2] + gone[-1:] == ["public.customers", "unpublished", "nothing"]
    assert said.err == ""
    assert main(["status", target, "--dsn", dsn, "--json"]) == 0
    said = capsys.readouterr()
    first, second = map(json.loads, said.out.splitlines())
    assert (first["state"], first["error"], first["waiting_rows"]) == ("unpublished", None, 0)
    assert (second["state"], second["position"], said.err) == ("follow", second["history_position"], "")

    drop_when_free(dsn, place.slot)
    assert main(["status", target, "--dsn", dsn]) == 1
    said = capsys.readouterr()
    assert "does not answer" not in said.err
    assert "--reload" not in said.err
    assert f"public.orders: slot {place.slot} is gone: the changes since then are lost" in said.err

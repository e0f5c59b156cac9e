"""The demo proves itself: it must succeed on true data, and must notice when a change is missing."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from pgoutput_fast.demo import run as demo
from pgoutput_fast.demo.rebuild import differences, rebuild

Change = dict[str, Any]


def _change(kind: str, unchanged: list[str] | None = None, **values: Any) -> Change:
    return {"_change_type": kind, "_unchanged": unchanged, **values}


CHANGES = [
    _change("insert", id=1, note="a"),
    _change("insert", id=2, note="b"),
    _change("update_postimage", ["note"], id=2, note=None),
    _change("update_preimage", id=1, note=None),
    _change("update_postimage", id=3, note="c"),
    _change("insert", id=4, note="d"),
    _change("delete", id=4, note=None),
]


def test_rebuild_applies_every_kind_of_change() -> None:
    assert rebuild(CHANGES, ["id"]) == {(2,): {"id": 2, "note": "b"}, (3,): {"id": 3, "note": "c"}}


def test_truncate_empties_the_table() -> None:
    assert rebuild([*CHANGES, _change("truncate", id=None, note=None)], ["id"]) == {}


@pytest.mark.parametrize("lost", range(len(CHANGES)))
def test_a_lost_change_is_noticed(lost: int) -> None:
    """Whichever change is left out, the proof fails: by a row that is not there, or by a difference."""
    whole = rebuild(CHANGES, ["id"])
    try:
        partial = rebuild([change for k, change in enumerate(CHANGES) if k != lost], ["id"])
    except KeyError:
        return
    if lost != 2:  # an update that set nothing but an unsent value to itself
        assert differences(partial, whole)


def test_differences_name_columns_but_no_values() -> None:
    found = differences(
        {(1,): {"id": 1, "note": "secret"}}, {(1,): {"id": 1, "note": "hidden"}, (2,): {"id": 2}}
    )
    assert found == ["1 rows of the server are missing", "column note differs in 1 rows"]


def test_demo_without_a_server_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "find_installations", list)
    assert demo.run_demo(10) == 1
    assert "pip install" in capsys.readouterr().out


@pytest.mark.slow
def test_demo_runs_and_its_tables_equal_the_servers() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pgoutput_fast", "demo", "--orders", "1000"],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" yes ") == 12
    assert "killed the mirror after " in done.stdout
    assert "DuckDB over the mirror" in done.stdout
    assert "rows of 6 Delta tables" in done.stdout
    assert " no " not in done.stdout.split("Rebuilt from what was loaded")[1]

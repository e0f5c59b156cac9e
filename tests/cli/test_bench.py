"""`pgoutput-fast bench` measures the decoder of this machine."""

from __future__ import annotations

import json
import re

import pytest

from pgoutput_fast.cli.main import main
from support.paths import DOCS


def test_both_formats_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--messages", "3000", "--json"]) == 0
    text, binary = map(json.loads, capsys.readouterr().out.splitlines())
    assert (text["format"], binary["format"]) == ("text", "binary")
    # Three transactions of 1,000 messages, and one description of the table.
    assert text["messages"] == binary["messages"] == 3001
    assert text["rows"] == binary["rows"] == 3 * 998
    assert text["bytes"] > binary["bytes"] > 100 * 3001
    for each in (text, binary):
        assert each["bytes_per_second"] == pytest.approx(each["bytes"] / each["seconds"])
        assert each["cells_per_second"] == pytest.approx(8 * each["rows"] / each["seconds"])


def test_a_table_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--messages", "1000"]) == 0
    header, text, binary, last = capsys.readouterr().out.splitlines()
    page = (DOCS / "command-line.md").read_text()
    assert f"\n{' '.join(header.split())}\n" in re.sub(" +", " ", page)
    assert (text.split()[:2], binary.split()[:2]) == (["text", "1,001"], ["binary", "1,001"])
    assert last == "text and binary gave the same rows"


def test_too_few_messages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--messages", "3"]) == 2
    said = capsys.readouterr().err
    assert "--messages" in said
    assert said.count("\n") == 1

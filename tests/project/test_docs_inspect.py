"""docs/inspect.md does what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pyarrow.csv
import pytest

from pgoutput_fast.cli.main import main
from support.paths import DOCS

PAGE = (DOCS / "inspect.md").read_text()


def test_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (made,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(made, "docs/inspect.md", "exec"), {})
    examples = re.findall(r"```sh\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == PAGE.count("```sh")
    for commands, expected in examples:
        for command in commands.splitlines():
            program, *arguments = shlex.split(command)
            assert program == "pgoutput-fast"
            main(arguments)
        assert capsys.readouterr().out == expected
    table = pyarrow.csv.read_csv(
        "tables/public.orders.csv", parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True)
    )
    assert table.column("note").to_pylist() == ["two\nlines", "paid"]

"""What an import says if an extra of the package is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.forms import and_slow

_WITHOUT = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name == {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Without())
"""


def _last_line(missing: str, statement: str) -> str:
    """The last line of the errors of a program, where a package is not installed."""
    program = _WITHOUT.format(missing=missing) + statement
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("missing", "statement", "extra"),
    and_slow(
        [
            ("tenacity", "from pgoutput_fast.capture import Capture", "capture"),
            ("psycopg2", "import pgoutput_fast.snapshot", "capture"),
            ("psycopg2", "from pgoutput_fast.mirror import Mirror", "capture"),
            ("psycopg2", "import pgoutput_fast as pgo; next(pgo.follow('', 's', ['p']))", "capture"),
            ("pyspark", "import pgoutput_fast.spark", "spark"),
        ],
        [
            ("psycopg2", "import pgoutput_fast.capture", "capture"),
            ("psycopg2", "from pgoutput_fast.mirror import status_of", "capture"),
        ],
    ),
)
def test_an_import_without_its_extra(missing: str, statement: str, extra: str) -> None:
    said = _last_line(missing, statement)
    assert said == f"ModuleNotFoundError: {missing} is missing: pip install 'pgoutput_fast[{extra}]'"


@pytest.mark.parametrize(("command", "target"), [("capture", "--path"), ("mirror", "--target")])
def test_a_command_without_its_extra(command: str, target: str) -> None:
    words = [command, "--slot", "s", "--publication", "p", target, "t"]
    said = _last_line(
        "psycopg2", f"from pgoutput_fast.cli.main import main; import sys; sys.exit(main({words}))"
    )
    assert said == "pgoutput-fast: psycopg2 is missing: pip install 'pgoutput_fast[capture]'"

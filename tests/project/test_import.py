"""Importing the package is quick and drags nothing heavy in."""

import subprocess
import sys

import pgoutput_fast


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_import_pulls_in_neither_spark_nor_psycopg2_nor_the_command_line() -> None:
    heavy = {"pyspark", "psycopg2", "pandas", "typer", "rich", "argparse"}
    code = f"import sys, pgoutput_fast; print(sorted({heavy!r} & set(sys.modules)))"
    assert _run(code) == "[]"


WITHOUT_PANDAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=name)

sys.meta_path.insert(0, Missing())
import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer

columns = (ColumnSpec("a", 20), ColumnSpec("b", 21), ColumnSpec("c", 1082), ColumnSpec("d", 1114), ColumnSpec("e", 1083))
spec, writer = RelationSpec(1, "public", "t", columns), Writer()
sent = writer.begin(7, 100, 0) + writer.change(spec, "insert", new=["1", None, None, None, None])
sent += writer.change(spec, "insert", new=[None, "2", "2024-01-01", "2024-01-01 00:00:00", "01:00:00"])
sent += writer.commit(100, 108, 0)
print([str(pgo.decode(sent).changes[0].to_numpy()[name]) for name in "abcde"])
"""


def test_numpy_arrays_need_no_pandas() -> None:
    """Integers with nulls are masked arrays, which pyarrow does not give."""
    assert _run(WITHOUT_PANDAS).startswith("['[1 --]', '[-- 2]', ")


def test_import_costs_about_as_much_cpu_as_that_of_pyarrow() -> None:
    """Both take longer on a slow or busy machine, so their ratio is compared: it is about 0.8."""
    code = (
        "import time; begin = time.process_time(); import pyarrow; middle = time.process_time();"
        "import pgoutput_fast; print((time.process_time() - middle) / (middle - begin))"
    )
    assert min(float(_run(code)) for _ in range(4)) < 1.25


def test_every_public_name_is_documented() -> None:
    for name in pgoutput_fast.__all__:
        thing = getattr(pgoutput_fast, name)
        assert name == "TAGGED_SCHEMA" or thing.__doc__, name

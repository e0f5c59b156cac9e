"""Importing the package is quick and drags nothing heavy in."""

import subprocess
import sys

import pgoutput_fast


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_import_pulls_in_neither_spark_nor_psycopg2() -> None:
    code = "import sys, pgoutput_fast; print(sorted({'pyspark', 'psycopg2', 'pandas'} & set(sys.modules)))"
    assert _run(code) == "[]"


def test_import_costs_less_than_150_ms_of_cpu_beyond_pyarrow() -> None:
    code = (
        "import pyarrow, time; start = time.process_time(); import pgoutput_fast;"
        "print(time.process_time() - start)"
    )
    assert min(float(_run(code)) for _ in range(3)) < 0.150


def test_every_public_name_is_documented() -> None:
    for name in pgoutput_fast.__all__:
        thing = getattr(pgoutput_fast, name)
        assert name == "TAGGED_SCHEMA" or thing.__doc__, name

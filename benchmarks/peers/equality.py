"""Compares a peer's output with ours, value by value, in a form that both can be converted to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import pgoutput_fast as pgo
from benchmarks import corpora
from benchmarks.corpora import Corpus
from benchmarks.peers.inputs import Inputs
from benchmarks.yardsticks import table_of_text

__all__ = ["FORMS", "DifferenceError", "compare", "decoded"]

Tables = Mapping[str, pa.Table]


class DifferenceError(Exception):
    """The output of a peer differs from ours; the error text says where."""


def decoded(corpus: Corpus) -> dict[str, pa.Table]:
    """{table: rows} of the corpus's changes as we decode them, without metadata and truncates."""
    out = pgo.decode(corpus.payloads)
    found = {}
    for name, truth in corpus.tables.items():
        table = out.table(name)
        kinds = table["_change_type"]
        kept = pa.array([kind in ("insert", "update_postimage") for kind in kinds.to_pylist()])
        found[name] = table.filter(kept).select(truth.column_names)
    return found


def compare(form: str, directory: Path, corpus: Corpus, inputs: Inputs) -> None:
    """Compares a peer's output in a directory, in one of `FORMS`, with our result for the corpus.

    Raises:
        DifferenceError: if the output differs, or cannot be read.
    """
    try:
        FORMS[form](directory, corpus, inputs)
    except DifferenceError:
        raise
    except Exception as error:
        raise DifferenceError(f"cannot be read: {type(error).__name__}: {error}") from error


# ---- forms: each reads a peer's output directory and compares --------------------------------------------------


def _bytes(directory: Path, corpus: Corpus, inputs: Inputs) -> None:
    if (directory / "bytes").read_bytes() != corpus.bytes.tobytes():
        raise DifferenceError("the bytes differ")


def _ours(directory: Path, corpus: Corpus, inputs: Inputs) -> None:
    """Our own output, compared with the values that the corpus was made from, and not with itself."""
    for name, truth in corpus.tables.items():
        _same(name, _arrow(directory, name), truth)


def _table(directory: Path, corpus: Corpus, inputs: Inputs) -> None:
    """Arrow tables in order, with the columns' types or with types that can be cast exactly."""
    for name, wanted in decoded(corpus).items():
        _same(name, _arrow(directory, name), wanted)


def _selected(directory: Path, corpus: Corpus, inputs: Inputs) -> None:
    """Arrow tables whose rows are in any order, as the server returns them."""
    for name, wanted in decoded(corpus).items():
        key = wanted.column_names[0]
        _same(name, _arrow(directory, name).sort_by(key), wanted.sort_by(key))


def _texts(directory: Path, corpus: Corpus, inputs: Inputs) -> None:
    """Cells as text."""
    wanted = decoded(corpus)
    for name, rows in _rows(directory, wanted).items():
        schema = wanted[name].schema
        cells = [
            [None if cell is None else cell.encode() for cell in column] for column in _columns(rows, schema)
        ]
        _same(name, table_of_text(cells, schema), wanted[name])


def _raw(directory: Path, corpus: Corpus, inputs: Inputs) -> None:
    """The bytes of binary cells as hexadecimal digits, for peers that do not convert them."""
    cells = corpora.wide_cells(inputs.scale, corpora.SEED)
    ((name, rows),) = _rows(directory, decoded(corpus)).items()
    columns = _columns(rows, corpus.tables[name].schema)
    for (column, each), found in zip(cells.items(), columns, strict=True):
        wanted = [None if cell is None else cell.hex() for cell in each.binary.to_pylist()]
        if wanted != found:
            raise _difference(name, column, wanted, found)


def _values(read: Callable[[Any, pa.DataType], Any]) -> Callable[[Path, Corpus, Inputs], None]:
    """JSON values. `read` converts one to the value that pyarrow has for its type."""

    def compare(directory: Path, corpus: Corpus, inputs: Inputs) -> None:
        tables = decoded(corpus)
        for name, rows in _rows(directory, tables).items():
            for field, column in zip(tables[name].schema, _columns(rows, tables[name].schema), strict=True):
                wanted = tables[name][field.name].to_pylist()
                found = [None if value is None else read(value, field.type) for value in column]
                if read is _of_node and pa.types.is_timestamp(field.type):
                    wanted = [
                        each and each.replace(microsecond=each.microsecond // 1000 * 1000) for each in wanted
                    ]
                if found and any(isinstance(value, dict) for value in found):
                    wanted = [None if value is None else json.loads(value) for value in wanted]
                if wanted != found:
                    raise _difference(name, field.name, wanted, found)

    return compare


def _of_text(value: Any, wanted: pa.DataType) -> Any:
    """A value from the text that most languages print."""
    if pa.types.is_boolean(wanted):
        return {"t": True, "f": False, "true": True, "false": False}[str(value).lower()]
    if pa.types.is_integer(wanted):
        return int(value)
    if pa.types.is_decimal(wanted):
        return Decimal(str(value)).quantize(Decimal(1).scaleb(-wanted.scale))
    if pa.types.is_floating(wanted):
        return float(value)
    if pa.types.is_date(wanted):
        return date.fromisoformat(value[:10])
    if pa.types.is_timestamp(wanted):
        moment = datetime.fromisoformat(value)
        return moment.astimezone(UTC) if wanted.tz else moment.replace(tzinfo=None)
    if pa.types.is_binary(wanted):
        return bytes.fromhex(value.removeprefix("\\x"))
    return value


def _of_node(value: Any, wanted: pa.DataType) -> Any:
    """A value from Node.js. JavaScript's Date has milliseconds; the lost digits are not compared."""
    return _of_text(value, wanted)


def _of_java(value: str, wanted: pa.DataType) -> Any:
    """A value from Java: the name of its class, and its printed text."""
    if pa.types.is_binary(wanted):
        return bytes.fromhex(value)
    return _of_text(value.partition(" ")[2], wanted)


FORMS: dict[str, Callable[[Path, Corpus, Inputs], None]] = {
    "bytes": _bytes,
    "ours": _ours,
    "table": _table,
    "selected": _selected,
    "texts": _texts,
    "raw": _raw,
    "python": _values(_of_text),
    "node": _values(_of_node),
    "java": _values(_of_java),
}


# ---- reading and comparing -----------------------------------------------------------------------------------


def _arrow(directory: Path, name: str) -> pa.Table:
    with pa.OSFile(str(directory / f"{name}.arrow")) as file:
        return pa.ipc.open_file(file).read_all()


def _rows(directory: Path, wanted: Tables) -> dict[str, list[list[Any]]]:
    """{table: rows in order}, for all tables in the output."""
    found: dict[str, list[list[Any]]] = {name: [] for name in wanted}
    with open(directory / "rows", encoding="utf-8") as file:
        for line in file:
            name, values = json.loads(line)
            if name not in found:
                raise DifferenceError(f"rows of a table {name}")
            found[name].append(values)
    for name, rows in found.items():
        if len(rows) != wanted[name].num_rows:
            raise DifferenceError(f"{len(rows)} rows of {name} where there are {wanted[name].num_rows}")
    return found


def _columns(rows: list[list[Any]], schema: pa.Schema) -> list[list[Any]]:
    for row in rows:
        if len(row) != len(schema):
            raise DifferenceError(f"a row of {len(row)} values where there are {len(schema)} columns")
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in schema]


def _same(name: str, found: pa.Table, wanted: pa.Table) -> None:
    if found.column_names != wanted.column_names or found.num_rows != wanted.num_rows:
        raise DifferenceError(f"{name} has other columns or another number of rows")
    for field in wanted.schema:
        column = found[field.name]
        if column.type != field.type:
            if pa.types.is_binary(field.type) and pa.types.is_string(column.type):
                data = [each and bytes.fromhex(each.removeprefix("\\x")) for each in column.to_pylist()]
                column = pa.chunked_array([pa.array(data, pa.binary())])
            elif field.name == "token" and pa.types.is_fixed_size_binary(column.type):
                column = pa.chunked_array([pa.array(map(_uuid, column.to_pylist()), pa.string())])
            else:
                column = column.cast(field.type)
        if not column.equals(wanted[field.name]):
            raise _difference(name, field.name, wanted[field.name].to_pylist(), column.to_pylist())


def _uuid(value: bytes) -> str:
    digits = value.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _difference(table: str, column: str, wanted: list[Any], found: list[Any]) -> DifferenceError:
    row = next(k for k, (a, b) in enumerate(zip(wanted, found, strict=True)) if a != b)
    return DifferenceError(f"{table}.{column}, row {row}: {found[row]!r} where we have {wanted[row]!r}")

"""A text where a list is meant is refused wherever the public API takes a list, by a message that says what to write."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pgoutput_fast as pgo

# What no user calls; and results, which no user makes.
INTERNAL = {
    "base.display", "catalog.builtin_types", "catalog.patterns", "catalog.read_types", "cli", "decoding.changed_tables", "decoding.inputs", "decoding.result", "demo", "encode.printed", "merge",
    "parallel_tag", "postgres", "protocol.kinds", "protocol.limits", "protocol.reasons", "schema.column_types", "schema.evolution",
    "schema.resolve", "schema.tables", "segments.catalog", "segments.committed", "segments.compaction", "segments.footers", "segments.join", "segments.joined", "segments.layout", "segments.listing", "segments.names", "segments.planner", "segments.tail", "storage.stores", "tables", "transactions",
}  # fmt: skip
# Of these the package itself says what is public.
FACES = {"capture", "mirror", "snapshot", "spark"}
INTERNAL_METHODS = {"Options.check_columns", "StreamState.forgetting", "StreamState.in_order"}
RESULTS = {"Decoded", "Report", "RowGroup", "Segment", "TableVerification"}
_LIST = re.compile(r"\b(Sequence|Iterable|Collection|[Ll]ist|[Ss]et|[Tt]uple)\[")


def modules() -> Iterator[Any]:
    yield pgo
    for found in pkgutil.walk_packages(pgo.__path__, "pgoutput_fast."):
        name = found.name.removeprefix("pgoutput_fast.")
        package = name.split(".")[0]
        if package.startswith("_") or {name, package} & INTERNAL or (package in FACES and name != package):
            continue
        if name == "spark":
            pytest.importorskip("pyspark")
        yield importlib.import_module(found.name)


def callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    for module in modules():
        for name in getattr(module, "__all__", ()):
            each = getattr(module, name)
            if not inspect.isclass(each):
                if callable(each):
                    yield name, each
                continue
            if name not in RESULTS:
                yield name, each
            for method, function in vars(each).items():
                internal = method.startswith("_") or f"{name}.{method}" in INTERNAL_METHODS
                if not internal and inspect.isfunction(function):
                    yield f"{name}.{method}", function


def list_arguments() -> dict[str, tuple[Callable[..., Any], str]]:
    found = {}
    for name, each in callables():
        try:
            parameters = inspect.signature(each).parameters.values()
        except ValueError:
            continue  # of C
        for parameter in parameters:
            # A text as one of several, such as a path or a column, is meant.
            kinds = str(parameter.annotation).split(" | ")
            if (
                any(_LIST.match(kind.removeprefix("collections.abc.")) for kind in kinds)
                and "str" not in kinds
            ):
                found[f"{name}({parameter.name})"] = (each, parameter.name)
    return found


ARGUMENTS = list_arguments()


@pytest.mark.parametrize("text", ["shop", b"shop"], ids=["str", "bytes"])
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_a_text_is_not_taken_for_a_list(argument: str, text: Any) -> None:
    function, name = ARGUMENTS[argument]
    parameters = inspect.signature(function).parameters
    given = {
        key: None
        for key, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    # A generator looks at its arguments when it is asked.
    call = (lambda **them: next(function(**them))) if inspect.isgeneratorfunction(function) else function
    with pytest.raises(TypeError, match=r"must be a list of .*brackets"):
        call(**{**given, name: text})


def test_the_arguments_are_found() -> None:
    """Else the test above would hold of nothing."""
    assert {
        "Capture(publications)",
        "Snapshot(tables)",
        "check(publications)",
        "Source(publications)",
    } <= ARGUMENTS.keys()
    assert "list_segments(paths)" not in ARGUMENTS
    assert len(ARGUMENTS) > 25


@pytest.mark.parametrize("names", ["id", b"id"])
def test_names_of_columns_are_a_list(names: Any) -> None:
    with pytest.raises(TypeError, match=r"columns must be a list of names.*brackets"):
        pgo.Options(columns={"public.t": names})


@pytest.mark.parametrize("function", [pgo.decode, pgo.tag])
def test_one_payload_is_no_list_of_payloads(function: Callable[..., Any]) -> None:
    with pytest.raises(
        TypeError, match=r"payloads must be .*iterable of bytes; not bytes\. For one message pass a list"
    ):
        function(b"I")

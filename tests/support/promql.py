"""Evaluates the part of PromQL that docs/alerts.yml and docs/grafana.json use. Anything else is a ValueError.

It supports selectors with matchers and ranges, numbers, `*`, comparisons with a number, `or`, `unless on (...)`, `max
by (...)`, `rate`, `increase` and `deriv`. Prometheus extrapolates to the ends of a range. This does not.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

__all__ = ["Labels", "Scrape", "Vector", "evaluate", "scrape"]

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
# (seconds, values).
Scrape = tuple[float, Vector]

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"')
_TOKEN = re.compile(
    r'\s*(?:(?P<number>\d+(?:\.\d+)?(?:e\d+)?)(?![\w])|(?P<name>[A-Za-z_]\w*)|(?P<matchers>\{(?:"[^"]*"|[^"}])*\})'
    r"|(?P<range>\[\d+[smh]\])|(?P<sign>==|!=|>=|<=|[()*,><]))"
)
_COMPARED: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le
}  # fmt: skip
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_NAME = "__name__"


def scrape(page: str, at: float, **labels: str) -> Scrape:
    """The values that Prometheus stores from a page of metrics.

    Args:
        page: the text.
        at: time in seconds.
        labels: labels that Prometheus adds, such as `job` and `instance`.
    """
    found: Vector = {}
    for name, own, value in _SAMPLE.findall(page):
        told = {label: text for label, _, text in _LABEL.findall(own)}
        found[frozenset({_NAME: name, **told, **labels}.items())] = float(value)
    return at, found


def evaluate(query: str, scrapes: Sequence[Scrape]) -> Vector:
    """The result of a query at the time of the last scrape.

    Raises:
        ValueError: if the query cannot be read, or gives no vector.
    """
    reader = _Reader(query, scrapes)
    found = reader.either()
    if reader.tokens or not isinstance(found, dict):
        raise ValueError(f"{query}: cannot be read from {reader.tokens[:1]} on, or is no vector")
    return found


def _without_name(labels: Labels) -> Labels:
    return frozenset(each for each in labels if each[0] != _NAME)


def _chosen(labels: Labels, names: Sequence[str]) -> Labels:
    return frozenset(each for each in labels if each[0] in names)


class _Reader:
    """Evaluates a query while reading it from left to right."""

    def __init__(self, query: str, scrapes: Sequence[Scrape]) -> None:
        self._query, self._scrapes = query, scrapes
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(query.rstrip()):
            found = _TOKEN.match(query, at)
            if found is None:
                raise ValueError(f"{query}: {query[at:]!r} cannot be read")
            self.tokens.append((found.lastgroup or "", found[0].strip()))
            at = found.end()

    def _next(self, *wanted: str) -> str | None:
        """Takes the next token if its text or its kind is one of these."""
        if self.tokens and (self.tokens[0][1] in wanted or self.tokens[0][0] in wanted):
            return self.tokens.pop(0)[1]
        return None

    def _expect(self, *wanted: str) -> str:
        found = self._next(*wanted)
        if found is None:
            raise ValueError(f"{self._query}: {' or '.join(wanted)} is expected before {self.tokens[:1]}")
        return found

    def _names(self) -> list[str]:
        self._expect("(")
        names = [self._expect("name")]
        while self._next(","):
            names.append(self._expect("name"))
        self._expect(")")
        return names

    def either(self) -> Vector | float:
        found = self._unless()
        while self._next("or"):
            other = _vector(self._unless())
            there = set(map(_without_name, _vector(found)))
            found = _vector(found) | {
                labels: each for labels, each in other.items() if _without_name(labels) not in there
            }
        return found

    def _unless(self) -> Vector | float:
        found = self._compared()
        while self._next("unless"):
            self._expect("on")
            names = self._names()
            gone = {_chosen(labels, names) for labels in _vector(self._compared())}
            found = {
                labels: each for labels, each in _vector(found).items() if _chosen(labels, names) not in gone
            }
        return found

    def _compared(self) -> Vector | float:
        found = self._product()
        if (sign := self._next(*_COMPARED)) is None:
            return found
        limit = float(self._expect("number"))
        return {labels: each for labels, each in _vector(found).items() if _COMPARED[sign](each, limit)}

    def _product(self) -> Vector | float:
        found = self._value()
        while self._next("*"):
            other = self._value()
            if isinstance(found, float) and isinstance(other, dict):
                found, other = other, found
            if not isinstance(found, dict) or not isinstance(other, float):
                raise ValueError(f"{self._query}: only a number and a vector are multiplied here")
            found = {_without_name(labels): each * other for labels, each in found.items()}
        return found

    def _value(self) -> Vector | float:
        if (number := self._next("number")) is not None:
            return float(number)
        if self._next("(") is not None:
            found = self.either()
            self._expect(")")
            return found
        if self._next("max") is not None:
            return self._greatest()
        if (function := self._next("rate", "increase", "deriv")) is not None:
            self._expect("(")
            found = self._over_range(function)
            self._expect(")")
            return found
        return self._selected(self._selector(), self._scrapes[-1][1])

    def _greatest(self) -> Vector:
        self._expect("by")
        names = self._names()
        self._expect("(")
        found: Vector = {}
        for labels, each in _vector(self.either()).items():
            key = _chosen(labels, names)
            found[key] = max(each, found.get(key, each))
        self._expect(")")
        return found

    def _selector(self) -> Callable[[Mapping[str, str]], bool]:
        name = self._next("name")
        matchers = _LABEL.findall(self._next("matchers") or "")
        if name is not None:
            matchers.append((_NAME, "=", name))
        if not matchers:
            raise ValueError(f"{self._query}: a metric is expected before {self.tokens[:1]}")

        def is_met(labels: Mapping[str, str]) -> bool:
            for label, sign, wanted in matchers:
                there = labels.get(label, "")
                same = re.fullmatch(wanted, there) is not None if "~" in sign else there == wanted
                if same == sign.startswith("!"):
                    return False
            return True

        return is_met

    @staticmethod
    def _selected(is_met: Callable[[Mapping[str, str]], bool], values: Vector) -> Vector:
        return {labels: each for labels, each in values.items() if is_met(dict(labels))}

    def _over_range(self, function: str) -> Vector:
        is_met, length = self._selector(), self._expect("range")
        seconds = int(length[1:-2]) * _SECONDS[length[-2]]
        end = self._scrapes[-1][0]
        series: dict[Labels, list[tuple[float, float]]] = {}
        for at, values in self._scrapes:
            if at > end - seconds:
                for labels, each in self._selected(is_met, values).items():
                    series.setdefault(_without_name(labels), []).append((at, each))
        found: Vector = {}
        for labels, points in series.items():
            if len(points) > 1:
                grown = sum(_step(function, *pair) for pair in pairwise(points))
                found[labels] = grown if function == "increase" else grown / (points[-1][0] - points[0][0])
        return found


def _step(function: str, before: tuple[float, float], after: tuple[float, float]) -> float:
    """The increase of a value. A counter that is smaller than before has restarted at 0."""
    grown = after[1] - before[1]
    return after[1] if grown < 0 and function != "deriv" else grown


def _vector(found: Vector | float) -> Vector:
    if not isinstance(found, dict):
        raise ValueError(f"a vector is expected in place of {found}")
    return found

"""docs/alerts.yml and docs/grafana.json ask only for metrics and labels that a capture and a mirror really tell."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast.capture import Capture, Limits
from pgoutput_fast.mirror import MirrorMetrics
from support import pg
from support.capturing import Running, drop_when_free, wait_until
from support.mirrors import Following, Place, opened
from support.paths import DOCS

yaml = pytest.importorskip("yaml")

ALERTS = yaml.safe_load((DOCS / "alerts.yml").read_text())
DASHBOARD = json.loads((DOCS / "grafana.json").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
# What Prometheus itself adds.
OF_PROMETHEUS = {"job", "instance"}
_LABELS = re.compile(r'(\w+)=~?"')


class Told:
    """What the pages tell: {metric: labels}, and the gauges among them."""

    def __init__(self, *pages: str) -> None:
        text = "\n".join(pages)
        self.labels = {
            name: set(_LABELS.findall(labels))
            for name, labels in re.findall(r"^(\w+){(.*)} \S+$", text, re.M)
        }
        self.gauges = set(re.findall(r"^# TYPE (\w+) gauge$", text, re.M))


@pytest.fixture(scope="module")
def told(servers: pg.Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """The pages of a capture and a mirror of the same database, while both run."""
    if not servers:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    directory = tmp_path_factory.mktemp("told")
    with opened(servers[max(servers)], directory) as place:
        place.database.execute(
            "CREATE TABLE t (id int PRIMARY KEY)",
            "CREATE PUBLICATION mirrored FOR ALL TABLES",
        )
        yield Told(_page_of_mirror(place), _page_of_capture(place, directory / "segments"))


def _address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _scraped(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=240) as answer:
        return str(answer.read().decode())


def _page_of_mirror(place: Place) -> str:
    address = _address()
    with place.mirror(metrics_address=address) as mirror, Following(mirror) as following:
        # Until the first load is complete, the page has no tables.
        following.until(lambda: any(each.lag_seconds is not None for each in mirror.metrics.tables))
        return _scraped(address)


def _page_of_capture(place: Place, directory: Path) -> str:
    slot, address = f"{place.slot}_c", _address()
    capture = Capture(
        place.database.dsn, slot, ["mirrored"], directory, limits=Limits(seconds=0.1), metrics_address=address
    )
    try:
        with Running(capture) as running:
            wait_until(lambda: running.failed or capture.metrics.running)
            place.database.execute("INSERT INTO t VALUES (2)")
            wait_until(lambda: running.failed or capture.metrics.lag_seconds is not None)
            assert running.failed is None
            return _scraped(address)
    finally:
        drop_when_free(place.database.dsn, slot)


def _panels() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        yield panel
        yield from panel.get("panels", [])


def _queries() -> list[str]:
    return [target["expr"] for panel in _panels() for target in panel.get("targets", [])]


def problems(query: str, labels: dict[str, set[str]]) -> Iterator[str]:
    """What a query of PromQL asks for and no page tells."""
    named = re.findall(r"\bpgoutput_fast_\w+|\bup\b", query)
    if not named:
        yield f"{query}: it names no metric"
    known = labels | {"up": set()}
    for name in named:
        if name not in known:
            yield f"{query}: there is no {name}"
    for name, selector in re.findall(r"\b(\w+){([^}]*)}", query):
        yield from _unknown(query, _LABELS.findall(selector), known.get(name, set()))
    told = set.union(*(known.get(name, set()) for name in named)) if named else set()
    for listed in re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", query):
        yield from _unknown(query, re.findall(r"\w+", listed), told)


def _unknown(query: str, named: list[str], told: set[str]) -> Iterator[str]:
    for label in named:
        if label not in told | OF_PROMETHEUS:
            yield f"{query}: there is no label {label}"


def test_the_pages_are_complete(told: Told) -> None:
    """Else the tests below would accept a metric, or miss a gauge, by chance."""
    assert len(told.labels) == 28
    assert told.labels["pgoutput_fast_mirror_lag_seconds"] == {"slot", "table"}
    assert told.labels["pgoutput_fast_capture_lag_seconds"] == {"slot"}


def test_alerts_ask_for_what_is_told(told: Told) -> None:
    assert [each for rule in RULES for each in problems(rule["expr"], told.labels)] == []
    for rule in RULES:
        asked = set.union(set(), *(told.labels.get(name, set()) for name in re.findall(r"\w+", rule["expr"])))
        said = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert said <= asked | OF_PROMETHEUS, rule["alert"]


def test_the_dashboard_asks_for_what_is_told(told: Told) -> None:
    assert [each for query in _queries() for each in problems(query, told.labels)] == []
    for panel in _panels():
        for target in panel.get("targets", []):
            names = re.findall(r"pgoutput_fast_\w+", target["expr"])
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert shown <= set.intersection(*(told.labels[name] for name in names)), panel["title"]


def test_each_metric_has_a_panel(told: Told) -> None:
    asked = {name for query in _queries() for name in re.findall(r"pgoutput_fast_\w+", query)}
    assert len(told.gauges) > 15
    assert told.gauges - asked == set()
    assert told.labels.keys() - asked == set()


def test_the_variables_of_the_dashboard_exist(told: Told) -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$(?!__)\{?(\w+)", json.dumps(DASHBOARD["panels"])))
    assert used <= variables.keys()
    for name in ("slot", "table"):
        asked = re.search(
            r"pgoutput_fast_mirror_\w+", variables[name]["definition"].replace("(capture|mirror)", "mirror")
        )
        assert asked is not None
        assert name in told.labels[asked[0]]


def test_alerts_lead_to_a_page() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) > 8
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        file, _, heading = rule["annotations"]["runbook"].partition("#")
        headings = re.findall(r"^#+ (.+)$", (DOCS / file).read_text(), re.M)
        assert heading in {each.lower().replace(" ", "-") for each in headings}, rule["alert"]


def test_what_no_page_tells_is_found() -> None:
    labels = {"pgoutput_fast_a": {"slot"}, "pgoutput_fast_b": {"slot", "table"}}
    assert list(problems('rate(pgoutput_fast_b{table="t",job="x"}[5m])', labels)) == []
    assert len(list(problems('pgoutput_fast_a{table="t"}', labels))) == 1
    assert len(list(problems("pgoutput_fast_c > 1", labels))) == 1
    assert len(list(problems("max by (place) (pgoutput_fast_b)", labels))) == 1
    assert len(list(problems("vector(1)", labels))) == 1


def test_a_mirror_before_its_first_load_tells_no_points() -> None:
    """An alert waits for them."""
    text = MirrorMetrics("s", True, (), None, None).to_prometheus()
    assert "pgoutput_fast_mirror_running" in text
    assert "points" not in text

"""The queries of docs/alerts.yml and docs/grafana.json, evaluated on what a capture and a mirror really tell."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast.capture import Capture, Limits
from pgoutput_fast.mirror import MirrorMetrics
from support import pg
from support.capturing import Running, drop_when_free, wait_until
from support.mirrors import Following, Place, opened
from support.paths import DOCS
from support.promql import Scrape, Vector, evaluate, scrape

yaml = pytest.importorskip("yaml")

ALERTS = yaml.safe_load((DOCS / "alerts.yml").read_text())
DASHBOARD = json.loads((DOCS / "grafana.json").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
# As the page says that Prometheus scrapes them.
(JOB,) = re.findall(r"job_name: (\w+)", (DOCS / "operating.md").read_text())
_LABELS = re.compile(r'(\w+)=~?"')


class Told:
    """What the pages tell: {metric: labels}, and the gauges among them."""

    def __init__(self, *pages: str) -> None:
        self.pages = pages
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
    """An address that stays free: other programs take ports of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        return f"127.0.0.2:{probe.getsockname()[1]}"


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
    pages: list[str] = []

    def is_complete() -> bool:
        """A page lacks what the server did not tell in time."""
        pages.append(_scraped(address))
        return "pgoutput_fast_capture_lag_seconds" in pages[-1]

    try:
        with Running(capture) as running:
            wait_until(lambda: running.failed or capture.metrics.running)
            place.database.execute("INSERT INTO t VALUES (2)")
            wait_until(lambda: running.failed or is_complete())
            assert running.failed is None
            return pages[-1]
    finally:
        drop_when_free(place.database.dsn, slot)


def _panels() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        yield panel
        yield from panel.get("panels", [])


def _queries() -> list[str]:
    return [target["expr"] for panel in _panels() for target in panel.get("targets", [])]


def test_the_pages_are_complete(told: Told) -> None:
    """Else the tests below would accept a metric, or miss a gauge, by chance."""
    assert len(told.labels) == 29
    assert told.labels["pgoutput_fast_mirror_lag_seconds"] == {"slot", "table"}
    assert told.labels["pgoutput_fast_capture_lag_seconds"] == {"slot"}


@pytest.fixture(scope="module")
def healthy(told: Told) -> list[Scrape]:
    """What Prometheus has, a minute apart. All is well."""
    return [_stored(told, at) for at in (0.0, 60.0)]


def _stored(told: Told, at: float, changes: Mapping[str, float | None] | None = None) -> Scrape:
    """One round of scrapes.

    Args:
        told: the pages.
        at: when.
        changes: {metric: its value in place of that of the page; None if it is not there}.
    """
    values: Vector = {}
    for number, page in enumerate(told.pages):
        text = "\n".join(
            changed
            for each in f"{page}\nup 1".splitlines()
            if (changed := _changed(each, changes or {})) is not None
        )
        values |= scrape(text, at, job=JOB, instance=f"host:{number}")[1]
    return at, values


def _changed(line: str, changes: Mapping[str, float | None]) -> str | None:
    name = re.split(r"[{ ]", line)[0]
    if name not in changes:
        return line
    value = changes[name]
    return None if value is None else f"{line.rpartition(' ')[0]} {value}"


def _rule(alert: str) -> dict[str, Any]:
    (rule,) = [each for each in RULES if each["alert"] == alert]
    return rule


# What happens, and the alert that tells it.
ALARMS = [
    ("PgoutputFastIsDown", {"up": 0}),
    ("CaptureIsNotConnected", {"pgoutput_fast_capture_running": 0}),
    ("CaptureCannotAskTheServer", {"pgoutput_fast_capture_lag_bytes": None}),
    ("CaptureConnectsAgainAndAgain", {"pgoutput_fast_capture_sessions_total": 50}),
    ("CaptureIsLate", {"pgoutput_fast_capture_lag_seconds": 301}),
    ("ServerKeepsWal", {"pgoutput_fast_capture_kept_bytes": 17e9}),
    ("ServerKeepsWal", {"pgoutput_fast_mirror_kept_bytes": 17e9}),
    ("SlotWillBeLost", {"pgoutput_fast_capture_kept_bytes": 33e9}),
    ("SlotWillBeLost", {"pgoutput_fast_mirror_kept_bytes": 33e9}),
    ("MirrorDoesNotRun", {"pgoutput_fast_mirror_running": 0}),
    ("MirrorCapturePauses", {"pgoutput_fast_mirror_paused": 1}),
    ("MirrorHasStoppedTables", {"pgoutput_fast_mirror_stopped_tables": 1}),
    ("MirroredTableIsLate", {"pgoutput_fast_mirror_lag_seconds": 901}),
    ("MirrorHistoriesAreLate", {"pgoutput_fast_mirror_history_lag_bytes": 17e9}),
    ("FirstLoadTakesLong", {"pgoutput_fast_mirror_points": None}),
]


def test_each_alert_has_a_case() -> None:
    assert {alert for alert, _ in ALARMS} == {rule["alert"] for rule in RULES}


@pytest.mark.parametrize(("alert", "changes"), ALARMS)
def test_an_alert_tells_what_it_says(
    alert: str, changes: dict[str, float | None], told: Told, healthy: list[Scrape]
) -> None:
    rule = _rule(alert)
    assert evaluate(rule["expr"], healthy) == {}
    alarmed = evaluate(rule["expr"], [*healthy, _stored(told, 120.0, changes)])
    assert alarmed
    shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    for labels in alarmed:
        assert shown <= {name for name, _ in labels}


def test_the_dashboard_shows_something(healthy: list[Scrape]) -> None:
    for panel in _panels():
        for target in panel.get("targets", []):
            found = evaluate(_of_grafana(target["expr"]), healthy)
            assert found, target["expr"]
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            for labels in found:
                assert shown <= {name for name, _ in labels}, panel["title"]


def _of_grafana(query: str) -> str:
    """A query as Grafana sends it if all slots and tables are chosen."""
    return query.replace("$__rate_interval", "4m").replace("$slot", ".*").replace("$table", ".*")


def test_each_metric_has_a_panel(told: Told) -> None:
    asked = {name for query in _queries() for name in re.findall(r"pgoutput_fast_\w+", query)}
    assert len(told.gauges) > 15
    assert told.gauges - asked == set()
    assert told.labels.keys() - asked == set()


def test_the_variables_of_the_dashboard_exist(healthy: list[Scrape]) -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$(?!__)\{?(\w+)", json.dumps(DASHBOARD["panels"])))
    assert used <= variables.keys()
    for each in variables.values():
        if each["type"] == "query":
            selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", each["definition"]).groups()  # type: ignore[union-attr]
            found = evaluate(_of_grafana(selector), healthy)
            assert {dict(labels)[label] for labels in found}, each["name"]


def test_alerts_lead_to_a_page() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) > 8
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        file, _, heading = rule["annotations"]["runbook"].partition("#")
        headings = re.findall(r"^#+ (.+)$", (DOCS / file).read_text(), re.M)
        assert heading in {each.lower().replace(" ", "-") for each in headings}, rule["alert"]


def test_a_mirror_before_its_first_load_tells_no_points() -> None:
    """An alert waits for them."""
    text = MirrorMetrics("s", True, (), None, None).to_prometheus()
    assert "pgoutput_fast_mirror_running" in text
    assert "points" not in text


def test_what_is_no_query_is_an_error(healthy: list[Scrape]) -> None:
    for query in (
        "up >",
        "rate(up)",
        "up[5m]",
        "max(up)",
        "sum by (job) (up)",
        "up and up",
        "1",
        "",
        "up) or up",
    ):
        with pytest.raises(ValueError, match=r"expected|read"):
            evaluate(query, healthy)


def test_queries_are_evaluated() -> None:
    """As Prometheus' documentation says. A counter that begins again has not gone back."""
    pages = ['a{s="x"} 5\na{s="y"} 1\nb{s="x"} 3', 'a{s="x"} 9\na{s="y"} 2\nb{s="x"} 1']
    stored = [scrape(page, at, job="j") for page, at in zip(pages, (0.0, 60.0), strict=True)]

    def given(query: str) -> dict[str, float]:
        return {dict(labels).get("s", ""): value for labels, value in evaluate(query, stored).items()}

    assert given("a") == {"x": 9, "y": 2}
    assert given('a{s=~"x|z"} or b') == {"x": 9}
    assert given("a > 2") == {"x": 9}
    assert given("a unless on (s, job) b") == {"y": 2}
    assert given("max by (job) (a)") == {"": 9}
    assert given("60 * rate(a[5m])") == {"x": 4, "y": 1}
    assert given("increase(b[5m])") == {"x": 1}
    assert given("deriv(b[5m])") == {"x": -2 / 60}
    assert given("increase(a[30s])") == {}

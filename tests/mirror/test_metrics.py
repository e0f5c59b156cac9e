"""What a mirror tells Prometheus is what its status says."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request

import pytest

from support.fresh import ahead, position_now
from support.mirrors import Place, lose_rows, place

__all__ = ["place"]


def _values(text: str, name: str) -> dict[str, float]:
    """{name of the table: value}; without a table, the name is empty."""
    lines = re.findall(
        rf'^pgoutput_fast_mirror_{name}{{slot="\w+"(?:,table="(.*)")?}} (\S+)$', text, re.MULTILINE
    )
    return {table: float(value) for table, value in lines}


@pytest.mark.slow
def test_a_run(place: Place) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    database, file = place.database, place.target.parent / "mirror.prom"
    database.execute(
        'CREATE TABLE "a\\b" (id int PRIMARY KEY)',
        "CREATE TABLE t (id int PRIMARY KEY, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO t VALUES (1, repeat('x', 5000))",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    with ahead(place, sound=False, metrics_address=address, metrics_file=file) as mirror:
        database.execute("INSERT INTO t VALUES (2, 'x')", 'INSERT INTO "a\\b" VALUES (1), (2)')
        position_now(place)
        # The page may show what another call has read within the last second, so there is one behind the changes.
        assert mirror.metrics.running
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=240) as answer:
            text = answer.read().decode()
        # Nothing is merged meanwhile, and nobody writes.
        status = {each.table.replace("\\", "\\\\").replace('"', '\\"'): each for each in mirror.status()}
        for name, attribute in (
            ("waiting_rows", "waiting_rows"),
            ("applied_rows_total", "applied_rows"),
            ("merges_total", "merges"),
            ("merge_seconds_total", "merge_seconds"),
        ):
            assert _values(text, name) == {table: getattr(each, attribute) for table, each in status.items()}
        waiting = _values(text, "waiting_rows")
        assert (waiting["public.t"], waiting[r"public.\"a\\b\""]) == (1, 2)
        assert all(
            0 < value <= status[table].lag_bytes for table, value in _values(text, "lag_bytes").items()
        )
        assert all(0 <= value < 1000 for value in _values(text, "lag_seconds").values())
        assert _values(text, "running") == {"": 1}
        assert _values(text, "stopped_tables") == {"": 0}
        assert 0 < _values(text, "kept_bytes")[""] < 10**9
        assert _values(text, "points")[""] >= 1
        assert _values(text, "history_lag_bytes")[""] < min(_values(text, "lag_bytes").values())
        database.execute("UPDATE t SET id = 3 WHERE id = 1")
        lose_rows(place, "public.t")
    # At the end, too; and nobody listens any more.
    metrics, text = mirror.metrics, file.read_text()
    assert (metrics.stopped, metrics.running) == (1, False)
    assert _values(text, "stopped_tables") == {"": 1}
    merged = {each.table: (each.applied_rows, each.merges) for each in metrics.tables}
    assert merged[r'public."a\b"'] == (2, 1)
    assert all(each.merge_seconds > 0 for each in metrics.tables if each.merges)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://{address}/metrics")


def test_before_it_runs(place: Place) -> None:
    mirror = place.mirror(metrics_address="here")
    assert "running" in mirror.metrics.to_prometheus()
    assert "lag" not in mirror.metrics.to_prometheus()
    place.database.execute("CREATE PUBLICATION mirrored FOR ALL TABLES")
    with mirror, pytest.raises(ValueError, match="the address of metrics must be host:port, not 'here'"):
        mirror.run(until_lsn="now")

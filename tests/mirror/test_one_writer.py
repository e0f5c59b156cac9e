"""Two mirrors on one target in a store: only one of them writes."""

from __future__ import annotations

import json
import threading

import pytest

from pgoutput_fast.mirror import MirrorBusyError, fresh, fresh_batches
from pgoutput_fast.storage.stores import open_store
from support import counters
from support.buckets import opened_bucket
from support.capturing import wait_until
from support.counters import TABLE, Counting, expect_counted
from support.fresh import ahead, position_now
from support.mirrors import Place, mirrored_rows, place, recorded, rows_of

__all__ = ["place"]


@pytest.mark.slow
def test_two_mirrors_in_a_store(place: Place) -> None:
    """The second one is refused while the first one lives, and goes on behind it at once."""
    place.database.execute(*counters.SCHEMA)
    with opened_bucket("lakes") as bucket:
        place.target = bucket.uri % "mine"
        process = place.start()
        try:
            wait_until(lambda: process.poll() is not None or recorded(place.target))
            with (
                pytest.raises(MirrorBusyError, match="mirrors into s3://lakes/mine: stop it first"),
                place.mirror(),
            ):
                pass
            place.database.execute("UPDATE counted SET n = n + 1")
        finally:
            process.kill()
            process.communicate()
        place.run()
        expect_counted(place)


@pytest.mark.slow
def test_a_mirror_that_lost_its_target(place: Place) -> None:
    """Another process has taken it. The first one finds out before its next commit, and writes nothing more."""
    place.database.execute(*counters.SCHEMA)
    with opened_bucket("lakes") as bucket:
        place.target = bucket.uri % "mine"
        store, failed = open_store(place.target), []
        with Counting(place.database), place.mirror() as mirror:
            mirror.run(until_lsn="now")

            def follow() -> None:
                try:
                    mirror.run()
                except BaseException as problem:
                    failed.append(problem)

            thread = threading.Thread(target=follow)
            thread.start()
            mark = json.loads(store.read("_mirror/writer.json"))
            store.put(
                "_mirror/writer.json", json.dumps({**mark, "token": "0" * 32, "host": "other"}).encode()
            )
            thread.join(240)
            assert isinstance(failed[0], MirrorBusyError)
            assert "on other (since" in str(failed[0])
            before = _versions(place)
            with pytest.raises(MirrorBusyError):
                mirror.run(until_lsn="now")
            with pytest.raises(MirrorBusyError):
                mirror.reload(TABLE)
            assert _versions(place) == before
        place.run()  # the other process writes no heartbeat
        expect_counted(place)


def _versions(place: Place) -> list[str]:
    store = open_store(place.target)
    directories = (f"{kind}/{TABLE}/_delta_log" for kind in ("current", "history"))
    return sorted(name for directory in directories for name in store.names(directory))


@pytest.mark.slow
def test_fresh_in_a_store(place: Place) -> None:
    """The changes that wait, and the current table, come from the store."""
    place.database.execute(*counters.SCHEMA)
    with opened_bucket("lakes") as bucket:
        place.target = bucket.uri % "a%20lake/mine"
        with ahead(place) as mirror:
            place.database.execute(
                "UPDATE counted SET n = n + 1 WHERE id < 9",
                "DELETE FROM counted WHERE id = 3",
                "UPDATE counted SET id = 100 WHERE id = 4",
            )
            lsn = position_now(place)
            assert mirror.status()[0].waiting_rows > 9
            names, expected = rows_of(place.database, "counted")
            assert mirrored_rows(fresh(place.target, TABLE, position=lsn), names) == expected
            with fresh_batches(place.target, TABLE, ["id"]) as batches:
                assert sum(batch.num_rows for batch in batches) == 19
        assert mirrored_rows(fresh(place.target, TABLE), names) == expected

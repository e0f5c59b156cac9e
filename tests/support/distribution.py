"""The order in which the processes of a test run (`-n`) get the test files.

pytest-xdist starts with the files that have most tests. These are files of quick tests, so slow files are left for the
end, where some processes wait for the last one. `LongestFirst` starts with the slowest files. It also gives the files
that need a Spark to as few processes as possible: each of them has a JVM of its own, which takes ten seconds of CPU time
to start. Meanwhile, the others run tests that mostly wait, for example for a server or a mirror.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xdist.scheduler import LoadFileScheduling

__all__ = ["SECONDS", "SPARK", "LongestFirst", "seconds"]

# Processes that run the tests of Spark. A query uses more than one core.
_SPARK_PROCESSES = 2
SPARK = ("tests/spark/", "tests/mirror/view/test_layers.py")
# Seconds a test, roughly. The first prefix that fits counts. If a number is wrong, only the order is worse.
SECONDS: Mapping[str, float] = {
    "tests/capture/test_cut.py": 3,
    "tests/capture/test_faults.py": 3,
    "tests/capture/test_process.py": 3,
    "tests/capture/test_shown.py": 0.02,
    "tests/capture/": 1,
    "tests/cli/": 0.6,
    "tests/core/test_assemble.py": 0.6,
    "tests/decoding/test_differential.py": 5,
    "tests/decoding/test_fixtures.py": 0.25,
    "tests/decoding/test_leaks.py": 3,
    "tests/decoding/test_memory": 1.5,
    "tests/decoding/test_quarantine.py": 0.1,
    "tests/decoding/test_threads.py": 0.8,
    "tests/demo/test_demo.py": 0.1,
    "tests/demo/": 1.1,
    "tests/encode/test_nested.py": 3,
    "tests/examples/": 2,
    "tests/live/test_positions.py": 1.2,
    "tests/live/": 1.5,
    "tests/merge/effect/test_net_effect.py": 1.3,
    "tests/merge/test_staged.py": 2,
    "tests/merge/test_units.py": 0.7,
    "tests/mirror/compare/": 0.1,
    "tests/mirror/test_alterations.py": 9,
    "tests/mirror/test_catalog_changes.py": 4,
    "tests/mirror/test_damaged.py": 10,
    "tests/mirror/test_errors.py": 2,
    "tests/mirror/test_faults.py": 6,
    "tests/mirror/test_field_ids.py": 2,
    "tests/mirror/test_filters.py": 2,
    "tests/mirror/test_fingerprint.py": 0.1,
    "tests/mirror/test_history.py": 0.3,
    "tests/mirror/test_interrupted_load.py": 16,
    "tests/mirror/test_keys.py": 0.2,
    "tests/mirror/test_left_out.py": 1.2,
    "tests/mirror/test_locks.py": 9,
    "tests/mirror/test_options.py": 0.2,
    "tests/mirror/test_pace.py": 0.1,
    "tests/mirror/test_published_for_a_while.py": 3,
    "tests/mirror/test_random_ddl.py": 0.1,
    "tests/mirror/test_renamed_columns.py": 4,
    "tests/mirror/test_repair.py": 1,
    "tests/mirror/test_rewritten.py": 2,
    "tests/mirror/test_schema_changes.py": 8,
    "tests/mirror/test_service.py": 8,
    "tests/mirror/test_slot_owner.py": 3,
    "tests/mirror/test_until.py": 3,
    "tests/mirror/test_user_types.py": 8,
    "tests/mirror/view/": 3,
    "tests/mirror/": 3,
    "tests/oracle/test_facts_streams.py": 0.7,
    "tests/oracle/test_protocols.py": 0.7,
    "tests/oracle/test_sessions.py": 2.5,
    "tests/oracle/test_streams.py": 0.5,
    "tests/parallel_tag/test_summary.py": 0.3,
    "tests/postgres/test_sql.py": 0.03,
    "tests/postgres/test_sql_ascii.py": 1,
    "tests/postgres/test_swapped.py": 3.5,
    "tests/postgres/test_untranslatable.py": 1,
    "tests/postgres/test_wal_level.py": 2,
    "tests/postgres/": 0.3,
    "tests/project/test_add_a_type.py": 0.02,
    "tests/project/test_benchmarks.py": 0.2,
    "tests/project/test_docs_mirror.py": 4,
    "tests/project/test_extras.py": 1.5,
    "tests/project/test_fetch.py": 1.6,
    "tests/project/test_lists.py": 0.01,
    "tests/project/test_sizes.py": 0.02,
    "tests/project/test_wheel.py": 1.9,
    "tests/project/": 0.1,
    "tests/segments/test_outcomes.py": 0.15,
    "tests/segments/test_planner.py": 1.7,
    "tests/segments/": 0.6,
    "tests/snapshot/": 0.7,
    "tests/spark/test_auto_cdc.py": 60,
    "tests/spark/test_compression.py": 0.5,
    "tests/spark/test_current_beside_mirror.py": 5,
    "tests/spark/test_current_buckets.py": 0.1,
    "tests/spark/test_current_sink.py": 3,
    "tests/spark/test_first_steps.py": 3,
    "tests/spark/test_metadata.py": 0.6,
    "tests/spark/test_order.py": 0.3,
    "tests/spark/test_read_tables.py": 4,
    "tests/spark/test_shipping.py": 0.3,
    "tests/spark/test_stream.py": 4,
    "tests/spark/test_stream_reader.py": 0.3,
    "tests/spark/test_stopped_current_tables.py": 8,
    "tests/spark/test_table_faults.py": 4,
    "tests/spark/test_table_sink.py": 6,
    "tests/spark/test_tables_in_store.py": 4,
    "tests/spark/test_tag_batches.py": 6,
    "tests/spark/test_tag_decoded.py": 6,
    "tests/spark/test_tag_state.py": 0.7,
    "tests/spark/test_udf.py": 0.5,
    "tests/spark/test_upserts.py": 1,
    "tests/spark/test_write_raw.py": 5,
    "tests/spark/test_write_segments": 5,
    "tests/spark/": 1.7,
    "tests/storage/test_lease.py": 3,
    "tests/tables/current/": 1,
    "tests/tables/": 0.5,
    "tests/transactions/test_soak.py": 6,
    "tests/transactions/test_spill.py": 0.3,
}
_OTHERS = 0.03


class LongestFirst(LoadFileScheduling):
    """`--dist loadfile`, with the order of this module."""

    def schedule(self) -> None:
        self.config.option.loadscopereorder = False
        super().schedule()

    def _assign_work_unit(self, node: Any) -> None:
        for_spark = node in self.nodes[:_SPARK_PROCESSES]
        # Files of the other kind come only after the own ones.
        file = max(
            self.workqueue,
            key=lambda file: (file.startswith(SPARK) == for_spark, seconds(file, len(self.workqueue[file]))),
        )
        self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)


def seconds(file: str, tests: int) -> float:
    """How long a test file takes, roughly."""
    return tests * next((weight for prefix, weight in SECONDS.items() if file.startswith(prefix)), _OTHERS)

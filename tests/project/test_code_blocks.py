"""Every code block of README.md and of the pages is run by a test, or is declared as not run, with the reason.

If a page gets a new block: let a test run it, and name the test in `BLOCKS`.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from support.code_blocks import blocks_of
from support.paths import DOCS, ROOT, TESTS

NOT_RUN = "not run: "
SHELL = f"{NOT_RUN}commands that install, build, or measure for minutes"
CLIENT = f"{NOT_RUN}a client program of PostgreSQL, with the database of the reader"
ERROR = f"{NOT_RUN}the text of an error"
DRAWING = f"{NOT_RUN}a drawing"
SETTINGS = f"{NOT_RUN}settings of another program, with names of the reader's machines"

_LINE = "project/test_docs_command_line.py::"
_DECODING = "project/test_docs_decoding.py::"
_OPERATING = "project/test_docs_operating.py::"
_SEGMENTS = "spark/test_segments.py::test_the_page_does_what_it_says"

# {page: {heading: (how many blocks it has, who runs them)}}. "" has the headings that are not named. Who runs blocks is
# a test, or the reason why nobody does. A block that shows what is printed counts, too.
BLOCKS: dict[str, dict[str, tuple[int | str, ...]]] = {
    "README.md": {
        "Try it": (
            3,
            "project/test_readme.py::test_the_programs_that_follow_and_mirror",
            SHELL,
        ),
        "Mirror a database": (3, "project/test_readme.py::test_the_programs_that_follow_and_mirror"),
        "Raw payloads on Spark": (3, "project/test_readme.py::test_all_programs_one_after_the_other"),
    },
    "architecture.md": {
        "How it is built": (1, DRAWING),
        "Layers": (1, "project/test_architecture.py::test_the_drawing_is_that_of_the_imports"),
    },
    "capture.md": {
        "": (5, "project/test_docs.py::test_a_capture_does_what_the_page_says"),
        "The initial load": (
            3,
            "project/test_docs_snapshot.py::test_an_initial_load_does_what_the_page_says",
        ),
        "Tables that are published later": (
            1,
            "project/test_docs_snapshot.py::test_an_initial_load_does_what_the_page_says",
        ),
        "On Spark": (1, "spark/test_snapshot.py::test_the_page_reads_a_table"),
    },
    "command-line.md": {
        "": (9, f"{_LINE}test_the_commands_print_what_the_page_says"),
        "slots": (
            4,
            f"{_LINE}test_the_commands_print_what_the_page_says",
            "mirror/test_failover.py::test_failover_of_slots",
        ),
        "The command line": (1, SHELL),
        "inspect and decode": (1, f"{_LINE}test_commands_that_need_no_server"),
        "From a file to a table": (6, f"{_LINE}test_messages_of_a_file", CLIENT),
        "One message in hex digits": (3, f"{_LINE}test_messages_of_a_file", CLIENT),
        "Filters": (2, f"{_LINE}test_messages_of_a_file"),
        "Tables": (2, f"{_LINE}test_messages_of_a_file"),
        "segments": (1, f"{_LINE}test_commands_that_need_no_server"),
        "bench": (1, "cli/test_bench.py::test_a_table_for_a_person"),
        "demo": (1, "demo/test_demo.py::test_demo_runs_and_its_tables_equal_the_servers"),
        "Completion": (1, f"{NOT_RUN}it changes the settings of a shell"),
    },
    "current-tables.md": {
        "Iceberg": (1, "tables/current/test_iceberg.py::test_the_page_reads_the_rows"),
        "DuckDB": (1, "tables/current/test_duckdb.py::test_the_page_reads_the_rows"),
        "DuckLake": (1, "mirror/test_ducklake.py::test_the_page_reads_the_rows"),
    },
    "decoding.md": {
        "Decoding": (2, f"{_DECODING}test_the_rows_of_a_query", f"{NOT_RUN}the arguments of a call"),
        "An example": (
            2,
            "project/test_wheel.py::test_the_check_of_an_installation_runs_an_example_and_every_extension",
        ),
        "In other libraries": (1, "decoding/test_result.py::test_the_page_shows_other_libraries"),
        "Positions": (1, f"{_DECODING}test_positions"),
        "Versions of a table": (4, f"{_DECODING}test_pinned_and_chosen_columns"),
        "State": (1, f"{_DECODING}test_a_state_goes_on"),
        "Walsender frames": (1, f"{_DECODING}test_frames_of_a_walsender"),
        "Files of pg_recvlogical": (2, "messages/test_recvlogical.py::test_the_page_reads_a_file", CLIENT),
        "Look at a message": (2, "messages/test_describe.py::test_the_page_shows_what_is_printed"),
        "Threads and batches": (1, f"{_DECODING}test_other_ways_give_the_same"),
        "Transactions": (2, "project/test_docs.py::test_the_committed_view_gives_what_the_page_says"),
        "Memory and files": (1, "project/test_docs.py::test_cleaning_leaves_what_states_need"),
        "Tag once, decode anywhere": (1, f"{_DECODING}test_other_ways_give_the_same"),
        "Make messages": (1, "project/test_api.py::test_messages_are_made_as_the_page_says"),
    },
    "examples.md": {
        "Examples": (1, "examples/test_kafka.py::test_it_prints_what_the_page_says"),
        "Kafka, in Python": (2, "examples/test_kafka.py::test_it_prints_what_the_page_says"),
        "Kafka, on Spark": (2, "spark/test_examples.py::test_kafka_on_spark"),
        "A declarative pipeline of Spark": (1, "spark/test_examples.py::test_a_declarative_pipeline"),
        "DuckDB over segments and a mirror": (
            2,
            "examples/test_lake_in_duckdb.py::test_it_prints_what_the_page_says",
        ),
        "A cache that forgets what changed": (
            1,
            "examples/test_cache_invalidator.py::test_a_reader_sees_changes",
        ),
        "From Debezium": (2, "examples/test_debezium_events.py::test_the_event_of_the_page"),
        "From pypgoutput": (2, "examples/test_pypgoutput_reader.py::test_it_prints_what_the_page_says"),
        "A notebook, from a server to Spark": (
            14,
            "spark/test_notebook.py::test_the_notebook_runs_and_prints_what_it_says",
        ),
    },
    "follow.md": {
        "": (4, "project/test_docs_follow.py::test_the_page"),
        "Exactly once": (1, "live/test_positions.py::test_the_recipe_killed_at_random_moments"),
    },
    "installation.md": {"": (3, SHELL)},
    "mirror.md": {"": (10, "project/test_docs_mirror.py::test_the_page")},
    "concepts.md": {"Fresh tables": (2, "project/test_docs_mirror.py::test_the_page")},
    "failures.md": {"When the slot is lost": (3, "project/test_docs_mirror.py::test_the_page")},
    "operating.md": {
        "": (8, f"{_OPERATING}test_the_runbook", SETTINGS),
        "Run it as a service": (
            4,
            f"{_OPERATING}test_services_get_options_that_exist",
            f"{_OPERATING}test_the_image_has_an_extra_and_a_program_that_exist",
            SETTINGS,
        ),
        "Failover": (
            3,
            f"{_OPERATING}test_a_slot_for_failover",
            "mirror/test_failover.py::test_a_standby_takes_over",
        ),
    },
    "performance.md": {"": (1, SHELL), "How executors get the package": (1, ERROR)},
    "prerequisites.md": {
        "": (7, "project/test_docs_prerequisites.py::test_the_steps"),
        "5. Network and passwords": (
            3,
            "project/test_docs_prerequisites.py::test_the_connection_string_names_options_of_libpq",
            "project/test_docs_prerequisites.py::test_a_password_that_changes",
            SETTINGS,
        ),
    },
    "segments.md": {"": (6, "project/test_docs.py::test_segments_hold_what_the_page_says")},
    "spark.md": {
        "": (17, _SEGMENTS),
        "Errors": (2, _SEGMENTS, ERROR),
        "The data source": (4, "spark/test_source.py::test_the_page_says_what_is_so"),
        "Filters": (1, "spark/test_source.py::test_the_page_says_what_is_so"),
        "AUTO CDC": (1, "spark/test_auto_cdc.py::test_auto_cdc_has_the_rows_of_the_server"),
        "Single payloads": (1, "spark/test_source.py::test_the_page_says_what_is_so"),
        "Untagged payloads": (3, "spark/test_tag.py::test_the_page_says_how"),
        "Damaged payloads": (1, "spark/test_tag.py::test_the_page_says_how"),
        "The next payloads": (1, "spark/test_tag.py::test_the_page_says_how"),
        "Into segments": (1, "spark/test_tag.py::test_the_page_says_how"),
        "Spark Connect": (2, SHELL),
    },
    "streaming.md": {
        "": (2, "spark/test_stream.py::test_the_page_says_what_is_so"),
        "Current tables": (1, "spark/test_current_sink.py::test_the_page"),
        "Raw payloads": (
            3,
            "spark/test_tag_batches.py::test_the_example_with_files",
            "spark/test_tag_batches.py::test_the_example_with_the_columns_of_kafka",
            f"{NOT_RUN}a sketch, which needs a Kafka",
        ),
    },
    "types.md": {
        "": (1, f"{_DECODING}test_a_server_explains_types"),
        "What Spark holds": (1, "spark/test_types.py::test_moments_beyond_those_of_python"),
    },
}
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_somebody_runs_each_block(page: Path) -> None:
    known = BLOCKS.get(page.name, {})
    found = Counter(each.heading if each.heading in known else "" for each in blocks_of(page))
    assert found == {heading: count for heading, (count, *_) in known.items()}, (
        f"{page.name} has another number of code blocks than BLOCKS says. Let a test run the new one, and name it there"
    )


def test_who_runs_blocks_exists() -> None:
    named = {
        who for headings in BLOCKS.values() for _, *whole in headings.values() for who in map(str, whole)
    }
    for path, _, name in (who.partition("::") for who in named if not who.startswith(NOT_RUN)):
        defined = {
            each.name
            for each in ast.walk(ast.parse((TESTS / path).read_text()))
            if isinstance(each, ast.FunctionDef)
        }
        assert name in defined, f"{path} has no test {name}"


def test_how_blocks_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n    one\n\n    two\n\nText\n\n```sh\nthree\n```\n\n## B\n\n- an item\n\n    of two paragraphs\n\n"
        "    ```sql\n    four\n    ```\n"
    )
    assert [(each.heading, each.language, each.text) for each in blocks_of(page)] == [
        ("A", "indented", "one\n\ntwo\n"),
        ("A", "sh", "three\n"),
        ("B", "sql", "four\n"),
    ]

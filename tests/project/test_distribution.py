"""The order of the test files in `make test`: slow ones first, and those of Spark in few processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from support.distribution import SECONDS, SPARK, LongestFirst, seconds
from support.paths import ROOT


def test_every_prefix_is_of_a_file() -> None:
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    assert [
        prefix for prefix in (*SECONDS, *SPARK) if not any(file.startswith(prefix) for file in files)
    ] == []


class _Node:
    shutting_down = False
    gateway = SimpleNamespace(id="gw0")

    def __init__(self) -> None:
        self.files: list[str] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.files.append(TESTS[indices[0]].split("::")[0])

    def shutdown(self) -> None:
        self.shutting_down = True


TESTS = [
    f"tests/{file}.py::test_{k}"
    for file, count in (
        ("core/test_many", 60),
        ("mirror/test_few", 4),
        ("mirror/test_more", 5),
        ("spark/test_few", 4),
        ("spark/test_more", 5),
        ("spark/test_most", 6),
    )
    for k in range(count)
]


def test_slow_files_come_first_and_each_process_has_its_kind() -> None:
    options: Any = SimpleNamespace(tx=["3*popen"], loadscopereorder=True)
    config: Any = SimpleNamespace(option=options, getvalue=lambda name: getattr(options, name))
    order = LongestFirst(config)
    nodes = [_Node() for _ in range(3)]
    for node in nodes:
        order.add_node(node)
    for node in nodes:
        order.add_node_collection(node, TESTS)
    order.schedule()
    assert [node.files for node in nodes] == [
        ["tests/spark/test_most.py"],
        ["tests/spark/test_more.py"],
        ["tests/mirror/test_more.py"],
    ]
    for node, prefix in ((nodes[2], "tests/mirror/test_more"), (nodes[0], "tests/spark/test_most")):
        for k, name in enumerate(TESTS):
            if name.startswith(prefix):
                order.mark_test_complete(node, k)
    assert nodes[2].files[1:] == ["tests/mirror/test_few.py"]
    assert nodes[0].files[1:] == ["tests/spark/test_few.py"]
    assert seconds("tests/mirror/test_few.py", 4) > seconds("tests/core/test_many.py", 60)

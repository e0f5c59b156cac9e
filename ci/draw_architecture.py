# Draw the layers of the package into docs/contributing/architecture.md, as a Mermaid diagram of the existing imports.
#
# python ci/draw_architecture.py [--check]
#
# A box is a group of `LAYERS` in ci/layers.py, with its folders and files. An arrow is an import. Implied arrows are
# left out: if a imports b and c, and b imports c, then there is no arrow from a to c. With --check nothing is written;
# the exit status is 1 if the drawing is stale.
"""Draw the layers of the package into docs/contributing/architecture.md: a Mermaid diagram of the imports that exist.

    python ci/draw_architecture.py [--check]

A box is a group of `LAYERS` in ci/layers.py, with its folders and files. An arrow is an import. An arrow that others
imply is left out: if a imports b and c, and b imports c, then there is no arrow from a to c. With --check nothing is
written; the exit status is 1 if the drawing is stale.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from itertools import pairwise

from layers import LAYERS, PACKAGE, own_imports, place, read_imports
from repository import ROOT, SOURCE, update_page

PAGE = ROOT / "docs" / "contributing" / "architecture.md"
COMMAND = "python ci/draw_architecture.py"
BEGIN, END = f"<!-- written by `{COMMAND}`: begin -->\n", "<!-- end -->\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Draw the layers of the package into docs/contributing/architecture.md."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the drawing is stale")
    check = parser.parse_args(arguments).check
    return update_page(PAGE, ROOT, page(PAGE.read_text()), COMMAND, check=check)


def page(text: str) -> str:
    """The text of docs/contributing/architecture.md with the current drawing."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{PAGE.relative_to(ROOT)} has no marks {BEGIN.strip()!r} and {END.strip()!r}")
    return f"{before}{BEGIN}{drawing(arrows(own_imports(read_imports(SOURCE))))}{END}{after}"


def arrows(imports: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """The imports between groups, without implied ones. Every group is a key."""
    direct: dict[str, set[str]] = {group: set() for groups in LAYERS for group in groups}
    for module, others in imports.items():
        here = place(module)
        for other in others:
            there = place(other)
            if here is not None and there is not None and here != there:
                direct[here[1]].add(there[1])
    return without_implied(direct)


def without_implied(direct: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The arrows of an acyclic graph that no other path implies."""
    reached: dict[str, set[str]] = {}

    def reach(group: str) -> set[str]:
        if group not in reached:
            reached[group] = set(direct[group]).union(*map(reach, direct[group]))
        return reached[group]

    return {
        group: {other for other in others if not any(other in reach(way) for way in others)}
        for group, others in direct.items()
    }


def drawing(drawn: Mapping[str, set[str]]) -> str:
    """The diagram. Hidden links keep each layer below the one above it."""
    lines = ["```mermaid", "flowchart TB"]
    for rank, groups in enumerate(LAYERS, 1):
        boxes = [f'{_key(group)}["{_label(patterns)}"]' for group, patterns in groups.items()]
        if len(boxes) > 1:
            lines += [f'    subgraph layer{rank}[" "]', *(f"        {box}" for box in boxes), "    end"]
        else:
            lines.append(f"    {boxes[0]}")
    lines += [
        f"    {_key(group)} --> {_key(each)}" for group, others in drawn.items() for each in sorted(others)
    ]
    for above, below in pairwise(LAYERS):
        hidden = [(upper, lower) for upper in above for lower in below if lower not in drawn[upper]]
        lines += [f"    {_key(upper)} ~~~ {_key(lower)}" for upper, lower in hidden]
    frames = [f"layer{rank}" for rank, groups in enumerate(LAYERS, 1) if len(groups) > 1]
    lines += [f"    style {frame} fill:none,stroke:#888,stroke-dasharray:4" for frame in frames]
    return "".join(f"{line}\n" for line in [*lines, "```"])


def _key(group: str) -> str:
    return group.strip("_").replace(" ", "_")


def _label(patterns: Iterable[str]) -> str:
    """The folders and files of a group; those of the package itself are its `__init__.py`."""
    paths = [each.replace(".", "/") for each in patterns if not each.endswith(".*")]
    shown = [f"{path}/" if (SOURCE / PACKAGE / path).is_dir() else f"{path}.py" for path in paths if path]
    return ", ".join(shown) if shown else "#95;#95;init#95;#95;.py"


if __name__ == "__main__":
    sys.exit(main())

"""Tests the converters on ARM, with and without NEON. Every test cell must give the same bits there as on this machine.

The same program is compiled for both processors and gets the same cells. An emulated processor runs the ARM program.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from arm.emulator import run
from cases import FLAGS, case, cases

from cells.vector_kinds import KINDS
from pgoutput_fast import Column, Options
from pgoutput_fast.schema.column_types import column_type_of


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The program compiled for this machine, and compiled for ARM."""
    made = tmp_path_factory.mktemp("programs")
    subprocess.run([os.environ.get("CXX", "c++"), "-O3", *FLAGS, "-o", str(made / "here")], check=True)
    zig = [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-musl", "-static"]
    subprocess.run([*zig, "-O3", *FLAGS, "-o", str(made / "arm")], check=True)
    return made / "here", made / "arm"


@pytest.mark.parametrize("name", sorted(cases("portable")))
def test_cells_become_the_same(programs: tuple[Path, Path], name: str) -> None:
    here, arm = programs
    given = {level: cases(level)[name] for level in ("portable", "neon")}
    wanted = subprocess.run([here], input=given["portable"], stdout=subprocess.PIPE, check=True).stdout
    assert len(wanted) > 100
    for level in given:
        found, _ = run(arm, given[level])
        assert found == wanted, level


@pytest.mark.parametrize(
    ("name", "least"), [("int4", 1.2), ("oid", 1.2), ("uuid", 3), ("binary uuid", 1.5), ("long bytea", 3)]
)
def test_neon_takes_fewer_instructions(programs: tuple[Path, Path], name: str, least: float) -> None:
    oid, typmod, binary, make = KINDS[name]
    kind = column_type_of(Column("c", oid, typmod), Options())
    rng = random.Random(1)
    cells: list[bytes | None] = [make(rng) for _ in range(520)]
    taken = {}
    for level in ("portable", "neon"):
        once, more = (run(programs[1], case(level, kind, binary, cells, times))[1] for times in (1, 11))
        taken[level] = (more - once) / 10 / len(cells)
    print(f"{name}: {taken['portable']:.0f} instructions per cell, {taken['neon']:.0f} with NEON")
    assert taken["portable"] > least * taken["neon"]

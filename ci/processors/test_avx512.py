"""Tests the vector loops for AVX-512 on a processor without it. Results must be equal to those of the portable code.

The program is compiled for AVX2, with functions instead of the instructions of AVX-512.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from cases import FLAGS, HERE, cases

from pgoutput_fast._core.columns.column import use_vectors


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if use_vectors("avx2") != "avx2":
        assert os.environ.get("CI") != "true", "CI must run on a processor with AVX2"
        pytest.skip("this processor has no AVX2")
    made = tmp_path_factory.mktemp("programs") / "cells"
    command = [
        os.environ.get("CXX", "g++"),
        "-O1",
        f"-I{HERE / 'avx512'}",
        "-D__builtin_cpu_supports(name)=1",
    ]
    subprocess.run([*command, *FLAGS, "-o", str(made)], check=True)
    return made


@pytest.mark.parametrize("name", sorted(cases("portable")))
def test_cells_become_the_same(program: Path, name: str) -> None:
    wanted, *found = (
        subprocess.run([program], input=cases(level)[name], stdout=subprocess.PIPE, check=True).stdout
        for level in ("portable", "avx2", "avx512")
    )
    assert len(wanted) > 100
    for each in found:
        assert each == wanted

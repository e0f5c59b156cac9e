"""Builds the compiled core: the Cython extensions. All other metadata is in pyproject.toml."""

import multiprocessing
import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

CORE = Path("src/pgoutput_fast/_core")
# PGOUTPUT_FAST_CFLAGS adds flags to these, for example -fsanitize=address,undefined.
FLAGS = [
    "-std=c++17",
    "-O3",
    # Python's own flags ask for debug information, which takes a fifth of the time, and the linker strips it.
    "-g0",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
]
FLAGS += os.environ.get("PGOUTPUT_FAST_CFLAGS", "").split()
LINK_FLAGS = os.environ.get("PGOUTPUT_FAST_LDFLAGS", "-Wl,--strip-all").split()
# A process that is not forked would run this file again.
JOBS = os.cpu_count() or 1 if multiprocessing.get_start_method() == "fork" else 0
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "embedsignature": True,
}

setup(
    ext_modules=cythonize(
        [
            Extension(
                ".".join(source.relative_to("src").with_suffix("").parts),
                [str(source)],
                language="c++",
                include_dirs=[str(CORE)],
                extra_compile_args=FLAGS,
                extra_link_args=LINK_FLAGS,
                depends=[str(header) for header in sorted(CORE.rglob("*.hpp"))],
            )
            for source in sorted(CORE.rglob("*.pyx"))
        ],
        include_path=["src"],
        compiler_directives=DIRECTIVES,
        nthreads=JOBS,
    ),
    options={"build_ext": {"parallel": os.cpu_count()}},
)

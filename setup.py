"""Builds the compiled core: the Cython extensions. All other metadata is in pyproject.toml.

Environment variables change how: PGOUTPUT_FAST_ABI3=1 builds extensions that CPython 3.11 and every later one can load
(docs/installation.md says what this costs), PGOUTPUT_FAST_CFLAGS and PGOUTPUT_FAST_LDFLAGS add and replace flags.
"""

import multiprocessing
import os
import sys
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
# The linker of macOS does not know --strip-all.
STRIP = "-Wl,-x" if sys.platform == "darwin" else "-Wl,--strip-all"
LINK_FLAGS = os.environ.get("PGOUTPUT_FAST_LDFLAGS", STRIP).split()
ABI3 = os.environ.get("PGOUTPUT_FAST_ABI3") == "1"
# These commands only list files, so they need no generated C++. To generate it takes a minute.
COMPILES = not {"sdist", "egg_info", "dist_info"} & set(sys.argv)
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

extensions = [
    Extension(
        ".".join(source.relative_to("src").with_suffix("").parts),
        [str(source)],
        language="c++",
        include_dirs=[str(CORE)],
        define_macros=[("Py_LIMITED_API", "0x030b0000"), ("CYTHON_LIMITED_API", "1")] if ABI3 else [],
        py_limited_api=ABI3,
        extra_compile_args=FLAGS,
        extra_link_args=LINK_FLAGS,
        depends=[str(header) for header in sorted(CORE.rglob("*.hpp"))],
    )
    for source in sorted(CORE.rglob("*.pyx"))
]
if COMPILES:
    extensions = cythonize(extensions, include_path=["src"], compiler_directives=DIRECTIVES, nthreads=JOBS)

setup(
    ext_modules=extensions,
    options={
        "build_ext": {"parallel": os.cpu_count()},
        "bdist_wheel": {"py_limited_api": "cp311"} if ABI3 else {},
    },
)

"""Builds the compiled core, and the description for PyPI. All other metadata is in pyproject.toml.

Environment variables change how: PGOUTPUT_FAST_ABI3=1 builds extensions that CPython 3.11 and every later one can load
(docs/installation.md says what this costs), PGOUTPUT_FAST_CFLAGS and PGOUTPUT_FAST_LDFLAGS add and replace flags.
"""

import multiprocessing
import os
import re
import sys
import tomllib
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


def description() -> str:
    """README.md for PyPI: links into the repository are absolute, or only text while no repository is known."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    repository = project.get("urls", {}).get("Repository")

    def absolute(link: re.Match[str]) -> str:
        image, text, target = link.groups()
        if repository is None:
            return "" if image else text
        return f"{image}[{text}]({repository}/{'raw' if image else 'blob'}/v{project['version']}/{target})"

    return re.sub(r"(!?)\[([^]]*)\]\((?![a-z]+:|#)([^)\s]+)\)", absolute, Path("README.md").read_text())


setup(
    long_description=description(),
    long_description_content_type="text/markdown",
    ext_modules=extensions,
    options={
        "build_ext": {"parallel": os.cpu_count()},
        "bdist_wheel": {"py_limited_api": "cp311"} if ABI3 else {},
    },
)

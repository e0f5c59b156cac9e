"""A mirror whose disk is full ends with an error that says so. With more space, the next run goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support import counters
from support.counters import expect_counted
from support.mirrors import Place, expect_equal, history_of, place

__all__ = ["place"]


@pytest.mark.slow
def test_a_disk_that_is_full(place: Place, tmp_path: Path) -> None:
    """A small file system that only the mirrors see. The first load fits, and what comes then does not."""
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)]
    if not shutil.which("unshare") or subprocess.run([*unshare, *mount], capture_output=True).returncode:
        pytest.skip("nobody may mount here")
    database = place.database
    database.execute(
        *counters.SCHEMA,
        "CREATE TABLE large (id int PRIMARY KEY, v text)",
        "ALTER PUBLICATION mirrored ADD TABLE large",
    )
    place.target = disk / "lake"
    script = f"""
        set -e
        {" ".join(mount)}
        "$@"
        echo loaded
        read filled
        if "$@"; then echo "it fitted"; exit 1; fi
        mount -o remount,size=200m {disk}
        "$@"
        cp -r {disk}/lake {copy}
    """
    command = [*unshare, "sh", "-c", script, "sh", *place.arguments("--until", "now", "--quiet")]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=place.environment,
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "loaded\n"
        for n in range(30):  # what does not compress
            database.execute(
                f"INSERT INTO large SELECT {n} * 100 + g, (SELECT string_agg(md5(random()::text || g || h), '') "
                "FROM generate_series(1, 40) h) FROM generate_series(1, 100) g",
                "UPDATE counted SET n = n + 1",
            )
        told, said = run.communicate("filled\n", timeout=300)
    assert (run.returncode, told) == (0, ""), said
    (error,) = [line for line in said.splitlines() if line.startswith("pgoutput-fast: ")]
    assert "No space left on device" in error
    assert ". There is no space for " in error
    place.target = copy
    expect_equal(place, "public.large")
    assert sorted(history_of(copy, "public.large")["id"].to_pylist()) == list(range(1, 3001))
    expect_counted(place)

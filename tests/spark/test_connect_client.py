"""A client that has only `pyspark-client`: no Java, no py4j, and a server that is another process.

`make test-connect` makes the client's environment and names its Python in PGOUTPUT_FAST_CLIENT.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.paths import SUPPORT

CLIENT = os.environ.get("PGOUTPUT_FAST_CLIENT")


@pytest.mark.skipif(CLIENT is None, reason="PGOUTPUT_FAST_CLIENT names no Python: make test-connect does")
def test_a_client_without_java(connect_address: str, tmp_path: Path) -> None:
    assert CLIENT is not None
    environment = {name: os.environ[name] for name in ("HOME", "PYTHONPATH", "LANG") if name in os.environ}
    done = subprocess.run(
        [CLIENT, str(SUPPORT / "connect_client.py"), connect_address, str(tmp_path)],
        env=environment | {"PATH": str(Path(CLIENT).parent)}, cwd=tmp_path, capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert "everything is as expected" in done.stdout

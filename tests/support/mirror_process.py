"""A mirror in a separate process, which kills itself: `python -m support.mirror_process '<JSON>'`.

It prints its peak memory, and then that of its capture, in bytes.

    arguments: those of `pgoutput-fast mirror`.
    kill: [module, attribute, number], as for `support.lake_driver`.
    signal, after: the signal, if not SIGKILL, and the seconds between that call and the signal.
    limits: {module: {name: value}}, replacements for limits of the module.
"""

from __future__ import annotations

import importlib
import json
import re
import resource
import signal
import sys
from pathlib import Path

from pgoutput_fast.base.stopping import leave
from pgoutput_fast.cli.main import main
from support.lake_driver import kill_at

if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    for module, values in job.get("limits", {}).items():
        for name, value in values.items():
            setattr(importlib.import_module(module), name, value)
    if "kill" in job:
        sent, after = job.get("signal", signal.SIGKILL), job.get("after", 0.0)
        kill_at(*job["kill"], group=False, sent=sent, after=after)
    status = main(["mirror", *job["arguments"]])
    # For the process itself, getrusage may return the memory of its parent, if that is larger.
    own = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert own is not None
    for kilobytes in (int(own[1]), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss):
        print(kilobytes * 1024)
    leave(status)  # a normal exit may end with SIGABRT, as it says

"""A mirror in a process of its own, which kills itself: `python -m support.mirror_process '<JSON>'`.

It prints how much memory it, and then its capture, needed at most, in bytes.

    arguments: those of `pgoutput-fast mirror`.
    kill: [module, attribute, number], as for `support.lake_driver`.
    limits: {module: {name: value}}, limits that this mirror has in place of those of the module.
"""

from __future__ import annotations

import importlib
import json
import re
import resource
import sys
from pathlib import Path

from pgoutput_fast.cli.main import main
from support.lake_driver import kill_at

if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    for module, values in job.get("limits", {}).items():
        for name, value in values.items():
            setattr(importlib.import_module(module), name, value)
    if "kill" in job:
        kill_at(*job["kill"], group=False)
    status = main(["mirror", *job["arguments"]])
    # Of itself, getrusage tells the memory of the process that forked this one, if that has more.
    own = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert own is not None
    for kilobytes in (int(own[1]), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss):
        print(kilobytes * 1024)
    sys.exit(status)

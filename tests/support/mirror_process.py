"""A mirror in a process of its own, which kills itself: `python -m support.mirror_process '<JSON>'`.

arguments: those of `python -m pgoutput_fast.mirror`.
kill: [module, attribute, number], as for `support.lake_driver`.
"""

from __future__ import annotations

import json
import sys

from pgoutput_fast.mirror.__main__ import main
from support.lake_driver import kill_at

if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    if "kill" in job:
        kill_at(*job["kill"], group=False)
    sys.exit(main(job["arguments"]))

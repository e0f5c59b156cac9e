"""A process that applies random effects to a current table, and is killed: `python -m support.current_driver '<JSON>'`.

It prints `ready` before the first effect, and the position after each.

    kind, place: of the table.
    seed, key: of the effects, see `RandomEffects`.
    count: number of effects.
    kill: [module, attribute, number]: see `support.lake_driver`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from support.current_tables import RandomEffects, open_table
from support.lake_driver import kill_at


def main(job: dict[str, Any]) -> None:
    effects = RandomEffects(job["seed"], job["key"])
    table = open_table(job["kind"], Path(job["place"]))
    waiting = [effects.next() for _ in range(job["count"])]
    table.position()  # reads before the first commit are no step of a commit
    if "kill" in job:
        kill_at(*job["kill"], group=False)
    print("ready", flush=True)
    for position, effect in enumerate(waiting, 1):
        table.apply(effect, position)
        print(position, flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

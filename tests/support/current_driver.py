"""A process that applies random effects to a current table, and is killed: `python -m support.current_driver '<JSON>'`.

It prints `ready` before the first effect, and the position after each.

    kind, place: of the table.
    seed, key: of the effects, see `RandomEffects`.
    count: number of effects.
    kill: [module, attribute, number]: see `support.lake_driver`.
    settled: as for `open_files`; by default, it is. If not, another thread writes files anew after most effects, which are
        committed after the next one. Searches use files of keys in short files, too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pgoutput_fast.merge import local
from pgoutput_fast.merge.key_files import KeyFiles
from pgoutput_fast.merge.local import LocalMerge
from support.current_tables import RandomEffects, open_table
from support.lake_driver import kill_at


def main(job: dict[str, Any]) -> None:
    effects = RandomEffects(job["seed"], job["key"])
    table = open_table(job["kind"], Path(job["place"]), settled=job.get("settled", True))
    beside = not job.get("settled", True) and isinstance(table, LocalMerge) and table.keys is not None
    if beside:
        table.keys = KeyFiles(table.table.store, table.table.files, least_rows=1, rows_a_key=0)
        table.table.most_marked, local._REST = 0.02, 0
    waiting = [effects.next() for _ in range(job["count"])]
    table.position()  # reads before the first commit are no step of a commit
    if "kill" in job:
        kill_at(*job["kill"], group=False)
    print("ready", flush=True)
    for position, effect in enumerate(waiting, 1):
        table.apply(effect, position)
        if beside and table._compaction is not None:
            table._compaction.work.result()
        print(position, flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

#!/usr/bin/env python3
"""Check an installed pgoutput_fast: run it with the Python of an environment that has the package.

    python ci/check_install.py

It loads every extension, runs the example of docs/decoding.md that needs no server, compares what this prints with the
page, and bounds what `import pgoutput_fast` loads. It needs nothing but the package and what the package depends on.

Exit status: 0 if all is well.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import pkgutil
import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Modules that `import pgoutput_fast` loads in addition to `import pyarrow`: 118 to 122, depending on the Python. Unlike
# the time of an import, this number does not depend on the load of the machine.
MOST_MODULES = 150
IMPORT = """
import sys, time
import pyarrow
before, start = len(sys.modules), time.process_time()
import pgoutput_fast
print(len(sys.modules) - before, time.process_time() - start)
"""


def main() -> int:
    """Run the checks. Returns the exit status."""
    import pgoutput_fast

    place = Path(pgoutput_fast.__file__).parent
    extensions = load_extensions()
    wrong = []
    if ROOT / "src" in place.parents:
        wrong.append(f"this is the source tree and no installed package: {place}")
    if not extensions:
        wrong.append(f"there are no extensions in {place}")
    if run_example() is False:
        wrong.append("the example of docs/decoding.md does not print what the page says")
    modules, seconds = import_cost()
    if modules > MOST_MODULES:
        wrong.append(f"the import loads {modules} modules; the bound is {MOST_MODULES}")
    kinds = {Path(each).name.partition(".")[2] for each in extensions}
    print(
        f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}: "
        f"{len(extensions)} extensions (*.{', *.'.join(sorted(kinds))}), the example of docs/decoding.md; "
        f"the import loads {modules} modules in {1000 * seconds:.0f} ms of CPU time, after pyarrow"
    )
    for each in wrong:
        print(f"WRONG: {each}")
    return 1 if wrong else 0


def load_extensions() -> list[str]:
    """Load all modules of the compiled core. Returns the files of those that are compiled."""
    import pgoutput_fast._core as core

    found = []
    for each in pkgutil.walk_packages(core.__path__, core.__name__ + "."):
        file = importlib.import_module(each.name).__file__
        if file is not None and not file.endswith(".py"):
            found.append(file)
    return found


def run_example() -> bool:
    """Run the example of docs/decoding.md that needs no server. Returns whether it prints what the page says."""
    text = (ROOT / "docs" / "decoding.md").read_text()
    code = re.search(r"```python\n([^`]*bytes\.fromhex[^`]*)```", text)
    printed = re.search(r"```\n(insert[^`]*)```", text)
    if code is None or printed is None:
        raise LookupError("docs/decoding.md has no example")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code[1], "docs/decoding.md", "exec"), {})
    return out.getvalue() == printed[1]


def import_cost() -> tuple[int, float]:
    """(modules, CPU seconds) of `import pgoutput_fast` after `import pyarrow`: the minimum of four processes."""
    said = (
        subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True).stdout
        for _ in range(4)
    )
    costs = [(int(modules), float(seconds)) for modules, seconds in map(str.split, said)]
    return min(modules for modules, _ in costs), min(seconds for _, seconds in costs)


if __name__ == "__main__":
    sys.exit(main())

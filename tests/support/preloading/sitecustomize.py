"""Makes Spark's Python daemons import the modules of their workers. Python runs this at its start if it is on its path.

A daemon forks a worker for each plan of a source, and for most queries. Without this, each of them would import pandas,
pyarrow and this package itself, which costs about a second of CPU time.

Only the JVM of the tests' own session has this directory on its path. The workers of Spark Connect's server, and of
drivers in separate processes, import everything themselves.
"""

from __future__ import annotations

import contextlib
import importlib
import sys

if "pyspark.daemon" in sys.orig_argv:
    for module in ("pandas", "pyarrow.parquet", "pyspark.worker", "pgoutput_fast.spark", sys.orig_argv[-1]):
        # A worker that needs a missing module reports it.
        with contextlib.suppress(ImportError):
            importlib.import_module(module)

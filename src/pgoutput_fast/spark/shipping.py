"""Sends tasks to executors. If an executor lacks this package, or has another version, the error says so.

Spark pickles a task as the name of its class, and an executor without the package then fails with a long traceback that
ends in ModuleNotFoundError. So tasks are sent as bytes, inside a function that Spark pickles with its code. That
function needs no import to load. It checks the package, and only then unpickles the task. This needs no extra job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from pgoutput_fast.spark.sessions import context_of
from pgoutput_fast.spark.tasks.parts import Parts

__all__ = ["Shipped", "parts_of", "reduced", "shipped"]


def shipped(task: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a task to report a clear error on an executor that cannot run it.

    Args:
        task: the function for `mapInArrow` or a UDF; it must be picklable.

    On an executor the result raises RuntimeError if its Python cannot import this package, or has another version.
    """
    load = _loader(_pickled(task))
    loaded: list[Any] = []
    kept = _KeptMemory()

    def run(*given: Any) -> Any:
        if not loaded:
            loaded.append((load(), kept))
        return loaded[0][0](*given)

    return run


def parts_of(spark: SparkSession, parts: Iterable[bytes]) -> Parts:
    """Bytes for tasks, by number. If they are many, they are broadcast, and a worker loads only those that it uses.

    On Spark Connect, which has no broadcast variables, all of them are pickled with the task.
    """
    context = context_of(spark)
    return Parts.of(parts, None if context is None else context.broadcast)


class Shipped:
    """A base of readers sent to executors: they are unpickled like `shipped` tasks."""

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)


def reduced(each: Any) -> tuple[Any, ...]:
    """The `__reduce__` of an object sent to executors."""
    return _loader(_pickled((_restored, (type(each), each.__getstate__())))), ()


class _KeptMemory:
    """When unpickled in a Spark worker, lets Arrow's allocator keep freed memory for ten seconds.

    Each batch needs as much memory as the previous one. By default mimalloc returns it to the system after 10 ms, and
    the kernel zeroes every page again: about a fifth of a task's CPU time. A worker unpickles its task before it
    imports pyarrow, and mimalloc reads its settings at that import. A value set by the user is kept.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # A closure, because Spark's pickle then includes its code: the executor may lack this package.
        name, milliseconds = "MIMALLOC_PURGE_DELAY", "10000"

        def keep() -> None:
            import os

            os.environ.setdefault(name, milliseconds)

        return keep, ()


def _restored(kind: type, state: dict[str, Any]) -> Any:
    found: Any = object.__new__(kind)
    found.__dict__.update(state)
    return found


def _pickled(value: Any) -> bytes:
    """Pickles a value, including the code of its class if that was defined in a notebook."""
    dump: Any = cloudpickle.dumps
    return bytes(dump(value))


def _loader(packed: bytes) -> Callable[[], Any]:
    """A function that checks the package and unpickles. Spark's pickle includes its code, because it is a closure.

    So it must not use any name of this module.
    """
    from pgoutput_fast import __version__

    expected, advice = __version__, "docs/performance.md says how executors get the package"

    def load() -> Any:
        import pickle
        import sys

        try:
            import pgoutput_fast
        except ImportError as problem:
            raise RuntimeError(
                f"the Python of this executor, {sys.executable}, cannot import pgoutput_fast: {problem}. Install the "
                f"wheel of pgoutput_fast {expected} in that Python on every node, or send an environment with "
                f"spark.archives; {advice}"
            ) from None
        if pgoutput_fast.__version__ != expected:
            raise RuntimeError(
                f"this executor has pgoutput_fast {pgoutput_fast.__version__} ({pgoutput_fast.__file__}), but the "
                f"driver has {expected}: install the same version on the driver and on every node; {advice}"
            )
        found = pickle.loads(packed)
        if isinstance(found, tuple):
            make, given = found
            return make(*given)
        return found

    return load

"""What the programs of the package share: capture, mirror and demo."""

from __future__ import annotations

import argparse
from typing import NoReturn

__all__ = ["Program"]


class Program(argparse.ArgumentParser):
    """Reads the arguments of a program. Its help ends with an example, and an error is one line.

    Args:
        prog: how the program is called.
        description: what it does.
        example: arguments that could follow `prog`.

    >>> Program("serve", "Serves.", "--port 80").format_help().endswith("Example:\\n  serve --port 80\\n")
    True
    """

    def __init__(self, prog: str, description: str, example: str) -> None:
        super().__init__(
            prog,
            description=description,
            epilog=f"Example:\n  {prog} {example}",
            formatter_class=_KeepingExamples,
        )

    def error(self, message: str) -> NoReturn:
        """Ends the process with status 2. The usage of a program with many options would hide what is wrong."""
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help explains it\n")


class _KeepingExamples(argparse.HelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("Example:") else super()._fill_text(text, width, indent)

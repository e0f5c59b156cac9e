"""What the programs of the package share: capture, mirror and demo."""

from __future__ import annotations

import argparse

__all__ = ["ExampleFormatter"]


class ExampleFormatter(argparse.HelpFormatter):
    """Help of argparse, with an example at its end that keeps its lines.

    >>> parser = argparse.ArgumentParser("x", epilog="Example:\\n  x", formatter_class=ExampleFormatter)
    >>> parser.format_help().endswith("Example:\\n  x\\n")
    True
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("Example:") else super()._fill_text(text, width, indent)

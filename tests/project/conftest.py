"""Tests of the project itself: its pages, its layout, and the scripts in ci/, which they import."""

import sys
from pathlib import Path

ROOT = next(each for each in Path(__file__).resolve().parents if (each / "pyproject.toml").exists())
sys.path.insert(0, str(ROOT / "ci"))

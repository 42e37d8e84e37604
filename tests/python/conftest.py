"""The tests run on an installed cake_train, or without one on this tree's (whose libraries CONTRIBUTING.md, Python,
says how to build). The header of the report says on which."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("cake_train") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))


def pytest_report_header() -> str:
    """Which package is under test."""
    spec = importlib.util.find_spec("cake_train")
    return f"cake_train: {spec.origin if spec else 'not found'}"

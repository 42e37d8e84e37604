#!/usr/bin/env python3
"""Runs every gate that needs only the sources (pre-commit uses it)."""
import sys

import banned_names
import env_vars
import file_length
import gate
import layering
import mode_twins

GATES = {
    "layering": layering,
    "mode twins": mode_twins,
    "banned names": banned_names,
    "file length": file_length,
    "environment variables": env_vars,
}

if __name__ == "__main__":
    sys.exit(max([gate.report(name, module.check(gate.ROOT)) for name, module in GATES.items()]))

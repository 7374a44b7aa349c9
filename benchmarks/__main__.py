"""`python -m benchmarks [part ...]`: prints one table of ratios; a missed one is reported as missed."""

from __future__ import annotations

import argparse
import importlib
import sys

from benchmarks.table import HEADER, line

PARTS = [
    "start",
    "recording",
    "player",
    "transport",
    "training",
    "data_parallel",
    "network",
    "sharded",
    "parameter_server",
    "pipeline",
    "grading",
]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"some of {', '.join(PARTS)}; all, if none is named")
    chosen = parser.parse_args().parts or PARTS
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}")
    print(HEADER)
    for part in chosen:
        try:
            for row in importlib.import_module(f"benchmarks.{part}").rows():
                print(line(row), flush=True)
        except Exception as problem:
            print(f"{part}: could not be measured: {type(problem).__name__}: {problem}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

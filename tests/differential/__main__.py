"""The command line: `python -m tests.differential --operations 100000`, or `--seed 7`."""

import argparse
import itertools
import json
import logging
import sys
import time

from tests.differential import Counts, Difference, RunOptions, run_differential


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--operations", type=int, default=10_000, help="run at least this many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    return parser.parse_args()


def show_progress(counts: Counts) -> None:
    if sys.stderr.isatty():
        print(f"\r{counts.seeds} seeds, {counts.operations} operations", end="", file=sys.stderr)


def main() -> int:
    arguments = parse_arguments()
    # The connections are killed on purpose, so their warnings are not useful.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    seeds = itertools.count(arguments.first) if arguments.seed is None else [arguments.seed]
    began_s = time.monotonic()
    try:
        counts = run_differential(seeds, options=RunOptions(arguments.operations, show_progress))
    except Difference as difference:
        print(difference)
        return 1
    totals = vars(counts) | {"seconds": round(time.monotonic() - began_s, 1)}
    if arguments.output == "json":
        print(json.dumps(totals))
    else:
        lines = {**totals.pop("by_operation"), **totals.pop("ends"), **totals}  # One per line.
        print("\n".join(f"{name:32} {value}" for name, value in lines.items()))
        print("no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())

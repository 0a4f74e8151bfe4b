"""Run it by hand: `python -m tests.differential --operations 100000`, or `--seed 7`."""

import argparse
import itertools
import json
import logging
import sys
import time

from tests.differential import Counts, Difference, Wish, run_differential


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--operations", type=int, default=10_000, help="at least so many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="this seed alone")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    return parser.parse_args()


def watch(counts: Counts) -> None:
    if sys.stderr.isatty():
        print(f"\r{counts.seeds} seeds, {counts.operations} operations", end="", file=sys.stderr)


def main() -> int:
    wanted = arguments()
    # A connection that was killed on purpose is no news.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    seeds = itertools.count(wanted.first) if wanted.seed is None else [wanted.seed]
    began_s = time.monotonic()
    try:
        counts = run_differential(seeds, wish=Wish(wanted.operations, watch))
    except Difference as difference:
        print(difference)
        return 1
    told = vars(counts) | {"seconds": round(time.monotonic() - began_s, 1)}
    if wanted.output == "json":
        print(json.dumps(told))
    else:
        lines = {**told.pop("by_operation"), **told.pop("ends"), **told}
        print("\n".join(f"{name:32} {value}" for name, value in lines.items()))
        print("no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())

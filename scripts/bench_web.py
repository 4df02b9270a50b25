"""The demo of the web, held to its claims: a tiny policy learns by GRPO to browse a site and to keep what it will need.

    python scripts/bench_web.py [--seeds 0 1 2] [--out DIR]

For every seed `atommem demo --web` as it is, in a process of its own. It holds if each run, in at most 20 minutes on
two quiet cores, goes from a held-out success (n = 300) of at most .5 to at least .8, loses at least .2 without the
store and without the scratchpad, and is at chance where the web has no pages. The control, the same with a cold start
from an expert that makes no mistakes, is `bench_control.py --web`. Weak: the site is synthetic, of some 20 pages of a
few words, and the cold start imitates an expert that is made faulty on purpose, so that there is something left to
learn.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from quick import ATOMMEM, add_quick, command_line, last_line

from atommem.demo.recipe import WEB
from atommem.demo.results import SUMMARY_FILE, check_bars

SECONDS = 1200


def run(seed: int, out: Path, quick: bool) -> dict[str, Any]:
    """The command in a process of its own; its summary, with the claims that do not hold."""
    command = [
        *ATOMMEM,
        "demo",
        "--web",
        "--seed",
        str(seed),
        "--out",
        str(out),
        *["--quick"] * quick,
    ]
    subprocess.run(command, check=True)
    summary = json.loads((out / SUMMARY_FILE).read_text())
    claims = [
        *check_bars(summary, WEB.bars),
        (f"at most {SECONDS} s", summary["seconds_total"] <= SECONDS),
    ]
    return {**summary, "not_held": [claim for claim, held in claims if not held]}


def main() -> int:
    """Run every seed, print the table and the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument(
        "--out", type=Path, help="where policies and traces go (unset: a temporary folder)"
    )
    add_quick(parser, seeds=[0])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        runs = [
            run(seed, (options.out or Path(scratch)) / f"web-{seed}", options.quick)
            for seed in options.seeds
        ]
    columns = ("em_before", "em_after", *(f"em_{name}" for name in WEB.ablations), "seconds_total")
    print(" ".join(f"{name:>17}" for name in ("seed", *columns)))
    for found in runs:
        print(" ".join(f"{found[name]:>17}" for name in ("seed", *columns)))
    holds = not any(found["not_held"] for found in runs)
    return last_line({"bench": "web", "runs": runs, "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())

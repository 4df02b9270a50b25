"""Seconds of `scripts/demo` from clone to table, beside those of an earlier commit, and its EM on several seeds.

    python scripts/bench_demo.py [--before a0d6784] [--seeds 0 1 2 3 4]

Each tree is cloned into an empty folder, its environment is made there, and its demo run with the first seed: one after
the other, the earlier one first, on a machine that should do nothing else. The other seeds are of the tree as it is
committed, in its environment. It holds if the whole takes at most half of the seconds, and if exact match is at most .5
before GRPO and at least .9 after it with every seed. Weak: one run a tree, in which the download of packages is part.
The last line is JSON.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from quick import ATOMMEM, add_quick, command_line, last_line

HERE = Path(__file__).resolve().parents[1]
HALF = 0.5


def cloned(revision: str, folder: Path) -> Path:
    """The tree at `revision`, in a clone."""
    subprocess.run(["git", "clone", "-q", str(HERE), str(folder)], check=True)
    subprocess.run(["git", "checkout", "-q", revision], cwd=folder, check=True)
    return folder


def run(tree: Path, out: Path, seed: int, quick: bool) -> dict[str, Any]:
    """Its demo, as the README has it: seconds of setting up and of the demo, and exact match."""
    began = time.perf_counter()
    command = [*ATOMMEM, "demo", "--quick"] if quick else ["scripts/demo"]
    if not quick:  # that runs in this environment
        subprocess.run(["scripts/setup", "train"], cwd=tree, check=True)
    ready = time.perf_counter()
    subprocess.run([*command, "--seed", str(seed), "--out", str(out)], cwd=tree, check=True)
    ended = time.perf_counter()
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    em = [round(summary[f"em_{when}"], 3) for when in ("before", "after")]
    seconds = {
        "setup": ready - began,
        "demo": ended - ready,
        "all": ended - began,
        **summary["seconds"],
    }
    return {"em": em, "seconds": {name: round(value, 1) for name, value in seconds.items()}}


def main() -> int:
    """Run both trees, then the seeds; print the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--before", default="a0d6784", help="the commit to compare with (%(default)s)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    add_quick(parser, seeds=[0])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        trees = {"now": HERE}
        if not args.quick:
            trees = {
                name: cloned(of, Path(scratch, name))
                for name, of in (("before", args.before), ("now", "HEAD"))
            }
        first, *others = args.seeds
        found = {
            name: run(tree, Path(scratch, f"out_{name}"), first, args.quick)
            for name, tree in trees.items()
        }
        seeds = {first: found["now"]}
        for seed in others:
            seeds[seed] = run(trees["now"], Path(scratch, f"out_{seed}"), seed, args.quick)
            print(json.dumps({seed: seeds[seed]}), flush=True)
    before = found.get("before", found["now"])
    ratio = found["now"]["seconds"]["all"] / before["seconds"]["all"]
    learned = all(of["em"][0] <= 0.5 and of["em"][1] >= 0.9 for of in seeds.values())
    holds = ratio <= HALF and learned
    result = {
        "bench": "demo",
        "before": before,
        "seeds": seeds,
        "ratio": round(ratio, 3),
        "holds": holds,
    }
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())

"""What it costs to read without the questions: a policy trained with them in view, and one trained on a mixture.

    python scripts/bench_blind.py [--seeds 0 1 2] [--out runs/blind]

A memory that is served reads first and is asked later; training as in arXiv 2601.08323 shows the questions at every
step. In the demo's world, with four entries in view and two looks into the store for a question, two policies are
made by the demo's own recipe (`atommem demo --blind`), the same but for `questions_shown`: ``reading``, and a
mixture in which half of the tasks show their question only when the text is over. Both then read the same held-out
tasks in both ways. About 12 minutes a policy on one core of its own; one that is there is not trained again.

What the set-up leaves open: a policy of 0.17M parameters in a world of 6 to 9 facts, all of which fit into its store;
the word for "not asked yet" is new to the first policy, as any would be that it was not trained with.

The last line is one JSON object; exit status 0 if the mixture's policies answer .80 of the questions that they did not
see while reading, with every seed, on at least 300 tasks each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agents import evaluated
from quick import add_quick, command_line, last_line
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from atommem.demo.recipe import MIXED, Bars, Recipe, quick
from atommem.demo.run import run_demo
from atommem.envs.scoring.paired import compare
from atommem.envs.scoring.records import EvalResult
from atommem.envs.synthetic.world import generate

BAR = 0.80
"""EM without the questions that the mixture's policy is to reach."""
TRAINED = {"shown": ("reading",), "mixture": MIXED.settings["questions_shown"]}
WAYS = ("reading", "answering")


def recipe_of(name: str, short: bool) -> Recipe:
    """The demo's recipe of `MIXED` with the questions of `name`, without its ablations."""
    recipe = replace(
        MIXED,
        settings={**MIXED.settings, "questions_shown": TRAINED[name]},
        ablations=(),
        bars=Bars(lost={}),
    )
    return quick(recipe) if short else recipe


def trained(name: str, seed: int, out: Path, short: bool) -> Path:
    """The folder of a policy, trained if it is not there."""
    folder = out / f"{name}_{seed}"
    if not (folder / "summary.json").is_file():
        run_demo(recipe_of(name, short), folder, seed, Console(highlight=False))
    return folder / "grpo"


async def measure(
    folder: Path, n: int, seed: int, temperature: float = 1.0
) -> dict[str, EvalResult]:
    """The policy in `folder` on `n` tasks, with the questions in view while it reads and without."""
    ways = {way: {"questions_shown": [way]} for way in WAYS}
    return await evaluated(
        folder, list(generate(MIXED.world, n, seed)), ways, temperature=temperature, seed=seed
    )


def figures_of(results: dict[str, EvalResult]) -> dict[str, Any]:
    """EM in both ways, and how much lower it is without the questions, with intervals of 95%."""
    found = {way: result.summary()["metrics"]["em"] for way, result in results.items()}
    gap = compare(results["reading"].records, results["answering"].records)
    return {**found, "answering_minus_reading": gap.to_json()}


def table(figures: dict[str, dict[str, Any]]) -> Table:
    """A line for each policy."""
    shown = Table(box=SIMPLE_HEAD)
    for column in ("policy", "EM, questions shown", "EM, not shown", "difference", "95% interval"):
        shown.add_column(column, justify="left" if column == "policy" else "right", no_wrap=True)
    for name, found in figures.items():
        gap = found["answering_minus_reading"]
        ems = (
            f"{found[way]['mean']:.3f} ({found[way]['low']:.3f}-{found[way]['high']:.3f})"
            for way in WAYS
        )
        shown.add_row(
            name, *ems, f"{gap['difference']:+.3f}", f"{gap['low']:+.3f} {gap['high']:+.3f}"
        )
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """Train what is missing, measure, print the table, then the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="of the policies (%(default)s)"
    )
    parser.add_argument("--n", type=int, default=300, help="held-out tasks (%(default)s)")
    parser.add_argument("--out", type=Path, help="folder of the policies (default: runs/blind)")
    parser.add_argument(
        "--task_seed", type=int, default=1_000_003, help="of held-out tasks and sampling; no demo's"
    )
    add_quick(parser, n=8)
    given = parser.parse_args(argv)
    out = given.out or Path("runs/blind_quick" if given.quick else "runs/blind")
    figures: dict[str, dict[str, Any]] = {}
    for seed in given.seeds:
        for name in TRAINED:
            folder = trained(name, seed, out, given.quick)
            figures[f"{name}, seed {seed}"] = figures_of(
                asyncio.run(measure(folder, given.n, given.task_seed))
            )
    Console(width=110, highlight=False).print(table(figures))
    blind = {
        name: found["answering"]["mean"]
        for name, found in figures.items()
        if name.startswith("mixture")
    }
    holds = given.n >= 300 and all(em >= BAR for em in blind.values())
    print(
        f"EM without the questions, trained on the mixture: {min(blind.values()):.3f} at least (bar {BAR})"
    )
    return last_line(
        {"bench": "blind", "n": given.n, "bar": BAR, "policies": figures, "holds": holds}
    )


if __name__ == "__main__":
    raise SystemExit(main())

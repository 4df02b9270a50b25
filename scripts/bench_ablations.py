"""Which memory actions the demo's policies need: each switched off in the environment and in the prompt.

    python scripts/bench_ablations.py [--policy runs/demo/grpo] [--limited_policy runs/demo_limited/grpo]

The rows of the paper's Table 2 (arXiv 2601.08323) in the synthetic world, on tasks that no policy was trained on. A
policy is not trained again without the action. Policies that are not there are trained first: `atommem demo` and
`atommem demo --limited`, about 5 and 11 minutes on two idle cores. Four settings:

- the demo's world, store without a limit: everything but delete is needed;
- the same with no correction in the text: update is not needed either;
- a store of three entries in a world with more facts (the policy of `atommem demo --limited`): delete is needed too;
- the same policy and store where all facts that may matter fit into it: delete is not needed.

Every ablation is compared with the full policy on the same tasks by the two-sided sign-flip test; p-values are
corrected (Holm) over all comparisons. The last line is one JSON object; exit status 0 if every action that is needed
costs EM at 0.01, and no other costs more than 0.02.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agents import evaluated
from quick import add_quick, command_line, last_line
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from atommem.demo.recipe import FULL, LIMITED, Recipe, quick
from atommem.demo.run import run_demo
from atommem.envs.scoring.paired import Comparison, compare
from atommem.envs.scoring.records import EvalResult
from atommem.envs.scoring.statistics import holm
from atommem.envs.synthetic.world import WorldConfig, generate

ALPHA = 0.01
FREE = 0.02
"""Most EM that an action may cost where it is not needed."""

STORE = ("create", "read", "update", "delete")
ABLATIONS: dict[str, tuple[str, ...]] = {
    "w/o update": ("update",),
    "w/o delete": ("delete",),
    "w/o create": ("create",),
    "w/o read": ("read",),
    "w/o scratchpad": ("scratchpad",),
    "w/o storage": STORE,
    "w/o both": (*STORE, "scratchpad"),
}


@dataclass(frozen=True)
class Setting:
    """A policy in a world.

    Attributes:
        title: What the table calls it.
        policy: Folder of the policy.
        world: Its tasks.
        capacity: Of the store.
        needed, free: Ablations that are to cost EM, and that are not.
    """

    title: str
    policy: Path
    world: WorldConfig
    capacity: int | None
    needed: tuple[str, ...]
    free: tuple[str, ...]


def settings(policy: Path, limited: Path) -> dict[str, Setting]:
    """The four settings by name."""
    most = tuple(name for name in ABLATIONS if name != "w/o delete")
    still = replace(FULL.world, corrections=0.0)
    bound = LIMITED.world.capacity
    # Not a store without a limit: a prompt that does not tell how full it is would be new to that policy.
    fitting = replace(LIMITED.world, distractors=2, capacity=None)
    return {
        "unlimited": Setting(
            "demo's world, no limit", policy, FULL.world, None, most, ("w/o delete",)
        ),
        "no_corrections": Setting(
            "no corrections, no limit", policy, still, None, (), ("w/o update", "w/o delete")
        ),
        "limited": Setting(
            f"store of {bound} entries", limited, LIMITED.world, bound, tuple(ABLATIONS), ()
        ),
        "fitting": Setting(
            f"store of {bound}, all fits", limited, fitting, bound, (), ("w/o delete",)
        ),
    }


def trained(folder: Path | None, default: Path, recipe: Recipe) -> Path:
    """`folder`; without one, `default`, trained if it is not there."""
    if folder is None and not default.is_dir():
        run_demo(recipe, default.parent, 0, Console(highlight=False))
    return folder or default


def measure(setting: Setting, n: int, temperature: float, seed: int) -> dict[str, EvalResult]:
    """The full policy, then every ablation that the setting speaks of, on the same tasks."""
    variants = {
        name: {"capacity": setting.capacity, "disabled_actions": list(ABLATIONS.get(name, ()))}
        for name in ("full", *setting.needed, *setting.free)
    }
    tasks = list(generate(setting.world, n, seed))
    return asyncio.run(
        evaluated(setting.policy, tasks, variants, temperature=temperature, seed=seed)
    )


def table(
    setting: Setting, results: dict[str, EvalResult], found: dict[str, tuple[Comparison, float]]
) -> Table:
    """One setting as in the paper's Table 2, with what it takes to believe it."""
    shown = Table(title=setting.title, title_justify="left", box=SIMPLE_HEAD)
    for column in (
        "",
        "EM",
        "difference",
        "95% interval",
        "worse",
        "better",
        "p (Holm)",
        "expected",
    ):
        shown.add_column(
            column, justify="left" if column in ("", "expected") else "right", no_wrap=True
        )
    shown.add_row("full policy", f"{results['full'].em:.3f}")
    for name in ABLATIONS:
        if name in found:
            compared, adjusted = found[name]
            gap = compared.difference
            assert gap is not None, "every task has a score"
            shown.add_row(
                name,
                f"{results[name].em:.3f}",
                f"{gap.difference:+.3f}",
                f"{gap.low:+.3f} {gap.high:+.3f}",
                str(compared.losses),
                str(compared.wins),
                f"{adjusted:.1e}",
                "costs" if name in setting.needed else "free",
            )
    return shown


def as_expected(setting: Setting, name: str, compared: Comparison, adjusted: float) -> bool:
    """Whether an ablation costs what the setting says."""
    assert compared.difference is not None, "every task has a score"
    if name in setting.needed:
        return compared.difference.difference < 0 and adjusted < ALPHA
    return compared.difference.difference >= -FREE


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the tables, then the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument("--policy", type=Path, help="folder of the demo's policy (runs/demo/grpo)")
    parser.add_argument(
        "--limited_policy",
        type=Path,
        help="that of `atommem demo --limited` (runs/demo_limited/grpo)",
    )
    parser.add_argument("--n", type=int, default=300, help="tasks (%(default)s)")
    parser.add_argument(
        "--temperature", type=float, default=1.0, help="1 is the demo's, 0 greedy (%(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=1_000_001, help="of tasks and sampling; no demo's (%(default)s)"
    )
    add_quick(parser, n=4)
    given = parser.parse_args(argv)
    end = "_quick" if given.quick else ""
    every = settings(
        trained(given.policy, Path(f"runs/demo{end}/grpo"), quick(FULL) if end else FULL),
        trained(
            given.limited_policy,
            Path(f"runs/demo_limited{end}/grpo"),
            quick(LIMITED) if end else LIMITED,
        ),
    )
    measured = {
        key: measure(setting, given.n, given.temperature, given.seed)
        for key, setting in every.items()
    }
    compared = {
        (key, name): compare(results["full"].records, result.records)
        for key, results in measured.items()
        for name, result in results.items()
        if name != "full"
    }
    adjusted = dict(zip(compared, holm([item.p_value for item in compared.values()]), strict=True))
    console = Console(width=110, highlight=False)
    console.print(
        f"{given.n} tasks, temperature {given.temperature:g}; Holm over {len(compared)} comparisons"
    )
    figures: dict[str, Any] = {}
    wrong = []
    for key, setting in every.items():
        found = {
            name: (item, adjusted[where, name])
            for (where, name), item in compared.items()
            if where == key
        }
        console.print(table(setting, measured[key], found))
        wrong += [
            f"{key}: {name}"
            for name, pair in found.items()
            if not as_expected(setting, name, *pair)
        ]
        figures[key] = {"em": measured[key]["full"].em} | {
            name: {**item.to_json(), "em": measured[key][name].em, "p_holm": p}
            for name, (item, p) in found.items()
        }
    console.print(f"not as expected: {', '.join(wrong) or 'none'}")
    holds = given.n >= 200 and not wrong
    return last_line(
        {
            "bench": "ablations",
            "n": given.n,
            "temperature": given.temperature,
            **figures,
            "holds": holds,
        }
    )


if __name__ == "__main__":
    raise SystemExit(main())

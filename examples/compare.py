"""Evaluate two checkpoints on the same tasks, and say whether one is better.

python examples/compare.py runs/demo/cold_start runs/demo/grpo runs/demo/heldout.parquet [HOW_MANY]
"""

import asyncio
import sys

from atommem.envs.scoring.records import EvalResult, compare
from atommem.envs.task import Task
from atommem.envs.task_files import load_tasks
from atommem.eval.runner import evaluate
from atommem.rollout import EpisodeRunner
from atommem.run import Runtime


async def evaluated(policy: str, tasks: list[Task]) -> EvalResult:
    """Every task once, with the settings that are in the policy's folder."""
    engine = Runtime.open(policy, temperature=1.0, seed=0)
    try:
        return await evaluate(tasks, EpisodeRunner(engine.agent), progress=False)
    finally:
        await engine.close()


def main(first: str, second: str, file: str, count: str = "100") -> None:
    """EM of both, and the test of their difference over tasks."""
    tasks = load_tasks(file)[: int(count)]
    before, after = (asyncio.run(evaluated(policy, tasks)) for policy in (first, second))
    found = compare(before.records, after.records)
    print(
        f"EM {before.em:.3f} and {after.em:.3f}: {found.wins} won, {found.losses} lost, p = "
        f"{found.p_value:.2g}"
    )


if __name__ == "__main__":
    if len(sys.argv) <= 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])

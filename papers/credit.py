"""Compare step-level credit, rerolls and a compression reward with trajectory credit.

    OMP_NUM_THREADS=1 python -m papers.credit --start runs/demo_bounded [--updates 120]

Each arm of `ARMS` trains once a seed by GRPO from one cold start of ``atommem demo --bounded``
(``RUN/cold_start``), for the same number of updates and tasks. Rerolls sample more tokens. EM is
measured at temperature 1 on 300 held-out tasks of the demo, and on 300 of a harder world with
twice as many facts as five entries hold: its mean over the seeds, and its paired difference to
trajectory credit. Finished arms are not trained again.

`StepCredit` adds the step part of GiGPO (arXiv 2505.10978, eq. 7, undiscounted), `Rerolls` the
local rerolls of Memory-R2 (arXiv 2605.21768), `CompressionReward` a reward for a small memory as in
Mem-alpha (arXiv 2509.25911).

The last line is a JSON object. "holds" means that every arm ended above the cold start.
Limits: a policy of 0.2 million parameters, episodes of about ten steps.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

from atommem.demo.recipe import BOUNDED, Recipe, quick
from atommem.envs.scoring.records import EpisodeRecord, EvalResult, compare
from atommem.envs.synthetic.world import generate
from atommem.episode import Episode, Observation, Step, StopReason
from atommem.memory.log import replay
from atommem.process import run_jobs
from atommem.rollout import EpisodeRunner, Session, set_score, timed
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from atommem.train.objective.rows import EpisodeSize, group_advantages, has_variance
from papers.inputs import load_demo

Collected = tuple[list[Episode], list[list[float]], list[EpisodeSize]]


class StepCredit(MemoryGRPOTrainer):
    """Adds each step's comparison with the steps of its group at the same prompt."""

    def collect(self, rollout: int) -> Collected:
        """As `MemoryGRPOTrainer.collect`."""
        episodes, advantages, sizes = super().collect(rollout)
        pairs = zip(advantages, state_advantages(episodes), strict=True)
        summed = [[a + b for a, b in zip(*steps, strict=True)] for steps in pairs]
        return episodes, summed, sizes


def state_advantages(episodes: Sequence[Episode]) -> list[list[float]]:
    """Return, for each step, its episode's reward minus the mean of its state.

    A state is a prompt of a task: everything the policy knows. One that only one episode reached
    gets 0.
    """
    rewards: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for episode in episodes:
        for step in episode.steps if episode.reward is not None else ():
            rewards[episode.task_id, *step.prompt_ids].append(episode.reward or 0.0)

    def advantage(episode: Episode, prompt: Sequence[int]) -> float:
        found = rewards[episode.task_id, *prompt]
        if episode.reward is None or len(found) < 2:
            return 0.0
        return episode.reward - sum(found) / len(found)

    return [[advantage(e, step.prompt_ids) for step in e.steps] for e in episodes]


class CompressionReward(MemoryGRPOTrainer):
    """Rewards episodes whose store is small beside the text that they read."""

    weight = 0.1

    def collect(self, rollout: int) -> Collected:
        """As `MemoryGRPOTrainer.collect`."""
        episodes, _, sizes = super().collect(rollout)
        rewards = [compression_reward(episode, self.weight) for episode in episodes]
        by_episode = group_advantages(rewards, self.args.num_generations or 1)
        steps = zip(episodes, by_episode, strict=True)
        return episodes, [[advantage] * len(e.steps) for e, advantage in steps], sizes


def compression_reward(episode: Episode, weight: float) -> float | None:
    """Return the reward plus `weight` times the fraction of the text read that is not in the store.

    Both lengths are in characters: of the entries at the end, and of the stream.
    """
    if episode.reward is None:
        return None
    pieces = [piece for step in episode.steps for piece in step.observation.stream]
    read = sum(len(text) for piece in pieces for _, text in piece.walk() if isinstance(text, str))
    contents = replay(operation for step in episode.steps for operation in step.operations)
    stored = sum(len(entry.text) for entry in contents.entries.values())
    return episode.reward + weight * (1 - min(stored / read, 1.0) if read else 0.0)


class Rerolls(MemoryGRPOTrainer):
    """Continues one episode of each group several times from a random step of it.

    Episodes of a group soon have different memories, so their rewards compare more than one
    decision. Branches of one step share its memory, and are compared with each other.
    """

    branches = 4

    def collect(self, rollout: int) -> Collected:
        """As `MemoryGRPOTrainer.collect`, with the steps after each branch point."""
        episodes, advantages, sizes = super().collect(rollout)
        size, runner = self.args.num_generations or 1, self.rollout_runner(rollout)
        tasks = {task.id: task for task in self.tasks}
        points: list[tuple[Episode, int]] = []
        for start in range(0, len(episodes), size):
            group = [e for e in episodes[start : start + size] if not e.failed and len(e.steps) > 1]
            if group:
                seed = f"{self.args.seed}/{self.state.global_step}/{group[0].task_id}"
                rng = random.Random(seed)
                episode = rng.choice(group)
                points.append((episode, rng.randrange(1, len(episode.steps))))

        async def branch(point: tuple[Episode, int], sample: int) -> Episode:
            episode, begin = point
            return await branch_off(runner, tasks[episode.task_id], sample, episode.steps[:begin])

        jobs = [(point, size + index) for point in points for index in range(self.branches)]
        ended: list[Any] = self.run_rollout(
            lambda on_episode: run_jobs(branch, jobs, on_episode, runner.max_in_flight), len(jobs)
        )
        flat = 0
        for number, (episode, begin) in enumerate(points):
            others = ended[number * self.branches : (number + 1) * self.branches]
            tails = [replace(one, steps=one.steps[begin:]) for one in (episode, *others)]
            rewards = [tail.reward for tail in tails]
            flat += not has_variance(rewards)
            for tail, advantage in zip(tails, group_advantages(rewards, len(tails)), strict=True):
                episodes.append(tail)
                advantages.append([advantage] * len(tail.steps))
                sizes.append(EpisodeSize.of(tail))
        log = {"rerolls/groups": float(len(points)), "rerolls/zero_std": flat / max(1, len(points))}
        self.log_with_update(log)
        return episodes, advantages, sizes


async def branch_off(
    runner: EpisodeRunner, task: Any, sample: int, past: Sequence[Step]
) -> Episode:
    """Run an episode whose first steps are those of another one."""
    episode = Episode(task.id, sample, list(past))
    session = Session(runner.agent, f"{task.id}/{sample}")
    with timed(episode):
        await session.memory.restore([item for step in past for item in step.operations])
        session.steps = len(past)
        environment = runner.factory()
        observation: Observation | None = await environment.reset(task)
        for step in past:
            observation = (await environment.step(step)).observation
        while observation is not None:
            episode.steps.append(await session.step(observation, task.id))
            result = await environment.step(episode.steps[-1])
            observation, episode.stop_reason = result.observation, result.reason
        episode.stop_reason = episode.stop_reason or StopReason.ANSWERED
        set_score(episode, await environment.score())
    return episode


ARMS: dict[str, type[MemoryGRPOTrainer]] = {
    "trajectory": MemoryGRPOTrainer,
    "steps": StepCredit,
    "rerolls": Rerolls,
    "compression": CompressionReward,
}
HARD = 5
"""Entries of the harder world's store."""


def measure(recipe: Recipe, policy: Path, folder: Path) -> dict[str, list[EpisodeRecord]]:
    """Measure EM on both worlds."""
    hard = replace(recipe, settings={"capacities": (str(HARD),)})
    world = replace(recipe.world, distractors=2 * HARD, capacity=HARD)
    tasks = list(generate(world, recipe.heldout, 105))
    worlds = {"own": (recipe, None), "harder": (hard, tasks)}
    return {
        name: list(load_demo(policy, of, folder / name).evaluate("measured", asked).records)
        for name, (of, asked) in worlds.items()
    }


def main() -> int:
    """Train and measure every arm; returns 0 if all beat the cold start."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    start = "Folder of a run of atommem demo --bounded."
    parser.add_argument("--start", type=Path, required=True, help=start)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--updates", type=int, default=BOUNDED.updates)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/credit"))
    parser.add_argument("--quick", action="store_true", help="One update of one arm: a smoke test.")
    options = parser.parse_args()
    recipe = BOUNDED
    if options.quick:
        options.updates, options.arms, recipe = 1, ["rerolls"], quick(BOUNDED)
    recipe = replace(recipe, updates=options.updates)
    cold_start = options.start / "cold_start"
    found = {"cold start": measure(recipe, cold_start, options.output_dir / "before")}
    for arm, seed in product(options.arms, options.seeds):
        folder = options.output_dir / f"{arm}_{seed}"
        if not (folder / "grpo" / "model.safetensors").is_file():
            with patch("atommem.demo.run.MemoryGRPOTrainer", ARMS[arm]):
                load_demo(cold_start, replace(recipe, heldout=1), folder, seed).grpo()
        for world, records in measure(recipe, folder / "grpo", folder / "after").items():
            print(arm, seed, world, round(EvalResult(tuple(records)).em, 3), flush=True)
            found.setdefault(arm, {}).setdefault(world, []).extend(records)
    result: dict[str, Any] = {"updates": options.updates, "seeds": options.seeds}
    for arm, worlds in found.items():
        for world, records in worlds.items():
            row = result.setdefault(arm, {})[world] = {"em": EvalResult(tuple(records)).em}
            if arm not in ("cold start", "trajectory") and "trajectory" in found:
                row |= compare(found["trajectory"][world], records).to_json()
    before = result["cold start"]["own"]["em"]
    result["holds"] = all(result[arm]["own"]["em"] > before for arm in options.arms)
    print(json.dumps(result))
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Evaluation on held-out tasks during training, with the scores of ``atommem eval``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from atommem.envs.scoring.records import EpisodeRecord, record_of, summarize

Job = tuple[Any, int]
"""A task, and the number of its sample."""


def held_out_jobs(tasks: Sequence[Any], args: Any) -> list[Job]:
    samples = range(args.num_generations_eval or 1)
    return [(task, sample) for task in tasks for sample in samples]


async def run_held_out(
    runner: Any, jobs: Sequence[Job], args: Any, on_episode: Any = None
) -> list[EpisodeRecord]:
    """Run and score episodes on held-out tasks; every evaluation has the same seeds."""
    temperature = args.temperature if args.eval_temperature is None else args.eval_temperature
    factory, sampling = runner.agent.factory, runner.agent.sampling
    sampling = replace(sampling, temperature=temperature, seed=args.seed)
    episodes = await runner.copy(sampling=sampling).run_all(jobs, on_episode)
    return [
        record_of(factory.describe(task), episode, factory.diagnose(task, episode))
        for (task, _), episode in zip(jobs, episodes, strict=True)
    ]


def held_out_metrics(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Return the metrics of an evaluation, as ``atommem eval`` has them.

    Every score by its name (``em``, ``f1``, or ``reward``; means over questions) with ``em_low``
    and ``em_high`` (95% interval), ``n`` of the main score, ``em/SOURCE`` if there are several
    sources, and `atommem.episode.means`.
    """
    summary = summarize(records)
    scores = summary["metrics"]
    metrics: dict[str, float] = dict(summary["means"])
    for name, estimate in scores.items():
        bounds = {f"{name}_low": estimate["low"], f"{name}_high": estimate["high"]}
        metrics |= {name: estimate["mean"], **bounds}
    if summary["metric"] in scores:
        metrics["n"] = scores[summary["metric"]]["n"]
    sources = sorted({record.source for record in records if record.source})
    for source in sources if len(sources) > 1 else []:
        part = summarize(record for record in records if record.source == source)["metrics"]
        metrics |= {f"{name}/{source}": estimate["mean"] for name, estimate in part.items()}
    return metrics

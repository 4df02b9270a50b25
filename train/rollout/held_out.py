"""Evaluation on held-out tasks during training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atommem.environment import EnvironmentFactory
from atommem.envs.scoring.records import EpisodeRecord, record_of, summarize
from atommem.episode import Episode
from atommem.policy.contract import Sampling

if TYPE_CHECKING:
    from atommem.train.resumable_trainer import ResumableTrainer


def held_out_jobs(args: Any, tasks: Sequence[Any]) -> list[tuple[Any, int]]:
    """Return (task, sample) of every episode of an evaluation."""
    return [(task, sample) for task in tasks for sample in range(args.num_generations_eval or 1)]


def held_out_sampling(args: Any, sampling: Sampling) -> Sampling:
    """Return the sampling of every evaluation, always with the same seeds."""
    temperature = sampling.temperature if args.eval_temperature is None else args.eval_temperature
    return replace(sampling, temperature=temperature, seed=args.seed)


def held_out_records(
    environments: EnvironmentFactory, jobs: Sequence[tuple[Any, int]], episodes: Sequence[Episode]
) -> list[EpisodeRecord]:
    """Return records of the `episodes` of `jobs`, as ``atommem eval`` makes them."""
    return [
        record_of(environments.describe(task), episode, environments.diagnose(task, episode))
        for (task, _), episode in zip(jobs, episodes, strict=False)
    ]


def report_held_out(
    trainer: ResumableTrainer, records: Sequence[EpisodeRecord], prefix: str
) -> dict[str, float]:
    """Log an evaluation as `Trainer.evaluate` does, the same on all ranks; returns its metrics.

    Every score by its name (``em``, ``f1``, or ``reward``; means over questions) with ``em_low``
    and ``em_high`` (95% interval), ``n`` of the main score, ``em/SOURCE`` if there are several
    sources, and `atommem.episode_stats.means`.

    Raises:
        RolloutFailedError: Too many episodes failed.
    """
    failed = [record.error for record in records if record.failed]
    trainer.check_failed_fraction(len(failed), len(records), failed, "the evaluation")
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
    metrics = {f"{prefix}_{name}": value for name, value in metrics.items()}
    trainer.model.eval()  # TRL files metrics by this mode
    trainer.log(dict(metrics))
    trainer.callback_handler.on_evaluate(trainer.args, trainer.state, trainer.control, metrics)
    return metrics

"""Evaluation on held-out tasks during training: which episodes, and what is logged of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atommem.environment import EnvironmentFactory
from atommem.envs.scoring.records import EpisodeRecord, record_of, summarize
from atommem.episode import Episode
from atommem.policy.contract import Sampling

if TYPE_CHECKING:
    from atommem.train.resume.resumable_trainer import ResumableTrainer
    from atommem.train.train_config import EpisodeConfig


def held_out_jobs(args: EpisodeConfig, tasks: Sequence[Any]) -> list[tuple[Any, int]]:
    """(task, sample) of every episode of an evaluation."""
    return [(task, sample) for task in tasks for sample in range(args.num_generations_eval or 1)]


def held_out_sampling(args: Any, sampling: Sampling) -> Sampling:
    """How an evaluation samples where training samples as `sampling` says: every time with the same seeds."""
    temperature = sampling.temperature if args.eval_temperature is None else args.eval_temperature
    return replace(sampling, temperature=temperature, seed=args.seed)


def held_out_records(
    environments: EnvironmentFactory, jobs: Sequence[tuple[Any, int]], episodes: Sequence[Episode]
) -> list[EpisodeRecord]:
    """The `episodes` of `jobs`, as ``atommem eval`` keeps them; none where the run was asked to stop."""
    return [
        record_of(environments.describe(task), episode, environments.diagnose(task, episode))
        for (task, _), episode in zip(jobs, episodes, strict=False)
    ]


def report_held_out(
    trainer: ResumableTrainer, records: Sequence[EpisodeRecord], prefix: str
) -> dict[str, float]:
    """Log an evaluation as `Trainer.evaluate` does, the same on all ranks; returns what is logged.

    Raises:
        RolloutFailedError: Too many episodes failed.
    """
    failed = sum(record.failed for record in records)
    trainer.check_failed_fraction(
        failed, len(records), trainer.args.max_failed_fraction, "the evaluation"
    )
    metrics = {f"{prefix}_{name}": value for name, value in held_out_metrics(records).items()}
    trainer.model.eval()  # as after transformers' own: TRL files metrics by it
    trainer.log(dict(metrics))
    trainer.callback_handler.on_evaluate(trainer.args, trainer.state, trainer.control, metrics)
    return metrics


def held_out_metrics(records: Sequence[Any]) -> dict[str, float]:
    """Flat numbers of `atommem.envs.scoring.records.summarize`.

    Keys: every score by its name (``em``, ``f1``, or ``reward``; means over questions) with ``em_low``, ``em_high``
    (Wilson's 95% interval at the effective sample size), and ``n`` (questions, or episodes, of the main score);
    ``em/SOURCE`` where there are several sources; and `atommem.episode_stats.means`.
    """
    summary = summarize(records)
    scores = summary["metrics"]
    metrics: dict[str, float] = dict(summary["means"])
    for name, estimate in scores.items():
        metrics |= {
            name: estimate["mean"],
            f"{name}_low": estimate["low"],
            f"{name}_high": estimate["high"],
        }
    if summary["metric"] in scores:
        metrics["n"] = scores[summary["metric"]]["n"]
    sources = sorted({record.source for record in records if record.source})
    for source in sources if len(sources) > 1 else []:
        part = summarize(record for record in records if record.source == source)["metrics"]
        metrics |= {f"{name}/{source}": estimate["mean"] for name, estimate in part.items()}
    return metrics

"""Shared by both trainers of episodes: an update and its log; metrics of an evaluation."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from atommem.envs.scoring.records import EpisodeRecord, summarize
from atommem.episode import Episode, add_sums
from atommem.train.episode_logs import EpisodesHook, RolloutLog, rollout_means
from atommem.train.errors import RolloutFailedError
from atommem.train.loops.update_step import Batch, UpdateStep
from atommem.train.objective.shares import signal_report
from atommem.train.resumable_trainer import ResumableTrainer
from atommem.train.rollout.rollouts import TaskOrder


class EpisodeTrainer(ResumableTrainer):
    """Mixin of `MemoryGRPOTrainer` and `AsyncMemoryGRPOTrainer`, which set these attributes."""

    tasks: Sequence[Any]
    on_episodes: EpisodesHook | None
    _order: TaskOrder
    _update: UpdateStep
    _rollout_log: RolloutLog

    def run_update(self, model: Any, batch: Batch) -> torch.Tensor:
        """Train on a batch; returns this rank's loss."""
        started = time.perf_counter()
        loss, log = self._update.run(model, batch)
        self.check_finite("loss", log.pop("loss", 0.0))
        self.log_with_update(log | {"seconds/train": time.perf_counter() - started})
        return loss

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write TRL's card, with what the run learned from."""
        super().create_model_card(*args, **kwargs)
        report = signal_report(self.state.log_history)
        if report and self.is_world_process_zero():
            with (Path(self.args.output_dir) / "README.md").open("a", encoding="utf-8") as card:
                card.write(f"\n## Training signal\n\n{report}\n")

    def log_with_update(self, values: Mapping[str, float]) -> None:
        """Log `values` with the running update."""
        for name, value in values.items():
            self._metrics["train"][name].append(value)

    def log_rollout(
        self,
        sums: Sequence[Mapping[str, float]],
        episodes: Sequence[Episode],
        rewards: Sequence[float | None],
        log: Mapping[str, float],
    ) -> None:
        """Log a rollout, and end the run if too many of its episodes failed.

        `sums` are `RolloutLog.sums` of each rank, `episodes` this rank's, `rewards` all.
        """
        total = add_sums(sums)
        self.state.num_input_tokens_seen += int(total["tokens/prompt"] + total["tokens/completion"])
        tokens = {"num_tokens": float(self.state.num_input_tokens_seen)}
        self.log_with_update({**rollout_means(total, len(sums)), **log, **tokens})
        if self.on_episodes is not None:
            self.on_episodes(self.state.global_step, episodes)
        errors = [episode.error for episode in episodes if episode.failed]
        what = f"update {self.state.global_step + 1}"
        self.check_failed(rewards.count(None), len(rewards), errors, what)

    def check_failed(
        self, failed: int, episodes: int, errors: Sequence[str | None], what: str
    ) -> None:
        """End the run if more than `max_failed_fraction` of some episodes failed."""
        limit = self.args.max_failed_fraction
        if failed > limit * episodes:
            reason = min((error for error in errors if error), default="see the other processes")
            raise RolloutFailedError(
                f"{failed} of {episodes} episodes of {what} failed, more than "
                f"max_failed_fraction={limit:g}: {reason}"
            )


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

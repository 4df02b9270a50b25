"""The trainer of episodes: model and reference, updates and their log, held-out evaluation."""

import gc
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import torch
from accelerate.utils import gather_object, set_seed
from torch.utils.data import DataLoader

from atommem.envs.scoring.records import EpisodeRecord, record_of, summarize
from atommem.episode import Episode
from atommem.errors import AtomMemError, ConfigError
from atommem.train import episode_logs
from atommem.train.console import episode_bar
from atommem.train.loops.models import make_policy, make_reference, tune_lm_head_for_cpu
from atommem.train.loops.update_step import Batch, UpdateStep, policy_loss
from atommem.train.resumable_trainer import ResumableTrainer
from atommem.train.rollout.backends import Backend
from atommem.train.rollout.rollouts import TaskOrder

Result = TypeVar("Result")
Job = tuple[Any, int]  # a task, and the number of its sample
EVALUATION = "evaluation"  # the name of a rollout


class EpisodeTrainer(ResumableTrainer):
    """Trains a policy on whole episodes; `MemoryGRPOTrainer` and `AsyncMemoryGRPOTrainer` run them.

    `model` may be a path or hub name; `update` are options of `UpdateStep`. It evaluates on the
    tasks `held_out` as `eval_strategy` says. Other arguments are transformers' `Trainer`'s.
    """

    backend: Backend
    _order: TaskOrder
    _rollout_log: episode_logs.RolloutLog

    def __init__(
        self,
        model: Any,
        args: Any,
        tasks: Sequence[Any],
        processing_class: Any,
        on_episodes: episode_logs.EpisodesHook | None = None,
        held_out: Sequence[Any] = (),
        peft_config: Any = None,
        quantization_config: Any = None,
        *,
        update: Mapping[str, Any],
        **kwargs: Any,
    ) -> None:
        self.tasks, self.held_out, self.on_episodes = tasks, held_out, on_episodes
        self._logged: dict[str, list[float]] = defaultdict(list)
        super().__init__(
            model=make_policy(model, args, processing_class, peft_config, quantization_config),
            args=args,
            # transformers asks for one.
            eval_dataset=list(held_out) or None,
            processing_class=processing_class,
            **kwargs,
        )
        if self.is_fsdp_enabled and not self.accelerator.is_fsdp2:
            raise ConfigError("fsdp_version=1: not supported. Use fsdp_version: 2.")
        tune_lm_head_for_cpu(self.accelerator.device.type)
        self.reference = make_reference(self.model, args, self.accelerator, quantization_config)
        set_seed(args.seed, device_specific=True)
        self._update = UpdateStep(
            self.accelerator,
            self.model,
            policy_loss(args),
            pad_token_id=processing_class.pad_token_id,
            reference=self.reference,
            **update,
        )

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a loader that yields one placeholder per update of an epoch."""
        count = self._order.updates_per_epoch * getattr(self.args, "updates_per_rollout", 1)
        updates: Any = [{"update": index} for index in range(count)]
        # Its own generator, so that it does not draw from the global one.
        return DataLoader(updates, generator=torch.Generator())

    def run_update(self, model: Any, batch: Batch) -> torch.Tensor:
        started = time.perf_counter()
        loss, log = self._update.run(model, batch)
        self.check_finite("loss", log.pop("loss", 0.0))
        self.log_with_update(log | {"seconds/train": time.perf_counter() - started})
        return loss

    @property
    def runner(self) -> Any:
        """The episodes' runner of this rank; None where another rank samples for it."""
        return self.backend.runner

    def run_async(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the event loop of the episodes."""
        raise NotImplementedError

    def publish(self) -> None:
        """Give the sampling side the current weights; collective."""
        broken = None
        with self._rollout_log.clock.busy(episode_logs.SYNC):
            try:
                self.backend.publish(self)
            except AtomMemError as error:
                broken = error
        self.sync_stop(broken)

    def run_rollout(
        self,
        make_work: Callable[[Any], Coroutine[Any, Any, Result]],
        episodes: int,
        name: str = "episodes",
    ) -> Result:
        """Run what `make_work` makes of a callback for each ended episode; waits for all ranks."""
        broken: Exception | None = None
        result: Result | None = None
        try:
            if self.runner is not None:
                gc.collect()  # the episodes of the update before are garbage now
                bar = episode_bar(self.console, name, episodes) if self.console else nullcontext()
                sampling, clock = self.backend.rollout(self), self._rollout_log.clock
                with sampling, bar as on_episode, clock.busy(episode_logs.EPISODES):
                    result = self.run_async(self.stop_request.guard(make_work(on_episode)))
        except Exception as error:  # whatever an engine fails with: the last update is intact
            broken = error
        with self._rollout_log.clock.busy(episode_logs.WAIT):
            lost = f"; the {name} after update {self.state.global_step} is lost"
            self.sync_stop(broken, lost if name == EVALUATION else "")
        return result  # type: ignore[return-value]  # sync_stop raises where there is none

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Run and score episodes on a list of tasks, or on the held-out ones; collective."""
        tasks = self.held_out if eval_dataset is None else eval_dataset
        if not tasks:
            raise ConfigError("held_out: no tasks to evaluate on. Give some to make_trainer.")
        rank, ranks = self.accelerator.process_index, sum(gather_object([self.runner is not None]))
        jobs = held_out_jobs(tasks, self.args)[rank::ranks]
        self.publish()
        if self.console is None:  # in a log file a bar would be many lines
            self.accelerator.print(f"{EVALUATION} on {len(tasks)} tasks", flush=True)
        own = self.run_rollout(
            lambda on_episode: run_held_out(self.runner, jobs, self.args, on_episode),
            len(jobs),
            EVALUATION,
        )
        metrics = held_out_metrics(gather_object(own or []), self.args, metric_key_prefix)
        self.log(dict(metrics))
        self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log_with_update(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._logged[name].append(value)

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Log an update with what `log_with_update` got since: means, maxima and the last total."""
        if "loss" in logs:
            for name, values in self._logged.items():
                numbers = [value for value in values if not math.isnan(value)]
                combine = max if name.endswith(("_max", "num_tokens")) else statistics.fmean
                logs[name] = combine(numbers) if numbers else None
            self._logged.clear()
        super().log(logs, start_time)

    def log_rollout(
        self,
        sums: Sequence[Mapping[str, float]],
        episodes: Sequence[Episode],
        rewards: Sequence[float | None],
        log: Mapping[str, float],
    ) -> None:
        """Log `sums` by rank and this rank's episodes; end the run if too many of all failed."""
        self.log_with_update(episode_logs.rollout_entry(self.state, sums, log))
        if self.on_episodes is not None:
            self.on_episodes(self.state.global_step, episodes)
        errors = [episode.error for episode in episodes if episode.failed]
        what = f"update {self.state.global_step + 1}"
        episode_logs.check_failed(self.args, rewards.count(None), len(rewards), errors, what)


def held_out_jobs(tasks: Sequence[Any], args: Any) -> list[Job]:
    return [(task, sample) for task in tasks for sample in range(args.num_generations_eval or 1)]


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


def held_out_metrics(
    records: Sequence[EpisodeRecord], args: Any, prefix: str = "eval"
) -> dict[str, float]:
    """Return the metrics of an evaluation, as ``atommem eval`` has them, with `prefix`.

    Every score by its name (``em``, ``f1``, or ``reward``; means over questions) with its 95%
    interval (``em_low``, ``em_high``), ``n`` of the main score, ``em/SOURCE`` if there are several,
    and `atommem.episode.means`. RolloutFailedError if too many episodes failed.
    """
    failed = [record.error for record in records if record.failed]
    episode_logs.check_failed(args, len(failed), len(records), failed, "the evaluation")
    summary = summarize(records)
    scores, metrics = summary["metrics"], dict[str, float](summary["means"])
    for name, estimate in scores.items():
        metrics |= {f"{name}_{bound}": estimate[bound] for bound in ("low", "high")}
        metrics[name] = estimate["mean"]
    if summary["metric"] in scores:
        metrics["n"] = scores[summary["metric"]]["n"]
    sources = sorted({record.source for record in records if record.source})
    for source in sources if len(sources) > 1 else []:
        part = summarize(record for record in records if record.source == source)["metrics"]
        metrics |= {f"{name}/{source}": estimate["mean"] for name, estimate in part.items()}
    return {f"{prefix}_{name}": value for name, value in metrics.items()}

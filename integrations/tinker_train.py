"""The stage ``atommem train tinker``: our loop, with sampling and updates on a Tinker server.

An update runs the episodes of its groups, compares them, makes a row of every step and sends
``forward_backward`` and ``optim_step``. The server holds the model, a LoRA adapter and the
optimizer; this process holds the memories, the environment and the logs.
"""

import asyncio
import json
import math
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import httpx
import tinker
import torch
from rich.console import Console
from transformers import DefaultFlowCallback, TrainerControl, TrainerState, get_scheduler
from transformers.integrations import get_reporting_integration_callbacks

from atommem.chat_format import turn_ends
from atommem.config import check_choice, save_config, setting
from atommem.episode import Episode
from atommem.errors import ConfigError
from atommem.files import write_json
from atommem.integrations.engine import EnginePolicy, vllm_params
from atommem.integrations.tinker import (
    REDUCTIONS,
    ROW_MEAN,
    connect,
    loss_config,
    make_data,
    trained_logprobs,
    unpack_adapter,
)
from atommem.policy.contract import Sampling
from atommem.process import no_full_collection
from atommem.train import checkpoints
from atommem.train.console import GRPO_COLUMNS, ConsoleTable, MetricsFile
from atommem.train.episode_logs import EPISODES, SYNC, RolloutLog, check_failed, rollout_entry
from atommem.train.errors import DivergedError, RolloutFailedError, TrainingInterrupted
from atommem.train.loops.episode_trainer import held_out_jobs, held_out_metrics, run_held_out
from atommem.train.loops.models import load_tokenizer
from atommem.train.loops.update_step import DIFFERENCE, batch_of, policy_loss
from atommem.train.objective.rows import Row, Tokens, merge_equal_rows
from atommem.train.rollout.rollouts import TaskOrder, gather_outcomes, plan_groups, run_groups
from atommem.train.settings import Settings, Stage
from atommem.train.stages import episode_arguments, make_rollouts, prepare_reporters
from atommem.train.stop_request import StopRequest
from atommem.train.train_config import SampledModelConfig, TrainConfig

STATE_FILE = "tinker.json"
LOSS_FNS = {"dapo": "ppo", "grpo": "ppo", "dr_grpo": "ppo", "cispo": "cispo"}  # the server's loss


@dataclass
class TinkerConfig(TrainConfig):
    """Settings of training on a Tinker server, by LoRA (``lora_r``; the server sets alpha)."""

    refused: ClassVar = (*TrainConfig.refused, "tinker")

    base_url: str | None = setting(None, "The Tinker server; unset: hosted Tinker.")
    loss_fn: str = setting("", "ppo, cispo or importance_sampling; unset: as loss_type has it.")
    server_reduction: str = setting(
        "sum",
        "How the server adds up token losses: sum (Tinker; SkyRL's FSDP and Megatron), or row_mean "
        "(SkyRL's jax backend, which divides each row by its length and the sum by the rows).",
    )
    learning_rate: float = setting(1e-4, "The initial learning rate of the adapter.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.loss_fn = self.loss_fn or LOSS_FNS[self.loss_type]
        check_choice("loss_fn", self.loss_fn, ("ppo", "cispo", "importance_sampling"))
        check_choice("server_reduction", self.server_reduction, REDUCTIONS)


class TinkerTrainer:
    """Trains an adapter on the Tinker server of `service`, from the checkpoint folder `resume`."""

    def __init__(self, settings: Settings, service: Any, resume: str | None = None) -> None:
        self.settings, self.service = settings, service
        self.args: TinkerConfig = settings.args
        args, self.tokenizer = self.args, load_tokenizer(settings.model)
        found = episode_arguments(settings, self.tokenizer)
        self.tasks, self.held_out = found["tasks"], found["held_out"]
        self._files, self._stored = found["on_episodes"], found["settings"]
        self.base_model = str(settings.model.model_name_or_path)
        groups = (args.generation_batch_size or 0) // (args.num_generations or 1)
        self._order = TaskOrder(len(self.tasks), groups, bool(args.shuffle_dataset), args.seed)
        self.state = TrainerState()
        context, errors = self._context_length(), (tinker.TinkerError,)
        self.client = self._make_client(settings.model.lora_r, resume)
        self.sampler: Any = None
        policy = EnginePolicy(self.tokenizer, self.sample, errors, context)
        self.runner = make_rollouts(settings, self.tokenizer).runner(policy)
        epochs = math.ceil(args.num_train_epochs * self._order.updates_per_epoch)
        self.state.max_steps = args.max_steps if args.max_steps > 0 else epochs
        self.state.compute_steps(args, self.state.max_steps)
        self._rates = learning_rates(args, self.state.max_steps)
        self._loss = policy_loss(args)
        self._rollout_log = RolloutLog(self.runner.agent, self.tasks)
        table = ConsoleTable(GRPO_COLUMNS, Console(highlight=False))
        reporters = [make() for make in get_reporting_integration_callbacks(args.report_to)]
        self._callbacks = [table, MetricsFile(), *reporters]
        self._saved_step = self.state.global_step
        self._loop = asyncio.Runner()
        self.stop_request = StopRequest()

    def _make_client(self, rank: int, resume: str | None) -> Any:
        if resume is None:
            return self.service.create_lora_training_client(
                base_model=self.base_model, rank=rank, seed=self.args.seed
            )
        path = Path(resume)
        self.state = TrainerState.load_from_json(str(path / "trainer_state.json"))
        saved = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
        return self.service.create_training_client_from_state_with_optimizer(saved["state"])

    def _context_length(self) -> int | None:
        models = self.service.get_server_capabilities().supported_models
        known = {model.model_name: model.max_context_length for model in models}
        if self.base_model not in known:
            raise ConfigError(
                f"model_name_or_path={self.base_model}: the server has "
                f"{', '.join(filter(None, known))}. Give one of these."
            )
        return known[self.base_model]

    def close(self) -> None:
        self._loop.run(self.runner.agent.embedder.close())
        self._loop.close()

    def train(self) -> None:
        """Run all updates; a stop request or an outage ends the run with a checkpoint."""
        self._call("on_train_begin")
        with self.stop_request.installed(), no_full_collection():
            try:
                self._train()
            except (TrainingInterrupted, RolloutFailedError, DivergedError) as stop:
                with suppress(tinker.TinkerError):  # the server may be what ended the run
                    self.save()
                hint = checkpoints.resume_hint(self.args)
                raise type(stop)(f"{str(stop).rstrip('.')}. {hint}") from stop
            except tinker.TinkerError as error:
                hint = checkpoints.resume_hint(self.args)
                raise RolloutFailedError(f"the Tinker server failed: {error}. {hint}") from error
        self._call("on_train_end")

    def _train(self) -> None:
        state, args, flow = self.state, self.args, DefaultFlowCallback()
        if self.held_out and args.eval_on_start and not state.global_step:
            self.evaluate()
        while state.global_step < state.max_steps:
            self._update()
            control = flow.on_step_end(args, state, TrainerControl())
            if state.global_step % self._order.updates_per_epoch == 0:
                flow.on_epoch_end(args, state, control)
            if control.should_evaluate:
                self.evaluate()
            if control.should_save:
                self.save()

    def _update(self) -> None:
        update = self.state.global_step
        episodes, log = self.collect(update)
        self._files(update, episodes)
        errors = [episode.error for episode in episodes if episode.failed]
        check_failed(self.args, len(errors), len(episodes), errors, f"update {update + 1}")
        batch, shares = batch_of(episodes, self.args)
        rows = merge_equal_rows(batch.rows)
        started = time.perf_counter()
        rate = self._rates[update]
        trained = self.step(rows, batch.normalizer, rate) if rows else {"loss": 0.0}
        log |= {"learning_rate": rate, **shares, **trained}
        log["seconds/train"] = time.perf_counter() - started
        self.state.global_step += 1
        self.state.epoch = self.state.global_step / self._order.updates_per_epoch
        self.log(log)

    def collect(self, update: int) -> tuple[list[Episode], dict[str, float]]:
        """Run the episodes of an update, group after group; returns them and what is logged."""
        args, started, clock = self.args, time.perf_counter(), self._rollout_log.clock
        size = args.num_generations or 1
        count = self._order.groups_per_update * size
        seed = self._order.seed(update * self._order.groups_per_update)
        groups = plan_groups(args, self._order, self.tasks, update, range(count))
        with clock.busy(SYNC):
            self.sampler = self.client.save_weights_and_get_sampling_client()
        sampling = replace(self.runner.agent.sampling, seed=seed)
        with clock.busy(EPISODES):
            self._run(run_groups(self.runner.copy(sampling=sampling), groups))
        episodes = [episode for group in groups for episode in group.episodes]
        every = [e for group in groups for e in (*group.episodes, *group.replaced)]
        sums = self._rollout_log.sums(every)
        _, _, log = gather_outcomes(groups, args)
        log["seconds/rollout"] = time.perf_counter() - started
        return episodes, rollout_entry(self.state, [sums], log)

    async def sample(
        self, prompt_ids: list[int], sampling: Sampling
    ) -> tuple[list[int], list[float], bool]:
        params = vllm_params(sampling, stop=sorted(turn_ends(self.tokenizer)))
        prompt = tinker.ModelInput.from_ints(prompt_ids)
        request = self.sampler.sample_async(prompt, 1, tinker.SamplingParams(**params))
        (sampled,) = (await request).sequences
        return sampled.tokens, sampled.logprobs, sampled.stop_reason == "stop"

    def step(self, rows: Sequence[Row], over: float, learning_rate: float) -> dict[str, float]:
        """Train on `rows` with the normalizer `over`; returns what is logged."""
        args = self.args
        data = make_data(rows, over, args.server_reduction)
        reply = self.client.forward_backward(data, args.loss_fn, loss_config(args)).result()
        # Under another reduction it would reweight rows silently.
        is_jax = not reply.metrics and "elementwise_loss" in reply.loss_fn_outputs[0]
        if is_jax and args.server_reduction != ROW_MEAN:
            raise ConfigError(
                f"server_reduction={args.server_reduction}: this server is SkyRL's jax backend, "
                f"which divides a row by its length. Give --server_reduction {ROW_MEAN}."
            )
        tokens = Tokens.of(rows, torch.device("cpu"))
        logprobs = torch.from_numpy(trained_logprobs(reply, rows))
        loss, by_token = self._loss(logprobs, tokens, tokens.old_logprobs)
        if not loss.isfinite():
            raise DivergedError(f"the loss of update {self.state.global_step + 1} is {loss}")
        adam = tinker.AdamParams(
            learning_rate=learning_rate,
            beta1=args.adam_beta1,
            beta2=args.adam_beta2,
            eps=args.adam_epsilon,
            weight_decay=args.weight_decay,
            grad_clip_norm=args.max_grad_norm,
        )
        metrics = self.client.optim_step(adam).result().metrics or {}
        log = {name.removeprefix("skyrl.ai/"): float(value) for name, value in metrics.items()}
        by_token |= {DIFFERENCE: (logprobs - tokens.logprobs).abs()}
        for name, values in by_token.items():
            log[name] = float((tokens.weights * values).sum() / tokens.weights.sum())
        return log | {"loss": float(loss / over)}

    def evaluate(self) -> None:
        """Run and score episodes on the held-out tasks; every evaluation has the same seeds."""
        self.sampler = self.client.save_weights_and_get_sampling_client()
        jobs = held_out_jobs(self.held_out, self.args)
        records = self._run(run_held_out(self.runner, jobs, self.args))
        self._rollout_log.sums([])  # its time is not the next update's
        self.log(held_out_metrics(records, self.args))

    def _run(self, work: Any) -> Any:
        result = self._loop.run(self.stop_request.guard(work))
        if self.stop_request.requested:
            raise TrainingInterrupted(f"stopped before update {self.state.global_step + 1}")
        return result

    def log(self, values: dict[str, float]) -> None:
        entry = {**values, "epoch": self.state.epoch}
        self.state.log_history.append({**entry, "step": self.state.global_step})
        self._call("on_log", logs=entry)

    def _call(self, event: str, **values: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, event)(self.args, self.state, TrainerControl(), **values)

    def save(self) -> None:
        """Save a checkpoint, unless this update has one: weights and optimizer on the server."""
        step, out = self.state.global_step, Path(self.args.output_dir)
        if step == self._saved_step:
            return
        partial = out / checkpoints.PARTIAL / checkpoints.name_of(step)
        shutil.rmtree(partial, ignore_errors=True)
        state = {"state": self.client.save_state(f"update-{step}").result().path}
        write_json(partial / STATE_FILE, state)
        self.state.save_to_json(str(partial / "trainer_state.json"))
        save_config(partial, *self._stored)
        checkpoints.publish_checkpoint(partial, out, self.args)
        checkpoints.prune_checkpoints(out, self.args.save_total_limit)
        self._saved_step = step

    def download(self, name: str, folder: Path) -> Path:
        """Save the adapter on the server under `name`, and unpack it into `folder`."""
        saved = self.client.save_weights_for_sampler(name).result()
        run, _, checkpoint = saved.path.removeprefix("tinker://").partition("/")
        rest = self.service.create_rest_client()
        url = rest.get_checkpoint_archive_url(run, checkpoint).result().url
        archive = httpx.get(url, follow_redirects=True, timeout=600).raise_for_status().content
        unpack_adapter(archive, folder)
        self.tokenizer.save_pretrained(folder)
        save_config(folder, *self._stored)
        return folder


def learning_rates(args: Any, steps: int) -> list[float]:
    """Return the learning rate of each update, by ``lr_scheduler_type`` and warm-up."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=args.learning_rate)
    kwargs = {"scheduler_specific_kwargs": args.lr_scheduler_kwargs}
    warmup = args.get_warmup_steps(steps)
    schedule = get_scheduler(args.lr_scheduler_type, optimizer, warmup, steps, **kwargs)
    return [args.learning_rate * schedule.lr_lambdas[0](step) for step in range(steps)]


def run(settings: Settings) -> Path:
    """Train or resume, and download the adapter; returns its folder."""
    args = settings.args
    args.facts = settings.facts
    resume = checkpoints.checkpoint_to_resume(args)
    prepare_reporters(args)
    trainer = TinkerTrainer(settings, connect(args.base_url), resume)
    try:
        trainer.train()
    finally:
        trainer.close()
    folder = trainer.download(f"final-{trainer.state.global_step}", Path(args.output_dir))
    print(f"saved to {folder}; evaluate it: atommem eval --policy {folder} --data TASKS")
    return folder


STAGE = Stage(TinkerConfig, run, SampledModelConfig)

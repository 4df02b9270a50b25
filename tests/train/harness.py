"""Real trainers on written or sampled episodes, and an independent reference of the loss."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM, TrainerCallback

from atommem.config import EmbedderConfig, MemoryConfig, save_config
from atommem.embedding.embedder import HashingEmbedder
from atommem.environment import TaskDescription, environment_config
from atommem.envs.task import Document, Question, Task
from atommem.episode import Episode
from atommem.policy.contract import Sampling
from atommem.run import RunConfig
from atommem.train.checkpoints import GenerationSettings
from atommem.train.console import GRPO_COLUMNS, use_console
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from atommem.train.rollout.backends import LocalBackend, make_local_backend
from atommem.train.rollout.rollouts import Rollouts
from atommem.train.train_config import TrainConfig
from tests.fakes import word_level
from tests.train.shipped.tiny import ELEMENTS
from tests.train.toys import WrittenRunner, make_model, make_tokenizer

ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    own = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return {name: value for name, value in own.items() if name != "WORLD_SIZE"}


def torchrun(module: str, *arguments: object, ranks: int = 2) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc_per_node={ranks}", "-m", f"tests.train.{module}", *map(str, arguments)]
    settings: Any = {"cwd": ROOT, "env": environment(), "capture_output": True, "text": True}
    done = subprocess.run(command, timeout=600, **settings)
    assert done.returncode == 0, done.stderr[-3000:]


BARE: dict[str, Any] = {
    **{"per_device_train_batch_size": 8, "learning_rate": 1e-2, "save_strategy": "no"},
    **{"use_cpu": True, "disable_tqdm": True, "report_to": "none"},
}
"""Common settings of all loops."""


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


class GradientRecorder(TrainerCallback):
    """Keeps gradients ({} if there are none) and parameters before each optimizer step."""

    def __init__(self) -> None:
        self.gradients: list[dict[str, torch.Tensor]] = []
        self.states: list[dict[str, torch.Tensor]] = []

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        named = [(name.removeprefix("module."), p) for name, p in model.named_parameters()]
        self.gradients.append({name: whole(p.grad) for name, p in named if p.grad is not None})
        self.states.append({name: whole(p) for name, p in named})


def at(event: str, update: int, action: Callable[[], None]) -> TrainerCallback:
    def act(args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == update:
            action()

    callback = TrainerCallback()
    setattr(callback, event, act)
    return callback


def fail(trainer: Any, owner: Any, name: str, update: int, error: Exception) -> None:
    """Have the method `name` of `owner` raise in an update, counted from 0."""
    method = getattr(owner, name)

    def failing(*arguments: Any) -> Any:
        if trainer.state.global_step == update:
            raise error
        return method(*arguments)

    setattr(owner, name, failing)


def terminate() -> None:
    signal.raise_signal(signal.SIGTERM)


def make_config(folder: Path | str, **settings: Any) -> TrainConfig:
    """One update of 8 episodes in groups of 4, without clipping, on the CPU."""
    defaults = {"num_generations": 4, "max_steps": 1, "max_grad_norm": 0.0}
    return TrainConfig(str(folder), **{**BARE, **defaults, "shuffle_dataset": False, **settings})


def make_trainer(
    model: Any,
    config: TrainConfig,
    write: Callable[[str, int], Episode],
    tasks: int = 4,
    backend: Any = None,
    **arguments: Any,
) -> tuple[MemoryGRPOTrainer, GradientRecorder, WrittenRunner]:
    recorder, runner = GradientRecorder(), WrittenRunner(write)
    trainer = MemoryGRPOTrainer(
        model=model,
        args=config,
        tasks=[TaskDescription(f"t{index}") for index in range(tasks)],
        processing_class=make_tokenizer(),
        make_backend=lambda _: backend or LocalBackend(runner),  # type: ignore[arg-type]
        callbacks=[recorder],
        **arguments,
    )
    return trainer, recorder, runner


def episodes_of(
    write: Callable[[str, int], Episode], tasks: Sequence[str], group_size: int
) -> list[Episode]:
    """The global batch: all samples of every task, in the sampler's order."""
    return [write(task, sample) for task in tasks for sample in range(group_size)]


def completion_logps(
    model: Any, prompt: Sequence[int], completion: Sequence[int], temperature: float
) -> torch.Tensor:
    """Log-probabilities of one completion: one row, no padding, the model's own logits."""
    logits = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0]
    logps = (logits[len(prompt) - 1 : -1] / temperature).log_softmax(-1)
    return logps.gather(1, torch.tensor([*completion])[:, None])[:, 0]


def reference_gradients(
    model: Any,
    episodes: Sequence[Episode],
    advantages: Sequence[float],
    normalization: str,
    *,
    temperature: float = 1.0,
    beta: float = 0.0,
    reference: Any = None,
    old: Any = None,
) -> tuple[float, dict[str, torch.Tensor], float]:
    """Return loss and gradients from the definition, and the mean difference of log-probabilities.

    A loop over steps, with the policy ratio at 1, or to the model `old`. With ``beta`` the k3
    estimate of the KL divergence is added, times the ratio (TRL's default).
    """
    pairs = zip(episodes, advantages, strict=True)
    scored = [(e, advantage) for e, advantage in pairs if e.reward is not None]
    steps = [step for episode, _ in scored for step in episode.steps]
    tokens = sum(len(step.token_ids) for step in steps)
    over = {"token": tokens, "step": len(steps), "trajectory": len(scored)}[normalization]
    model.zero_grad()
    total, apart, weights = torch.zeros(()), 0.0, 0.0
    for episode, advantage in scored:
        of_episode = sum(len(step.token_ids) for step in episode.steps)
        for step in episode.steps:
            ids = (step.prompt_ids, step.token_ids, temperature)
            logps = completion_logps(model, *ids)
            before = (completion_logps(old, *ids) if old else logps).detach()
            ratio = torch.exp(logps - before)
            loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
            if beta:
                with torch.no_grad():
                    expected = completion_logps(reference, *ids)
                divergence = torch.exp(expected - logps) - (expected - logps) - 1
                loss = loss + beta * divergence * ratio
            by = {"token": 1, "step": len(step.token_ids), "trajectory": of_episode}
            total = total + loss.sum() / by[normalization] / over
            if advantage or beta:
                difference = (logps.detach() - torch.tensor(step.logprobs)).abs()
                apart += float(difference.sum()) / by[normalization]
                weights += len(step.token_ids) / by[normalization]
    total.backward()
    named = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    gradients = {name: gradient.detach().clone() for name, gradient in named}
    model.zero_grad()
    return total.item(), gradients, apart / weights


def assert_equal_gradients(
    ours: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 1e-5
) -> None:
    """Largest difference relative to the largest gradient; the gradients must not vanish."""
    assert ours.keys() == expected.keys()
    scale = max(float(gradient.abs().max()) for gradient in expected.values())
    assert scale > 1e-4
    for name, gradient in expected.items():
        difference = float((ours[name] - gradient).abs().max()) / scale
        assert difference <= tolerance, (name, difference)


MEMORY = MemoryConfig(templates="compact", retrieve_k=2, scratchpad_tokens=8)
ENVIRONMENT = environment_config("longdoc", chunking="documents", max_reads=0)
EMBEDDER = EmbedderConfig(embedder="hashing", embedder_dim=16)
SETTINGS = [MEMORY, EMBEDDER, ENVIRONMENT, GenerationSettings(4)]


def make_action_tokenizer() -> PreTrainedTokenizerFast:
    """A token is a whole element, so that a random policy acts and answers."""
    return word_level(["<unk>", *ELEMENTS, "c0", "<eos>", "<pad>"], unk_token="<unk>")


def make_action_model(seed: int = 0) -> Qwen3ForCausalLM:
    return make_model(seed, len(make_action_tokenizer()), spread=0.1)


def save_model(folder: Path) -> Path:
    model = folder / "model"
    make_action_model().save_pretrained(model)
    make_action_tokenizer().save_pretrained(model)
    save_config(model, *SETTINGS)
    return model


def make_tasks(count: int = 6) -> list[Task]:
    """Every answer is c0."""
    questions = (Question("which city", ("c0",)),)
    documents = (Document("", "c0 city"), Document("", "c1"))
    return [Task(f"task-{i}", questions, documents) for i in range(count)]


def make_rollouts(args: Any, tokenizer: Any) -> Rollouts:
    longest = args.max_completion_length or 4
    sampling = Sampling(temperature=args.temperature, max_completion_length=longest)
    run = RunConfig(memory=MEMORY, environment=ENVIRONMENT, sampling=sampling)
    return Rollouts(args, run, tokenizer, HashingEmbedder(16))


def make_real_trainer(
    folder: Path, model: Any = None, held_out: Sequence[Task] = (), **settings: Any
) -> MemoryGRPOTrainer:
    """Make a trainer whose tiny model samples; `settings` are fields of its config."""
    tokenizer = make_action_tokenizer()
    defaults = {"max_completion_length": 4, "seed": 3, "max_grad_norm": 1.0}
    config = make_config(folder, **{**defaults, **settings})
    trainer = MemoryGRPOTrainer(
        model=make_action_model() if model is None else model,
        args=config,
        tasks=make_tasks(),
        processing_class=tokenizer,
        make_backend=partial(make_local_backend, make_rollouts(config, tokenizer)),
        held_out=held_out,
        settings=SETTINGS,
    )
    use_console(trainer, GRPO_COLUMNS)
    return trainer

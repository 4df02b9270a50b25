"""A policy of a few thousand parameters, and episodes that are written instead of sampled."""

import copy
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Self

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from atommem.config import MemoryConfig
from atommem.episode import Episode, Observation, Step, StopReason
from atommem.memory.log import MemoryView
from atommem.policy.contract import Sampling
from atommem.process import ActivityClock
from atommem.train.objective.rows import Row
from tests.fakes import word_level

VOCABULARY = 40
EOS, PAD = 40, 41


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Words w0 to w39, ``<eos>`` and ``<pad>``."""
    return word_level([*(f"w{index}" for index in range(VOCABULARY)), "<eos>", "<pad>"])


def make_model(
    seed: int = 0,
    vocabulary: int = VOCABULARY + 2,
    spread: float = 0.5,
    positions: int = 256,
    head_dim: int = 8,
    width: int = 16,
) -> Qwen3ForCausalLM:
    """Make a random model; a larger `spread` makes its distribution less uniform."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        **{"vocab_size": vocabulary, "hidden_size": width, "intermediate_size": 2 * width},
        **{"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1},
        **{"head_dim": head_dim, "max_position_embeddings": positions},
        **{"pad_token_id": vocabulary - 1, "eos_token_id": vocabulary - 2, "bos_token_id": None},
        **{"initializer_range": spread, "tie_word_embeddings": False},
    )
    return Qwen3ForCausalLM(config)


class Closable:
    async def close(self) -> None:
        return None


class WrittenRunner:
    """An episode runner whose episodes come from a function of task id and sample.

    Attributes:
        jobs: (task id, sample) of all episodes that were asked for.
        seeds: The sampling seed of each batch.
    """

    def __init__(self, write: Callable[[str, int], Episode]) -> None:
        self.write = write
        self.agent: Any = SimpleNamespace(
            policy=Closable(),
            embedder=Closable(),
            sampling=Sampling(temperature=1.0),
            activity=ActivityClock(),
            factory=SimpleNamespace(describe=lambda task: task, diagnose=lambda task, episode: ()),
            memory=MemoryConfig(),
        )
        self.jobs: list[tuple[str, int]] = []
        self.seeds: list[int | None] = []
        self.max_in_flight: int | None = None

    def copy(self, **changes: Any) -> Self:
        runner = copy.copy(self)  # jobs and seeds stay shared
        runner.agent = SimpleNamespace(**vars(self.agent) | changes)
        return runner

    async def run_all(self, jobs: Sequence[tuple[Any, int]], on_end: Any = None) -> list[Episode]:
        self.seeds.append(self.agent.sampling.seed)
        self.jobs += [(task.id, sample) for task, sample in jobs]
        return [self.write(task.id, sample) for task, sample in jobs]


def make_step(prompt_ids: list[int], token_ids: list[int]) -> Step:
    seen: dict[str, Any] = {"observation": Observation("reading"), "view": MemoryView()}
    sampled: dict[str, Any] = {"token_ids": token_ids, "logprobs": [-1.0] * len(token_ids)}
    return Step(0, **seen, prompt_ids=prompt_ids, **sampled, finish_reason="stop")


def make_row(prompt: list[int], completion: list[int]) -> Row:
    return Row(prompt, completion, [0.0] * len(completion), 1.0, 1.0)


def make_episode(
    task_id: str, sample: int, reward: float | None, lengths: Sequence[tuple[int, int]]
) -> Episode:
    """Make an episode of random tokens; `lengths` are (prompt, completion) of each step."""
    rng = random.Random(f"tokens/{task_id}/{sample}")

    def tokens(count: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(count)]

    return Episode(
        task_id,
        sample,
        [make_step(tokens(prompt), tokens(completion)) for prompt, completion in lengths],
        reward=reward,
        metrics={} if reward is None else {"em": reward},
        stop_reason=StopReason.FAILED if reward is None else StopReason.ANSWERED,
    )


def random_episode(task_id: str, sample: int, reward: float | None) -> Episode:
    """One to four steps of 2 to 12 prompt and 1 to 7 completion tokens."""
    rng = random.Random(f"lengths/{task_id}/{sample}")
    steps = range(rng.randint(1, 4))
    lengths = [(rng.randint(2, 12), rng.randint(1, 7)) for _ in steps]
    return make_episode(task_id, sample, reward, lengths)


def mixed_episode(task_id: str, sample: int) -> Episode:
    """Make mixed rewards; t1 is all right, t2 all wrong, and one episode of t3 failed."""
    rng = random.Random(f"reward/{task_id}/{sample}")
    reward: float | None = {"t1": 1.0, "t2": 0.0}.get(task_id, rng.choice([0.0, 0.5, 1.0]))
    if (task_id, sample) == ("t3", 1):
        reward = None
    return random_episode(task_id, sample, reward)

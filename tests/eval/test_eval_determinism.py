"""Same seed, same decoding: the same records, whatever ran beside an episode and whichever ended first."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from atommem.config import MemoryConfig
from atommem.embedding.hashing import HashingEmbedder
from atommem.environment import environment_config, make_environments
from atommem.episode_runner import EpisodeRunner
from atommem.eval.runner import evaluate
from atommem.policy.contract import Completion, Sampling
from atommem.policy.local import LocalPolicy
from atommem.session import Agent
from tests.eval.toys import ToyPolicy, make_runner, make_task
from tests.fakes import word_level

TASKS = [make_task(f"t{index}", questions=1 + index % 2) for index in range(10)]
ELEMENTS = [
    "<final_answer>\\boxed{t1-0}</final_answer>",
    "<final_answer>\\boxed{document}</final_answer>",
    "<create_memory>first</create_memory>",
    "<create_memory>second</create_memory>",
    "<read_memory>document</read_memory>",
    "<update_scratchpad>seen</update_scratchpad>",
    "<update_memory>Memory 1: third</update_memory>",
    "<delete_memory>Memory 1</delete_memory>",
]


def without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_seconds(item) for key, item in value.items() if key != "seconds"}
    return [without_seconds(item) for item in value] if isinstance(value, list) else value


def contents(out: Path) -> dict[str, Any]:
    """Every file of an evaluation without what a clock measured; lines of episodes in one order."""
    found: dict[str, Any] = {}
    for path in sorted(file for file in out.rglob("*") if file.is_file()):
        text = path.read_text()
        if path.suffix == ".json":
            found[path.name] = json.dumps(without_seconds(json.loads(text)))
        else:
            lines = [json.dumps(without_seconds(json.loads(line))) for line in text.splitlines()]
            found[path.name] = sorted(lines) if path.name == "episodes.jsonl" else lines
    return found


async def test_the_order_in_which_episodes_end_changes_nothing_but_the_order_of_lines(tmp_path: Path) -> None:
    class Late(ToyPolicy):
        """Answers after a random while."""

        async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
            await asyncio.sleep(random.uniform(0, 0.01))
            return await super().complete(prompt_ids, sampling)

    runner, policy = make_runner()
    await evaluate(TASKS, runner, progress=False)  # this tokenizer hands out its ids as words come up
    runner.agent.policy = Late(policy.tokenizer)
    found = []
    for runner.max_in_flight in (1, 4, 10):
        out = tmp_path / str(runner.max_in_flight)
        await evaluate(TASKS, runner, out, samples_per_task=2, progress=False)
        found.append(contents(out))
    assert found[0] == found[1] == found[2]


@pytest.fixture(scope="module")
def model() -> tuple[Any, Any]:
    """A random model whose tokens are whole actions, with logits that are far from one another; its tokenizer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM, set_seed

    words = ["<unk>", *ELEMENTS, "first", "second", "third", "document.", "Please", "now", "<eos>", "<pad>"]
    words += [f"say-t{index}-{number}" for index in range(10) for number in range(2)]
    tokenizer = word_level(words, unk_token="<unk>")
    set_seed(1)
    config = Qwen3Config(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        initializer_range=0.5,
    )
    return Qwen3ForCausalLM(config), tokenizer


@pytest.mark.parametrize(
    ("temperature", "max_batch_tokens"), [(1.0, 1), pytest.param(0.0, 65_536, marks=pytest.mark.slow)]
)
async def test_a_model_folder_gives_the_same_records_with_any_number_in_flight(
    model: tuple[Any, Any], tmp_path: Path, temperature: float, max_batch_tokens: int
) -> None:
    """With batches of one request that is certain; with larger ones, logits may differ in their last bits."""
    found = []
    for in_flight in (1, 7):
        policy = LocalPolicy(*model, max_batch_tokens=max_batch_tokens)
        environments = make_environments(
            environment_config("longdoc", chunking="documents", max_reads=1), policy.tokenizer
        )
        runner = EpisodeRunner(
            Agent(
                policy=policy,
                embedder=HashingEmbedder(32),
                tokenizer=policy.tokenizer,
                environments=environments,
                memory=MemoryConfig(templates="compact", retrieve_k=2),
                sampling=Sampling(temperature=temperature, max_tokens=6, seed=3),
            ),
            max_in_flight=in_flight,
        )
        await evaluate(TASKS[:4], runner, tmp_path / str(in_flight), samples_per_task=2, progress=False)
        await policy.close()
        found.append(contents(tmp_path / str(in_flight)))
    assert found[0] == found[1]
    operations = "".join(line for name, lines in found[0].items() if name.startswith("t") for line in lines)
    assert '"kind": "create"' in operations
    assert temperature == 0 or '"kind": "update"' in operations

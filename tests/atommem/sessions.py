"""Builders of the tests of memories, sessions and episodes."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from atommem.config import MemoryConfig
from atommem.embedding.embedder import HashingEmbedder, TextKind, Vectors
from atommem.envs.task import Document, Question, Task
from atommem.memory.log import POLICY, Operation
from atommem.memory.memory import WorkingMemory
from atommem.policy.contract import Sampling
from atommem.rollout import Agent, EpisodeRunner, Session
from tests.fakes import ScriptedPolicy, WordEmbedder, WordTokenizer, list_policy, longdoc, reading

TASK = Task(
    "t1",
    (Question("Where does Ann live?", ("Rome",)),),
    (Document("", "Ann lives in Rome."), Document("", "Bob sings.")),
)
ANSWER = r"<final_answer>\boxed{Rome}</final_answer>"
WORDS = ["ann", "bob", "eve", "rome", "oslo", "sings", "lives"]
WRITES = {
    "<create_memory>{words}</create_memory>": 4,
    "<update_memory>Memory {handle}: {words}</update_memory>": 2,
    "<delete_memory>Memory {handle}</delete_memory>": 1,
    "<read_memory>{words}</read_memory>": 3,
    "<update_scratchpad>{words}</update_scratchpad>": 1,
    "<final_answer>\\boxed{{{words}}}</final_answer>": 1,
    "<create_memory>never closed": 1,
}
"""What a `RandomPolicy` writes, and how often."""


def memory(embedder: Any = None, **settings: Any) -> WorkingMemory:
    config = MemoryConfig(**settings)
    return WorkingMemory(embedder or WordEmbedder(), WordTokenizer(), config, " [cut]")


def texts(m: WorkingMemory) -> dict[int, str]:
    return {entry.id: entry.text for entry in m.entries()}


def shown(m: WorkingMemory) -> list[tuple[int, str]]:
    return [(item.handle, item.text) for item in m.view().retrieved]


def by_policy(operations: Iterable[Operation]) -> list[Operation]:
    return [operation for operation in operations if operation.actor == POLICY]


def state(m: WorkingMemory) -> Any:
    return m.contents.copy(), m.view(), m.log, m.vectors().rows.tolist()


class Embeds(HashingEmbedder):
    """Records its calls."""

    def __init__(self) -> None:
        super().__init__(32)
        self.calls: list[tuple[str, ...]] = []

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        self.calls.append((kind, *texts))
        return await super().embed(texts, kind)


class RandomPolicy(ScriptedPolicy):
    """A policy whose completion depends on prompt and seed only."""

    def __init__(self, tokenizer: WordTokenizer) -> None:
        super().__init__(tokenizer, self.write, eos_token_id=0)

    def write(self, prompt: str) -> str:
        rng = random.Random(f"{prompt}/{self.samplings[-1].seed}")
        return " ".join(
            template.format(words=" ".join(rng.choices(WORDS, k=3)), handle=rng.randrange(1, 4))
            for template in rng.choices([*WRITES], [*WRITES.values()], k=4)
        )


def saying(*texts: str | Exception) -> Callable[[WordTokenizer], ScriptedPolicy]:
    return lambda tokenizer: list_policy(tokenizer, texts)


def agent(policy: Any = RandomPolicy, **settings: Any) -> Agent:
    tokenizer = WordTokenizer()
    memory = {"capacity": 5, "retention": "lru", "retrieve_k": 3, **settings.pop("memory", {})}
    return Agent(
        policy=policy(tokenizer),
        embedder=settings.pop("embedder", None) or Embeds(),
        tokenizer=tokenizer,
        factory=longdoc(tokenizer, max_reads=settings.pop("max_reads", 2)),
        memory=MemoryConfig(**memory),
        **{"sampling": Sampling(seed=3, max_completion_length=100), **settings},
    )


def runner(policy: Any = RandomPolicy, **settings: Any) -> EpisodeRunner:
    own = {name: settings.pop(name) for name in ("limits", "max_in_flight") if name in settings}
    return EpisodeRunner(agent(policy, **settings), **own)


async def take_steps(session: Session, count: int, first: int = 0) -> list[dict[str, Any]]:
    """Return the steps' fields without their times, and with the numbers of their token ids."""
    chunks = {number: f"part {number}" for number in range(first, first + count)}
    seen = (reading("q?", chunk=text, index=number, count=9) for number, text in chunks.items())
    steps = [await session.step(observation) for observation in seen]
    lengths = [{"prompt_ids": len(s.prompt_ids), "token_ids": len(s.token_ids)} for s in steps]
    return [asdict(s) | {"seconds": 0.0} | own for s, own in zip(steps, lengths, strict=True)]

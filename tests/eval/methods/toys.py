"""What the tests of the methods share: a scripted policy over invented documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from atommem.config import MemoryConfig
from atommem.environment import EnvironmentConfig, environment_config, make_environments
from atommem.envs.task import Document, Question, Task
from atommem.eval.methods import Setup
from atommem.policy.contract import Completion, Sampling
from tests.fakes import ListPolicy, WordEmbedder, WordTokenizer

DOCUMENTS = (
    Document("Moss", "Moss grows on stones."),
    Document("Orla", "Orla is a potter whose brother is Bran.", gold=True),
    Document("Kiln", "A kiln is hot inside."),
    Document("Bran", "Bran lives in Port.", gold=True),
)
TASK = Task(
    "t",
    (
        Question("Where does Bran live ?", ("Port",), metadata={"supporting": [["Bran", 0]]}),
        Question("Who is a potter ?", ("Orla",), metadata={"supporting": [["Orla", 0]]}),
    ),
    DOCUMENTS,
    source="hotpotqa",
)


class TextPolicy(ListPolicy):
    """Replies with what `script` makes of the prompt: a text, or an error to raise."""

    def __init__(self, tokenizer: WordTokenizer, script: Callable[[str], str | Exception]) -> None:
        super().__init__(tokenizer, [])
        self.script = script

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        self.texts = [self.script(self.tokenizer.decode(prompt_ids, skip_special_tokens=False))]
        return await super().complete(prompt_ids, sampling)


def right(prompt: str) -> str:
    """The right answers to the questions of `TASK` that a prompt asks, whatever is shown."""
    return "So \\boxed{Port} " * ("Where does" in prompt) + "It is \\boxed{Orla}" * (
        "potter ?" in prompt
    )


def make_setup(
    script: Callable[[str], str | Exception] = right,
    environment: EnvironmentConfig | None = None,
    **settings: object,
) -> tuple[Setup, TextPolicy]:
    """What a method runs over; `settings` are fields of `Setup`."""
    tokenizer = WordTokenizer()
    policy = TextPolicy(tokenizer, script)
    config = environment or environment_config("longdoc", chunking="documents", max_reads=1)
    fields: dict[str, object] = {
        "policy": policy,
        "embedder": WordEmbedder(),
        "tokenizer": tokenizer,
        "environments": make_environments(config, tokenizer),
        "memory": MemoryConfig(retrieve_k=2),
        "sampling": Sampling(temperature=0.0, seed=0, max_tokens=64),
        **settings,
    }
    return Setup(**fields), policy  # type: ignore[arg-type]


def shown_documents(prompt: str) -> Sequence[str]:
    """Titles of the documents of `TASK` whose text stands in a prompt."""
    return [document.title for document in DOCUMENTS if document.text in prompt]

"""Fakes shared by the unit tests: no model, no network."""

import importlib.util
import re
import resource
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from atommem.cli import main as atommem
from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.embedding.embedder import Embedder
from atommem.environment import EnvironmentFactory, environment_config, make_factory
from atommem.envs.longdoc.environment import chunk_observation, question_observation
from atommem.envs.task import Question, Task
from atommem.episode import Observation
from atommem.policy.contract import Completion, Policy, Sampling, completion_text
from atommem.prompts import PromptBuilder
from atommem.rollout import Agent, EpisodeRunner


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let no file of this process grow above `size` bytes, whatever code writes it."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


class WordTokenizer:
    """Tokens are words with the white space before them."""

    eos_token_id = pad_token_id = 0

    def __init__(self) -> None:
        self._ids: dict[str, int] = {"<eos>": 0}
        self._words = ["<eos>"]

    def __len__(self) -> int:
        return len(self._words)

    def __call__(
        self, text: str, *, add_special_tokens: bool, return_offsets_mapping: bool
    ) -> dict[str, Any]:
        spans = [match.span() for match in re.finditer(r"\s*\S+|\s+$", text)]
        return {"input_ids": [self._id(text[a:b]) for a, b in spans], "offset_mapping": spans}

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return [self._id(word) for word in re.findall(r"\s*\S+|\s+$", text)]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        ids = (one for one in token_ids if one or not skip_special_tokens)
        return "".join(self._words[one] for one in ids)

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> str:
        turns = "".join(f"[{message['role']}] {message['content']}\n" for message in conversation)
        return turns + "[assistant]" * bool(kwargs.get("add_generation_prompt"))

    def _id(self, word: str) -> int:
        if word not in self._ids:
            self._ids[word] = len(self._words)
            self._words.append(word)
        return self._ids[word]


def command(name: str) -> Callable[[Sequence[str]], int]:
    return lambda arguments: atommem([name, *arguments])


def load_script(name: str) -> ModuleType:
    path = Path(__file__).parents[1] / "scripts" / f"{name}.py"
    if str(path.parent) not in sys.path:  # it may import what lies beside it
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def word_level(words: Sequence[str], **special: Any) -> Any:
    """A tokenizer of transformers with these words, the first for unknown ones."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {word: index for index, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(ids, unk_token=words[0]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"eos_token": "<eos>", "pad_token": "<pad>", **special}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


class ScriptedPolicy(Policy):
    """Answers a prompt with ``script(prompt text)`` and `eos_token_id`; records its requests.

    Log-probabilities are 0. An exception of the script's is raised.
    """

    def __init__(
        self,
        tokenizer: Any,
        script: Callable[[str], str | Exception],
        eos_token_id: int | None = None,
    ) -> None:
        self.tokenizer, self._script = tokenizer, script
        self._end = [] if eos_token_id is None else [eos_token_id]
        self.prompts, self.samplings = list[str](), list[Sampling]()

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        self.prompts.append(self.tokenizer.decode(prompt_ids, skip_special_tokens=False))
        self.samplings.append(sampling)
        text = self._script(self.prompts[-1])
        if isinstance(text, Exception):
            raise text
        ids = self.tokenizer.encode(text, add_special_tokens=False) + self._end
        if len(ids) <= sampling.max_completion_length:
            return Completion(ids, [0.0] * len(ids), text, "stop")
        ids = ids[: sampling.max_completion_length]
        text = completion_text(self.tokenizer, ids, stopped=False)
        return Completion(ids, [0.0] * len(ids), text, "length")


def list_policy(tokenizer: WordTokenizer, texts: Iterable[str | Exception]) -> ScriptedPolicy:
    """Answers with the given texts in order."""
    left = iter(texts)
    return ScriptedPolicy(tokenizer, lambda prompt: next(left), eos_token_id=0)


class WordEmbedder(Embedder):
    """Bag-of-words vectors; records its calls."""

    dim = 64
    id = "words/64"

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self._axes: dict[str, int] = {}

    async def embed(self, texts: Sequence[str], kind: str) -> np.ndarray:
        self.calls.append((kind, *texts))
        vectors = np.full((len(texts), self.dim), 1e-3, dtype=np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().split():
                vectors[row, self._axes.setdefault(word, len(self._axes) % self.dim)] += 1
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def longdoc(tokenizer: Any, **settings: Any) -> EnvironmentFactory:
    """The long-document environment; a chunk is a document unless `settings` say otherwise."""
    config = environment_config("longdoc", **{"chunking": "documents", **settings})
    return make_factory(config, tokenizer)


def prompt_builder(
    tokenizer: Any = None, chat_template_kwargs: dict[str, Any] | None = None, **memory: Any
) -> PromptBuilder:
    tokenizer, config = tokenizer or WordTokenizer(), MemoryConfig(**memory)
    dialect, factory = get_dialect(config.dialect, config.templates), longdoc(tokenizer)
    return PromptBuilder.of(tokenizer, dialect, config, factory, chat_template_kwargs)


def make_episode_runner(**settings: Any) -> EpisodeRunner:
    fakes = {"embedder": WordEmbedder(), "memory": MemoryConfig(), "sampling": Sampling()}
    return EpisodeRunner(Agent(**{**fakes, **settings}))


def reading(*questions: str, chunk: str = "", index: int = 0, count: int = 1) -> Observation:
    task = Task("t", tuple(Question(text, ()) for text in questions))
    return chunk_observation(task, [*[""] * index, chunk, *[""] * (count - index - 1)], index)


def answering(question: str, reads_left: int = 0) -> Observation:
    return question_observation(Task("t", (Question(question, ()),)), range(1), reads_left)

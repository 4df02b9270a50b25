"""Scripted policies, tasks and evaluations that the tests of the room share."""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from atommem.config import MemoryConfig
from atommem.environment import EnvironmentConfig, environment_config, make_factory
from atommem.envs.scoring.records import EpisodeRecord, EvalResult, QuestionRecord
from atommem.envs.task import Document, Question, Task
from atommem.episode import episode_sums
from atommem.errors import AtomMemError, OutageError
from atommem.eval.methods import Setup, make_method
from atommem.eval.reporting.results import Evaluation
from atommem.eval.runner import evaluate
from atommem.policy.contract import Completion, Sampling
from atommem.rollout import EpisodeRunner
from atommem.run import RunConfig
from tests.fakes import ScriptedPolicy, WordEmbedder, WordTokenizer

DOCUMENTS = (
    Document("Moss", "Moss grows on stones."),
    Document("Orla", "Orla is a potter whose brother is Bran.", gold=True),
    Document("Kiln", "A kiln is hot inside."),
    Document("Bran", "Bran lives in Port.", gold=True),
)
TASK = Task(
    "t",
    (
        Question("Where does Bran live ?", ("Port",), metadata={"documents": [3]}),
        Question("Who is a potter ?", ("Orla",), metadata={"documents": [1]}),
    ),
    DOCUMENTS,
    source="hotpotqa",
)
GONE = OutageError("server gone")


def right(prompt: str) -> str:
    """The right answers to the questions of `TASK` that a prompt asks, whatever is shown."""
    answers = "So \\boxed{Port} " * ("Where does" in prompt)
    return answers + "It is \\boxed{Orla}" * ("potter ?" in prompt)


def make_setup(
    script: Callable[[str], str | Exception] = right,
    environment: EnvironmentConfig | None = None,
    *,
    memory: MemoryConfig | None = None,
    sampling: Sampling | None = None,
    **settings: Any,
) -> tuple[Setup, ScriptedPolicy]:
    tokenizer = WordTokenizer()
    policy = ScriptedPolicy(tokenizer, script, eos_token_id=0)
    config = environment or environment_config("longdoc", chunking="documents", max_reads=1)
    run = RunConfig(
        memory=memory or MemoryConfig(retrieve_k=2),
        sampling=sampling or Sampling(temperature=0.0, seed=0, max_completion_length=64),
    )
    factory = make_factory(config, tokenizer)
    fields = {"run": run, "policy": policy, "embedder": WordEmbedder()}
    return Setup(**{**fields, "factory": factory, **settings}), policy


def shown_documents(prompt: str) -> Sequence[str]:
    return [document.title for document in DOCUMENTS if document.text in prompt]


def make_task(name: str, *, right: bool = True, questions: int = 1) -> Task:
    """`ToyPolicy` answers ``say-NAME-0``, ``say-NAME-1``, ...; with `right` that is gold."""
    golds = [f"{name}-{index}" if right else "something else" for index in range(questions)]
    texts = (f"Please say-{name}-{index} now" for index in range(questions))
    pairs = enumerate(zip(texts, golds, strict=True))
    asked = (Question(text, (gold,), id=f"q{index}") for index, (text, gold) in pairs)
    documents = (Document("One", "The first document."), Document("Two", "The second document."))
    return Task(name, tuple(asked), documents, source="hotpotqa")


class ToyPolicy(ScriptedPolicy):
    """Creates an entry from every chunk, and gives the answer that stands in the question.

    Requests of a task in `errors` raise; questions of a task in `wrong` are answered with "wrong".
    """

    def __init__(self, tokenizer: WordTokenizer) -> None:
        super().__init__(tokenizer, self._reply, eos_token_id=0)
        self.errors: dict[str, AtomMemError] = {}
        self.wrong: set[str] = set()
        self.asked: list[str] = []  # the tasks of all requests

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        await asyncio.sleep(0)  # as every real one, it lets the other episodes go on
        return await super().complete(prompt_ids, sampling)

    def _reply(self, prompt: str) -> str | Exception:
        found = re.search(r"say-((\w+)-\d+)", prompt)
        assert found is not None
        answer, name = found.groups()
        self.asked.append(name)
        if name in self.errors:
            return self.errors[name]
        if "document." in prompt:
            return "<create_memory>seen</create_memory>"
        given = "wrong" if name in self.wrong else answer
        return f"<final_answer>\\boxed{{{given}}}</final_answer>"


def make_runner(
    memory: MemoryConfig | None = None, max_in_flight: int = 1
) -> tuple[EpisodeRunner, ToyPolicy]:
    setup, _ = make_setup(memory=memory or MemoryConfig(), max_in_flight=max_in_flight)
    policy = ToyPolicy(setup.tokenizer)  # type: ignore[arg-type]
    runner = make_method("atommem", replace(setup, policy=policy))
    assert isinstance(runner, EpisodeRunner)
    return runner, policy


async def evaluated(
    tasks: Sequence[Task],
    out: Path | None = None,
    *,
    wrong: Iterable[str] = (),
    gone: Iterable[str] = (),
    error: AtomMemError = GONE,
    runner: Mapping[str, Any] | None = None,
    **more: Any,
) -> tuple[EvalResult, list[str]]:
    """An evaluation of a new `ToyPolicy`, which raises `error` for the tasks `gone`, and the tasks
    that it was asked about; `runner` are settings of `make_runner`, `more` those of `evaluate`."""
    agent, policy = make_runner(**(runner or {}))
    policy.wrong, policy.errors = set(wrong), dict.fromkeys(gone, error)
    result = await evaluate(list(tasks), agent, out, progress=False, **more)
    return result, policy.asked


def made(
    row: str,
    scores: Sequence[Mapping[str, float]],
    *,
    dataset: str = "toy",
    planned: int | None = None,
    endings: Mapping[int, str] | None = None,
    **more: Any,
) -> Evaluation:
    """An evaluation with one question a task, from its scores; F1 defaults to EM.

    `endings` are the stop reasons of unanswered episodes, by the number of a task.
    """
    records = []
    for number, given in enumerate(scores):
        metrics = {"f1": given["em"], **given}
        question = QuestionRecord(f"q{number}", "?", "a", ("b",), metrics=metrics)
        sums = {**episode_sums([]), "episodes": 1.0}
        name, stop = f"t{number}", (endings or {}).get(number, "answered")
        reward, asked = (None, ()) if stop == "failed" else (given["em"], (question,))
        records.append(EpisodeRecord(name, 0, dataset, stop, None, reward, {}, asked, sums, 1.0))
    manifest = {"tasks": {"count": planned or len(scores), "sha256": "s"}, "memory": {}}
    return Evaluation(Path(row), row, dataset, manifest=manifest, records=tuple(records), **more)


def ones(right: int, of: int) -> list[dict[str, float]]:
    return [{"em": float(number < right)} for number in range(of)]

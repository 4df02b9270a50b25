"""A toy world for the evaluation tests: what the policy should answer stands in the question."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from atommem.config import MemoryConfig
from atommem.envs.scoring.records import EpisodeRecord, EvalResult, QuestionRecord
from atommem.envs.task import Document, Question, Task
from atommem.episode import episode_sums
from atommem.errors import AtomMemError, OutageError
from atommem.eval.methods import make_method
from atommem.eval.reporting.evaluations import Evaluation
from atommem.eval.reporting.results import make_results
from atommem.eval.runner import evaluate
from atommem.policy.contract import Completion, Sampling
from atommem.rollout import EpisodeRunner
from tests.eval.methods.toys import TextPolicy, make_setup
from tests.fakes import WordTokenizer


def make_task(
    name: str, *, right: bool = True, questions: int = 1, source: str = "hotpotqa"
) -> Task:
    """`ToyPolicy` answers ``say-NAME-0``, ``say-NAME-1``, ...; with `right` that is gold."""
    golds = [f"{name}-{index}" if right else "something else" for index in range(questions)]
    asked = (
        Question(f"Please say-{name}-{index} now", (gold,), id=f"q{index}")
        for index, gold in enumerate(golds)
    )
    documents = (Document("One", "The first document."), Document("Two", "The second document."))
    return Task(name, tuple(asked), documents, source=source)


GONE = OutageError("server gone")


class ToyPolicy(TextPolicy):
    """Creates an entry from every chunk, and says what the question tells it to.

    Attributes:
        errors: By task, what every request raises.
        wrong: Names of the tasks whose questions it answers with "wrong".
        until: By task, what its requests wait for (60 seconds at most).
        asked: Names of the tasks of all requests.
        most: Requests at the same time.
    """

    def __init__(self, tokenizer: WordTokenizer) -> None:
        super().__init__(tokenizer, self._answer)
        self.errors: dict[str, AtomMemError] = {}
        self.wrong: set[str] = set()
        self.until: dict[str, Callable[[], bool]] = {}
        self.asked: list[str] = []
        self.most = self._open = 0

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        found = re.search(
            r"say-(\w+)-\d+", self.tokenizer.decode(prompt_ids, skip_special_tokens=False)
        )
        assert found is not None
        name, end = found[1], time.monotonic() + 60
        self._open += 1
        self.most = max(self.most, self._open)
        try:
            await asyncio.sleep(0)  # as every real one, it lets the other episodes go on
            self.asked.append(name)
            while name in self.until and not self.until[name]() and time.monotonic() < end:
                await asyncio.sleep(0.001)
            if name in self.errors:
                raise self.errors[name]
            return await super().complete(prompt_ids, sampling)
        finally:
            self._open -= 1

    def _answer(self, prompt: str) -> str:
        if "document." in prompt:
            return "<create_memory>seen</create_memory>"
        found = re.search(r"say-(\S+)", prompt)
        assert found is not None
        name = found[1].rsplit("-", 1)[0]
        answer = "wrong" if name in self.wrong else found[1]
        return f"<final_answer>\\boxed{{{answer}}}</final_answer>"


def make_runner(**settings: object) -> tuple[EpisodeRunner, ToyPolicy]:
    """A runner around a `ToyPolicy`; `settings` are fields of `Setup`."""
    own = {
        "memory": MemoryConfig(),
        "sampling": Sampling(temperature=0.0, seed=0),
        "max_in_flight": 1,
    }
    setup, _ = make_setup(**{**own, **settings})
    policy = ToyPolicy(setup.tokenizer)
    return make_method("atommem", replace(setup, policy=policy)), policy


async def evaluated(
    tasks: Sequence[Task],
    out: Path | None = None,
    *,
    wrong: Iterable[str] = (),
    gone: Iterable[str] = (),
    error: AtomMemError = GONE,
    runner: Mapping[str, object] | None = None,
    **more: Any,
) -> tuple[EvalResult, list[str]]:
    """An evaluation of a new `ToyPolicy`, and the tasks that it was asked about.

    Args:
        gone: Tasks for which every request raises `error`.
        runner: Settings of `make_runner`.
        more: Those of `evaluate`.
    """
    agent, policy = make_runner(**(runner or {}))
    policy.wrong, policy.errors = set(wrong), dict.fromkeys(gone, error)
    result = await evaluate(list(tasks), agent, out, progress=False, **more)
    return result, policy.asked


def made(
    row: str,
    scores: Sequence[Mapping[str, float]],
    *,
    categories: Sequence[str] = ("",),
    dataset: str = "toy",
    planned: int | None = None,
    episode: Mapping[str, float] | None = None,
    endings: Mapping[int, str] | None = None,
    **more: Any,
) -> Evaluation:
    """An evaluation with one question a task, from its scores; F1 defaults to EM.

    `endings` are the stop reasons of unanswered episodes, by the number of a task.
    """
    records = []
    for number, given in enumerate(scores):
        category, metrics = categories[number % len(categories)], {"f1": given["em"], **given}
        question = QuestionRecord(f"q{number}", "?", "a", ("b",), category, metrics)
        sums = {**episode_sums([]), "episodes": 1.0}
        name, own, stop = f"t{number}", dict(episode or {}), (endings or {}).get(number, "answered")
        reward, asked = (None, ()) if stop == "failed" else (given["em"], (question,))
        records.append(EpisodeRecord(name, 0, dataset, stop, None, reward, own, asked, sums, 1.0))
    manifest = {
        "tasks": {"count": planned or len(scores), "sha256": "s"},
        "samples_per_task": 1,
        "memory": {},
    }
    return Evaluation(Path(row), row, dataset, manifest=manifest, records=tuple(records), **more)


def ones(right: int, of: int) -> list[dict[str, float]]:
    """Scores of which the first so many are right."""
    return [{"em": float(number < right)} for number in range(of)]


def results_of(*evaluations: Evaluation, **more: Any) -> dict[str, Any]:
    """The results of a report."""
    return make_results(evaluations, **more)

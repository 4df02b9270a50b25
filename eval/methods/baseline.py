"""The interface of methods, baselines without a memory loop, and those that keep no notes.

A `Baseline` asks the same policy as the loop with its own prompts; each call is a step of the
episode, so calls, tokens, traces and outages count as in the loop. docs/evaluate.md lists
divergences from the authors' methods.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any, ClassVar

from atommem.actions import ActionSpec
from atommem.config import MemoryConfig
from atommem.dialects import Dialect, Section, Templates, get_dialect
from atommem.environment import Score
from atommem.envs.longdoc.environment import LongDocEnvironments
from atommem.envs.longdoc.evidence import gold_documents
from atommem.envs.question_answering import QAEnvironments
from atommem.envs.task import Task, document_texts, joined_text
from atommem.episode import Episode, StopReason
from atommem.errors import ConfigError, DataError, PromptTooLongError
from atommem.eval.methods.recorder import Recorder, Setup
from atommem.files import load_beside
from atommem.prompts import PromptBuilder
from atommem.rollout import EpisodeRunner, set_score, timed
from atommem.tokens import cut_position, token_offsets

PROMPTS: dict[str, Any] = load_beside(__file__, "prompts.yaml")
SHARED = PROMPTS["shared"]
_HEADING = re.compile(r"^Document \d+:[ \n]", re.MULTILINE)  # of documents, in MemAgent's files too


def suitable(setup: Setup, method: str, needs: type[QAEnvironments] = LongDocEnvironments) -> Any:
    """Return the environment if it is what a method needs; raises ConfigError otherwise."""
    if not isinstance(setup.factory, needs):
        name = setup.factory.config.environment
        raise ConfigError(
            f"method={method}: reads documents, and environment {name!r} has none. Choose another "
            "method or --environment."
        )
    return setup.factory


def split_at_headings(context: str) -> list[str]:
    """Split joined text at its headings ("Document 7:"); return [] without any."""
    starts = [match.start() for match in _HEADING.finditer(context)]
    return [context[a:b].strip() for a, b in pairwise([*starts, len(context)])]


class Baseline(ABC):
    """A method with prompts of its own, without and with memory. Subclasses implement `drive`."""

    name: ClassVar[str]
    depends_on: ClassVar[tuple[str, ...]] = ("retrieve_k", "context_tokens", "yarn_factor")
    plain: PromptBuilder
    remembering: PromptBuilder

    def __init__(self, setup: Setup) -> None:
        self.setup, self.factory, self.max_in_flight = setup, setup.factory, setup.max_in_flight

    def settings(self) -> dict[str, Any]:
        """Return the settings that its scores depend on, as JSON values."""
        own = {name: getattr(self.setup, name) for name in self.depends_on}
        return {
            "method": {"name": self.name, **own},
            "prompts_sha256": self.remembering.digest,
            **self.remembering.chat.record(),
            "sampling": asdict(self.setup.run.sampling),
        }

    @abstractmethod
    async def drive(self, record: Recorder, episode: Episode, task: Task) -> Score:
        """Run an episode, set its stop reason, and score it; raises OutageError."""

    async def run(self, task: Task, sample: int = 0) -> Episode:
        """Run one episode; an outage ends it as FAILED. Raises PolicyError if refused."""
        episode = Episode(task_id=task.id, sample=sample)
        record = Recorder(self.setup, self.plain, self.remembering, episode, task)
        with timed(episode):
            set_score(episode, await self.drive(record, episode, task))
            episode.metrics |= record.metrics
        return episode

    def make_prompts(
        self, templates: Templates, section: Section, actions: Sequence[ActionSpec] = ()
    ) -> PromptBuilder:
        """Make the loop's own renderer, so that text from outside is data here too."""
        tags = {"answer": get_dialect("paper", "full").tags["answer"]} if actions else {}
        given = self.setup.tokenizer, Dialect("baseline", tags, templates), MemoryConfig(), section
        return PromptBuilder(*given, actions, self.setup.run.chat_template_kwargs)


Method = EpisodeRunner | Baseline  # turns a task into an episode, with one policy and memory


class Reader(Baseline):
    """A baseline that reads documents, in environments of the class `needs`."""

    needs: ClassVar[type[QAEnvironments]] = LongDocEnvironments
    pieces: ClassVar[Mapping[str, str]] = {}  # templates beside those of ``prompts.yaml``

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.documents = suitable(setup, self.name, self.needs)
        section = Section({**SHARED["answering"], **PROMPTS.get(self.name, {}), **self.pieces})
        words = {"system": SHARED["system"], "empty": SHARED["nothing"]}
        self.plain = self.make_prompts(Templates(**words), section)
        self.remembering = self.make_prompts(Templates(**words, **SHARED["memory"]), section)

    async def chunks(self, task: Task) -> Sequence[str]:
        await self.setup.factory.prepare(task)
        return self.documents.chunks(task)

    async def texts(self, task: Task) -> Sequence[str]:
        """Return the documents of `task`; joined text is split."""
        if task.context is None:
            return document_texts(task.documents)
        return split_at_headings(task.context) or await self.chunks(task)

    @abstractmethod
    async def play(self, record: Recorder, task: Task) -> None:
        """Read `task` and answer its questions; answers before one that does not fit count."""

    async def drive(self, record: Recorder, episode: Episode, task: Task) -> Score:
        """Read and answer; what was answered before a prompt did not fit counts."""
        try:
            await self.play(record, task)
            unanswered = None in record.answers
            episode.stop_reason = StopReason.UNANSWERED if unanswered else StopReason.ANSWERED
        except PromptTooLongError:
            episode.stop_reason = StopReason.CONTEXT_OVERFLOW
        return await self.documents.score(task, record.answers)


class FullContext(Reader):
    """Asks all questions with the whole text, cut in the middle beyond the context window.

    The cut keeps the beginning and the end, like LongBench (arXiv 2308.14508, section 4.1).
    Metrics: ``truncated`` (1 if anything was cut) and ``context_kept`` (the smallest fraction of
    the text's tokens shown with a question).
    """

    name = "full_context"

    async def play(self, record: Recorder, task: Task) -> None:
        text = joined_text(task)
        offsets = token_offsets(self.setup.tokenizer, text)
        record.metrics = {"truncated": 0.0, "context_kept": 1.0}
        for asked in record.together:
            frame = record.count_tokens(record.asking(asked, ""))
            room = max(0, self.setup.prompt_room - frame - 8)  # joints may add a few tokens
            shown = text
            if len(offsets) > room:
                tail = room // 2
                shown = text[: cut_position(offsets, room - tail)]
                shown += text[cut_position(offsets, len(offsets) - tail) :] if tail else ""
                kept = min(room / len(offsets), record.metrics["context_kept"])
                record.metrics = {"truncated": 1.0, "context_kept": kept}
            await record.answer(asked, shown)


class VanillaRAG(Reader):
    """Asks with the `retrieve_k` documents most similar to each question (arXiv 2005.11401)."""

    name = "rag"

    async def play(self, record: Recorder, task: Task) -> None:
        await record.hold(await self.texts(task))
        await record.answer_from(lambda vector: record.index.search(vector, self.setup.retrieve_k))


class NoMemory(Reader):
    """Asks each question without any text: a lower bound."""

    name = "no_memory"
    needs = QAEnvironments

    async def play(self, record: Recorder, task: Task) -> None:
        for index in range(len(task.questions)):
            await record.answer(range(index, index + 1))


class Oracle(Reader):
    """Asks each question with its gold documents: an upper bound on memory."""

    name = "oracle"

    async def play(self, record: Recorder, task: Task) -> None:
        for index, question in enumerate(task.questions):
            documents = gold_documents(task, question)
            if not documents and "documents" not in question.metadata:
                raise DataError(
                    f"task {task.id!r} marks no document as gold. The method oracle needs tasks of "
                    "`atommem data build`, the synthetic world, or LoCoMo."
                )
            text = "\n\n".join(document_texts(documents))
            await record.answer(range(index, index + 1), text or None)

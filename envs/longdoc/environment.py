"""The long-document environment: read the chunks one by one, then answer from memory alone."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from atommem.actions import Action, ActionKind, first
from atommem.config import check_choice
from atommem.environment import Score, StepResult
from atommem.envs.longdoc.chunking import chunk_task
from atommem.envs.scoring.answers import Judge, check_reward, score_answers
from atommem.envs.scoring.judge import make_judge
from atommem.envs.scoring.judge_config import JudgeConfig
from atommem.envs.task import Task
from atommem.episode import Observation, StopReason
from atommem.errors import ConfigError
from atommem.tokens import Tokenizer


@dataclass
class LongDocConfig(JudgeConfig):
    """How a document is cut, and how an episode is asked and scored."""

    chunking: str = field(
        default="tokens", metadata={"help": "tokens: cut the joined text; documents: one chunk a document."}
    )
    chunk_tokens: int = field(default=4000, metadata={"help": "Tokens a chunk."})
    whole_sentences: bool = field(default=False, metadata={"help": "End chunks where sentences end."})
    max_reads: int = field(
        default=3, metadata={"help": "Steps that a question may use before the step that must answer it."}
    )
    reward: str = field(default="em", metadata={"help": "em, f1 or judge: the mean over a task's questions."})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("chunking", self.chunking, ("tokens", "documents"))
        check_reward(self.reward)
        if self.reward == "judge" and self.judge_url is None:
            raise ConfigError("reward is judge: give judge_url and judge_model as well.")
        if self.chunk_tokens < 1:
            raise ConfigError(f"chunk_tokens is {self.chunk_tokens}: give at least 1.")
        if self.max_reads < 0:
            raise ConfigError(f"max_reads is {self.max_reads}: give 0 or more.")


class LongDocEnvironments:
    """Makes environments that share their chunking: the episodes of a group read the same task.

    Call it for a fresh environment: it is the `environment_factory` of an `EpisodeRunner`.
    """

    _KEPT = 64

    def __init__(self, tokenizer: Tokenizer, config: LongDocConfig) -> None:
        self.tokenizer = tokenizer
        self.config = config
        self.judge: Judge | None = make_judge(config)
        self._chunks: OrderedDict[int, tuple[Task, list[str]]] = OrderedDict()
        self._lock = threading.Lock()
        # One thread: the episodes of a group ask for the same chunks at the same time.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="atommem-chunks")

    def __call__(self) -> LongDocEnvironment:
        return LongDocEnvironment(self)

    def chunks(self, task: Task) -> list[str]:
        """The chunks of `task`, cut once for the episodes that are in flight."""
        # Keyed by the object, and the object kept: two files may use one id for different tasks.
        with self._lock:
            if id(task) in self._chunks:
                self._chunks.move_to_end(id(task))
                return self._chunks[id(task)][1]
        config = self.config
        chunks = chunk_task(task, self.tokenizer, config.chunking, config.chunk_tokens, config.whole_sentences)
        with self._lock:
            self._chunks[id(task)] = (task, chunks)
            if len(self._chunks) > self._KEPT:
                self._chunks.popitem(last=False)
        return chunks

    async def prepare(self, task: Task) -> list[str]:
        """`chunks`, cut in a thread, where fast tokenizers work in parallel to the event loop.

        A text of 100,000 tokens takes a fifth of a second, in which no other episode would go on.
        """
        by_tokens = self.config.chunking == "tokens" or task.context is not None
        if by_tokens and id(task) not in self._chunks:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self.chunks, task)
        return self.chunks(task)

    async def score(self, task: Task, answers: Sequence[str | None]) -> Score:
        """Score the answers to a task, one per question (None: no answer).

        Raises:
            OutageError: The judge is out of reach.
            JudgeError: The judge cannot judge at all.
        """
        return await score_answers(task, answers, self.config.reward, self.judge)

    async def close(self) -> None:
        """Close the judge's connections, and end the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self.judge is not None:
            await self.judge.close()


class LongDocEnvironment:
    """One episode on one document.

    Reading takes one step per chunk; answers written there do not count. Then each question is asked
    in turn: a step with an answer moves on to the next question, a step without one (a read, as a
    rule) uses up one of `max_reads`, and the step after the last of these must answer. So an episode
    has at most ``chunks + questions * (max_reads + 1)`` steps.
    """

    def __init__(self, shared: LongDocEnvironments) -> None:
        self._shared = shared
        self._config = shared.config
        self._task: Task | None = None
        self._chunks: list[str] = []
        self._answers: list[str | None] = []
        self._observation: Observation | None = None

    def reset(self, task: Task) -> Observation:
        """Start on `task`.

        Raises:
            ConfigError: The task has no question, or the reward is none for it.
        """
        if not task.questions:
            raise ConfigError(f"task {task.id!r} has no question: nothing can be asked or scored.")
        check_reward(self._config.reward, task.source)
        self._task = task
        self._chunks = self._shared.chunks(task)
        self._answers = []
        self._observation = self._chunk(0) if self._chunks else self._question(0)
        return self._observation

    async def step(self, actions: Sequence[Action]) -> StepResult:
        """Move on to the next chunk, the next question, or the end."""
        observation = self._observation
        assert observation is not None, "reset() comes first"
        if observation.phase == "reading":
            index = observation.chunk_index + 1
            return self._go(self._chunk(index) if index < len(self._chunks) else self._question(0))
        answer = first(actions, ActionKind.ANSWER)
        if answer is None and observation.reads_left > 0:
            return self._go(replace(observation, reads_left=observation.reads_left - 1))
        self._answers.append(None if answer is None else answer.text)
        if len(self._answers) < observation.question_count:
            return self._go(self._question(len(self._answers)))
        complete = all(given is not None for given in self._answers)
        return StepResult(None, True, StopReason.ANSWERED if complete else StopReason.UNANSWERED)

    async def score(self) -> Score:
        """Means over all questions, answer i against the golds of question i only."""
        assert self._task is not None, "reset() comes first"
        missing = len(self._task.questions) - len(self._answers)
        return await self._shared.score(self._task, [*self._answers, *[None] * missing])

    def _go(self, observation: Observation) -> StepResult:
        self._observation = observation
        return StepResult(observation)

    def _chunk(self, index: int) -> Observation:
        assert self._task is not None
        return Observation(
            phase="reading",
            questions=tuple(question.text for question in self._task.questions),
            chunk=self._chunks[index],
            chunk_index=index,
            chunk_count=len(self._chunks),
            question_count=len(self._task.questions),
        )

    def _question(self, index: int) -> Observation:
        assert self._task is not None
        return Observation(
            phase="answering",
            questions=(self._task.questions[index].text,),
            chunk_count=len(self._chunks),
            question_index=index,
            question_count=len(self._task.questions),
            reads_left=self._config.max_reads,
        )

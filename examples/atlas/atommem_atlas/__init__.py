"""An environment outside of AtomMem: two tools, and its own prompts, tasks and score."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from atommem.actions import ANSWER, ANSWER_ACTION, Action, ActionSpec, Body, Call, first
from atommem.environment import EnvironmentConfig, EnvironmentFactory, Score, StepResult
from atommem.episode import Observation, Piece, Step, StopReason
from atommem_atlas.tasks import Task, build, describe, read_tasks


def tool(name: str, argument: str, description: str) -> ActionSpec:
    """Return a tool with one text argument."""
    schema = {
        "properties": {argument: {"type": "string"}},
        "required": [argument],
        "additionalProperties": False,
    }
    return ActionSpec(name, Body.ARGUMENTS, description=description, schema=schema)


@dataclass
class AtlasConfig(EnvironmentConfig):
    """Settings of an episode."""

    operational: ClassVar[frozenset[str]] = frozenset({"world"})

    turns: int = field(
        default=4, metadata={"help": "Steps with tools; the one after them must answer."}
    )
    world: str = field(
        default="", metadata={"help": "Task file with the facts for users' questions."}
    )


class Journey:
    """One episode: the next step shows the results of calls, and an answer ends it."""

    answer: str | None = None

    def __init__(self, turns: int) -> None:
        self.left = turns

    async def reset(self, task: Task) -> Observation:
        self.task = task
        return self.observe([])

    async def step(self, step: Step) -> StepResult:
        answer = first(step.actions, ANSWER)
        if answer is not None or self.left == 0:
            self.answer = answer and answer.text
            return StepResult(None, StopReason.ANSWERED if answer else StopReason.UNANSWERED)
        self.left -= 1
        return StepResult(self.observe(step.calls))

    async def score(self) -> Score:
        """Return the shared places over all places, so that listing all of them does not pay."""
        right, named = set(self.task.right.split()), set((self.answer or "").split())
        metrics = {
            "overlap": len(right & named) / max(1, len(right | named)),
            "em": float(right == named),
        }
        return Score(metrics["overlap"], (self.answer,), metrics, (metrics,))

    def observe(self, calls: Sequence[Call]) -> Observation:
        """Show the result of each call, also if it was refused."""
        results = tuple(self.result(call) for call in calls)
        return Observation(
            phase="acting" if self.left else "answering",
            task=(Piece("question", {"person": self.task.person}),),
            stream=(Piece("results", {"results": results}),) if results else (),
            closing=(Piece("act", {"left": self.left}) if self.left else Piece("answer"),),
            question=0,
            origin="; ".join(str(item.values["call"]) for item in results if item.name == "result")
            or None,
        )

    def result(self, call: Call) -> Piece:
        if not isinstance(call, Action):
            return Piece("failure", {"text": call.detail})
        (said,) = call.arguments.values()
        text = self.task.facts[call.kind].get(said, "nobody knows")
        return Piece("result", {"call": f"{call.kind} {said}", "text": text})


class Atlas(EnvironmentFactory):
    """Where can somebody go from home?"""

    config_class = AtlasConfig
    templates = Path(__file__).with_name("templates")
    pieces: ClassVar = {
        "question": ["person"],
        "results": ["results"],
        "result": ["call", "text"],
        "failure": ["text"],
        "act": ["left"],
        "answer": [],
    }
    phases = ("acting", "answering")
    actions = (
        tool("lookup", "name", "Tells where somebody lives."),
        tool("neighbours", "place", "Tells which places a place touches."),
        ANSWER_ACTION,
    )
    read_tasks, describe = staticmethod(read_tasks), staticmethod(describe)

    def __call__(self) -> Journey:
        return Journey(self.config.turns)

    def asking(self, question: str) -> Task:
        """Return the task of a user's question, which names the person."""
        facts = read_tasks(self.config.world)[0].facts
        known = (word for word in question.split() if word in facts["lookup"])
        return Task("asked", next(known, question), facts)

    @classmethod
    def build(cls, argv: Sequence[str]) -> int:
        return build(argv)

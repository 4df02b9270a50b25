"""The goldens' only imports from the product: adapt the lines here to renames and moves."""

import json
from collections.abc import Sequence
from typing import Any

from atommem.config import MemoryConfig
from atommem.embedding.embedder import HashingEmbedder
from atommem.envs.longdoc.environment import chunk_observation, question_observation
from atommem.envs.task import Document, Question, Task
from atommem.memory.log import MemoryView, Operation, Retrieved, to_json
from atommem.policy.contract import Sampling
from atommem.rollout import Agent, Session
from tests.fakes import longdoc


def reading(questions: Sequence[str], chunks: Sequence[str], index: int, **options: Any) -> Any:
    task = make_task("t", [(text, []) for text in questions])
    return chunk_observation(task, chunks, index, **options)


def answering(questions: Sequence[str], reads_left: int, over: bool) -> Any:
    task = make_task("t", [(text, []) for text in questions])
    return question_observation(task, range(1), reads_left, over=over)


def memory_view(
    scratchpad: str, query: str | None, entries: Sequence[str], capacity: int | None
) -> Any:
    shown = tuple(Retrieved(n, n + 6, text, 0.5) for n, text in enumerate(entries, 1))
    return MemoryView(scratchpad, query, shown, size=len(entries) + 2, capacity=capacity)


def make_task(
    name: str, questions: Sequence[tuple[str, list[str]]], texts: Sequence[str] = (), **more: Any
) -> Any:
    asked = tuple(Question(text, (*gold,), id=f"q{n}") for n, (text, gold) in enumerate(questions))
    documents = tuple(Document(f"Title {n}", text) for n, text in enumerate(texts))
    return Task(name, asked, documents, **more)


RULE_PATHS = {
    **{name.lower(): f"papers.banks:{name}" for name in ("Periodic", "History", "Combined")},
    **{name.lower(): f"papers.banks:{name}" for name in ("MemoBank", "TraceRetain")},
    **{name.lower(): f"papers.retention.rules:{name}" for name in ("Ebbinghaus", "Redundancy")},
    **{name.lower(): f"papers.retention.rules:{name}" for name in ("Novelty", "Linear")},
    "failures_first": "papers.banks:FailuresFirst",
    **{"type_prior": "papers.retention.rules:TypePrior", "amac": "papers.amac.rule:AMac"},
}
"""Rules that the package no longer ships."""


def make_agent(policy: Any, tokenizer: Any, **memory: Any) -> Any:
    for setting in memory.keys() & {"admission", "retention"}:
        name, *options = memory[setting].partition("(")
        memory[setting] = "".join([RULE_PATHS.get(name, name), *options])
    return Agent(
        policy=policy,
        embedder=HashingEmbedder(32),
        tokenizer=tokenizer,
        factory=longdoc(tokenizer),
        memory=MemoryConfig(**memory),
        sampling=Sampling(seed=3, max_completion_length=4000),
    )


def under_old_name(record: Any) -> Any:
    text = json.dumps(record)
    for name, path in RULE_PATHS.items():
        text = text.replace(path, name)
    return json.loads(text)


def scored(kind: str, step: int, entry_ids: Sequence[int], score: float) -> Any:
    return Operation(step, kind, scores=tuple((entry_id, score) for entry_id in entry_ids))


async def run_session(agent: Any, observations: Sequence[Any], key: str) -> list[dict[str, Any]]:
    """Each step's actions, problems, operations and view, with outcomes for rules."""
    session = Session(agent, key)
    steps = []
    for number, observation in enumerate(observations):
        step = await session.step(observation)
        operations = list(step.operations)
        if number % 5 == 4:
            shown = [entry_id for entry_id, _ in session.memory.contents.shown]
            operations.append(scored("observe", number, shown, float(number == 4)))
            session.memory.append(operations[-1])
        if number == 6:
            entries = session.memory.entries()
            unknown = [entry.id for entry in entries if entry.outcome is None]
            operations.append(scored("outcome", number, unknown, 1.0))
            session.memory.append(operations[-1])
        view = session.memory.view()
        steps.append(
            {
                "actions": [(action.kind, action.text, action.handle) for action in step.actions],
                "problems": [str(problem.reason) for problem in step.problems],
                "operations": [under_old_name(to_json(item)) for item in operations],
                "scratchpad": view.scratchpad,
                "query": view.query,
                "shown": [(item.handle, item.entry_id, item.text) for item in view.retrieved],
                "size": view.size,
            }
        )
    return steps


def loss_and_gradient(
    settings: dict[str, Any], rows: Any, logps: Any, old: Any, ref: Any, weighting: str
) -> Any:
    """Loss, gradient and logged means over rows of (logprobs, advantage)."""
    import torch

    from atommem.train.objective.loss import CORRECTION, PolicyLoss
    from atommem.train.objective.rows import EpisodeSize, Row, Tokens, normalizer, token_weight

    sizes = [EpisodeSize(len(logprobs), 1) for logprobs, _ in rows]
    made = []
    for index, (logprobs, advantage) in enumerate(rows):
        weight = token_weight(len(logprobs), sizes[index], weighting)
        made.append(Row([1], [2] * len(logprobs), logprobs, advantage, weight))
    objective = PolicyLoss(**{"epsilon": 0.2, "epsilon_high": 0.28, **settings})
    total, log = objective(
        logps, Tokens.of(made, torch.device("cpu")), old, ref if objective.beta else None
    )
    loss = total / normalizer(sizes, weighting, 9)
    (gradient,) = torch.autograd.grad(loss, logps)
    log.pop(CORRECTION, None)  # the goldens are older
    return loss, gradient, {name: float(value.float().mean()) for name, value in log.items()}


def advantages(rewards: Sequence[float | None], group_size: int, scale: str) -> list[float]:
    from atommem.train.objective.rows import group_advantages

    return group_advantages(rewards, group_size, scale)

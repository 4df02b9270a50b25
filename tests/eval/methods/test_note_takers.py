"""The baselines that keep notes, on streams with scripted replies: what their authors' own code made of them
(`bench_baselines --record`), and ours; and by hand, what that does not hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.actions import ProblemReason
from atommem.envs.chunking import joined_text
from atommem.envs.task import Document, Task
from atommem.episode import Episode
from atommem.errors import OutageError
from atommem.eval.methods import make_method
from atommem.eval.methods.generative_agents import rating_of, stream_scores
from atommem.memory.log import replay
from tests.eval.methods.same_replies import METHODS, digest, make_case, run
from tests.eval.methods.toys import DOCUMENTS, TASK, make_setup, right

NAMES = ("a_mem", "generative_agents", "mem0")


def title(prompt: str) -> str:
    """The title of the document that a prompt asks about: the first in it."""
    return min(
        (document.title for document in DOCUMENTS if document.text in prompt), key=prompt.index
    )


def answering(reply: Callable[[str], Any]) -> Callable[[str], str]:
    """The right answers, and while reading `reply` as JSON."""
    return lambda prompt: (
        right(prompt) if "Answer every question" in prompt else json.dumps(reply(prompt))
    )


def store_of(episode: Episode) -> list[str]:
    entries = replay(operation for step in episode.steps for operation in step.operations).entries
    return [entry.text for entry in entries.values()]


RECORDED: dict[str, list[str]] = json.loads(Path(__file__).with_name("authors.json").read_text())


@pytest.mark.parametrize("method", METHODS)
def test_prompts_show_and_stores_hold_what_the_authors_code_does(method: str) -> None:
    for seed, recorded in enumerate(
        RECORDED[method][:8]
    ):  # mem0 deletes for the first time in the seventh
        assert digest(run(make_case(method, seed, 12))) == recorded, f"seed {seed}"


# A-Mem


async def test_a_mem_embeds_all_notes_anew_after_so_many_evolutions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("atommem.eval.methods.a_mem.EVOLUTIONS", 2)
    setup, _ = make_setup(
        answering(lambda prompt: {"should_evolve": True, "actions": [], "context": "c"})
    )
    await make_method("a_mem", setup).run(TASK)
    calls = setup.embedder.calls  # type: ignore[attr-defined]
    # A note, then a query and a note each; all three notes after the second change; the questions.
    assert [len(texts) for _, *texts in calls] == [1, 1, 1, 1, 1, 3, 1, 1, 2]


# Generative Agents


def test_stream_scores_by_hand() -> None:
    # Recency 0.99^2, 0.99, 1 scales to 0, (0.99 - 0.9801) / 0.0199, 1; relevance to 0; importance to 0, 1, 0.5.
    scores = stream_scores([1, 9, 5], [0.3, 0.3, 0.3])
    assert scores == pytest.approx([0.0, 0.5 * (0.99 - 0.9801) / 0.0199 + 2.0, 0.5 + 1.0])
    assert stream_scores([5], [0.2]) == pytest.approx([0.0])
    assert np.argmax(stream_scores([5, 5], [0.9, 0.1])) == 0


def test_ratings_of_any_form() -> None:
    given = [7, 0, 99, "high", None, float("nan"), 10**400]
    assert [rating_of({"importance": rating}) for rating in given] == [
        7.0,
        1.0,
        10.0,
        4.0,
        4.0,
        1.0,
        10.0,
    ]
    assert rating_of({}) == 4.0


async def test_generative_agents_rate_every_document_and_weigh_the_three_scores() -> None:
    setup, policy = make_setup(
        answering(lambda prompt: {"importance": 10 if title(prompt) == "Moss" else 1})
    )
    episode = await make_method("generative_agents", setup).run(TASK)
    assert episode.reward == 1.0
    assert len(policy.prompts) == 4 + 1
    assert store_of(episode) == joined_text(TASK).split("\n\n")
    assert [step.store_size for step in episode.steps] == [1, 2, 3, 4, 4]
    scores = {item.entry_id: item.score for item in episode.steps[-1].view.retrieved}
    # Bran: newest and most relevant (0.5 + 3 + 0). Moss: important, but oldest and off the point (0 + 0 + 2).
    assert scores[4] == pytest.approx(3.5)
    assert scores.get(1, 0) < 3.5


async def test_generative_agents_reflect_when_enough_has_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("atommem.eval.methods.generative_agents.THRESHOLD", 15)

    def reply(prompt: str) -> Any:
        if "questions of the highest level" in prompt:
            return {"questions": ["What grows ?", "Who is who ?", "Why ?", "a fourth"]}
        if "insights of a high level" in prompt:
            return {
                "insights": [{"insight": f"insight {n}"} for n in range(7)]
                + ["none", {"insight": 3}]
            }
        return {"importance": 8}

    setup, policy = make_setup(answering(reply))
    episode = await make_method("generative_agents", setup).run(TASK)
    # After the second and the fourth document: the questions, three times the insights, and a rating of each of 5.
    reflection = 1 + 3 + 3 * 5
    assert len(policy.prompts) == 4 + 2 * reflection + 1
    assert len(store_of(episode)) == 4 + 2 * 15
    labels = [step.observation.label for step in episode.steps]
    assert labels[1:5] == [
        f"document 2/4{more}" for more in ("", ", reflection", ", insights", ", an insight")
    ]
    # The first time, it asks itself about the two documents that it has read since.
    assert {item.entry_id for item in episode.steps[2].view.retrieved} == {1, 2}
    # What is found for the questions is found before there are insights.
    assert max(item.entry_id for step in episode.steps[3:21] for item in step.view.retrieved) == 2
    operations = [operation for step in episode.steps for operation in step.operations]
    assert ("read", "Who is who ?") in [
        (operation.kind, operation.after) for operation in operations
    ]
    # Without a question there is no insight.
    monkeypatch.setattr("atommem.eval.methods.generative_agents.THRESHOLD", 1)
    setup, policy = make_setup(answering(lambda prompt: {"importance": 8, "questions": "none"}))
    assert (await make_method("generative_agents", setup).run(TASK)).reward == 1.0
    assert len(policy.prompts) == 4 * 2 + 1


# All of them


@pytest.mark.parametrize(
    ("reply", "malformed"),
    [
        ('{"facts": ["x"], "should_evolve": true}', False),
        ('```json\n{"facts": ["x"]}\n```', False),
        ('Here you are: {"facts": ["x"]} - done', False),
        ('<think>{"facts": ["no"]}</think>{"facts": ["x"]}', False),
        ("", True),
        ("nothing", True),
        ('[{"facts": ["x"]}]', True),
        ('{"facts": ["x"]', True),
        ("<think>" + '{"facts": ["x"]}', True),
        ('{"facts": ' * 1100, True),
        (
            '{"facts": [1, [2], {}], "memory": 3, "importance": [], "keywords": {}, "tags": [{}], "actions": 1}',
            False,
        ),
        ('{"facts": ["half \\ud800"], "context": "\\ud800"}', False),
    ],
)
@pytest.mark.parametrize("name", NAMES)
async def test_no_reply_raises(name: str, reply: str, malformed: bool) -> None:
    setup, _ = make_setup(
        lambda prompt: right(prompt) if "Answer every question" in prompt else reply
    )
    episode = await make_method(name, setup).run(TASK)
    assert episode.reward == 1.0
    steps = [step for step in episode.steps if step.observation.phase == "reading"]
    assert all(
        (ProblemReason.NOT_JSON in [problem.reason for problem in step.problems]) == malformed
        for step in steps
    )
    assert len(store_of(episode)) == (0 if name == "mem0" else 4)
    if name == "mem0":
        assert len(steps) == (8 if '"x"' in reply or "half" in reply else 4) - 4 * (
            malformed and '"x"' in reply
        )


@pytest.mark.parametrize("name", [*NAMES, "rag"])
async def test_outages_while_reading_fail_the_episode_and_a_task_without_text_is_still_asked(
    name: str,
) -> None:
    setup, policy = make_setup(lambda prompt: OutageError("gone"))
    assert (await make_method(name, setup).run(TASK)).error == "gone"
    policy.script = lambda prompt: '{"facts": ["x"]}'
    setup.embedder.fail = OutageError("no embeddings")  # type: ignore[attr-defined]
    assert (await make_method(name, setup).run(TASK)).error == "no embeddings"
    setup, policy = make_setup()
    assert (await make_method(name, setup).run(replace(TASK, documents=()))).reward == 1.0
    assert "What you remember of the text:\n(nothing)" in policy.prompts[0]


@pytest.mark.parametrize("name", ["a_mem", "generative_agents"])
async def test_a_text_that_comes_joined_is_read_document_by_document(name: str) -> None:
    setup, _ = make_setup(answering(lambda prompt: {}))
    method = make_method(name, setup)
    joined = replace(TASK, documents=(), context=joined_text(TASK))
    assert store_of(await method.run(TASK)) == store_of(await method.run(joined))
    setup.environments.config.chunk_tokens = 3
    one = Task("t", TASK.questions, (Document("", "one two three four five"),))
    for task, count in ((one, 1), (replace(one, documents=(), context=one.documents[0].text), 2)):
        assert len(store_of(await method.run(task))) == count

"""The baselines that keep notes: what they write, retrieve and change, by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from atommem.actions import ProblemReason
from atommem.config import MemoryConfig
from atommem.episode import Episode
from atommem.errors import OutageError
from atommem.eval.methods import make_method
from atommem.eval.methods.a_mem import parse_notes
from atommem.eval.methods.generative_agents import rated_memories, stream_scores
from atommem.memory.contents import replay
from tests.eval.methods.toys import DOCUMENTS, TASK, make_setup, right

STATEMENTS = {"Moss": "moss grows", "Orla": "Orla is a potter", "Kiln": "kilns are hot", "Bran": "Bran lives in Port"}


def written(prompt: str) -> str:
    """The title of the document in a prompt."""
    return next(document.title for document in DOCUMENTS if document.text in prompt)


def log_of(episode: Episode) -> list[tuple[str, str | None]]:
    return [(str(operation.kind), operation.after) for step in episode.steps for operation in step.operations]


def test_stream_scores_by_hand() -> None:
    # Recency 1, 0.995, 0.990025 scales to 1, (0.995 - 0.990025) / 0.009975, 0; importance to 0, 1, 0.5; relevance to 0.
    scores = stream_scores([0, 1, 2], [1, 9, 5], [0.3, 0.3, 0.3])
    assert scores == pytest.approx([1.0, (0.995 - 0.990025) / 0.009975 + 1.0, 0.5])
    assert stream_scores([3], [5], [0.2]) == pytest.approx([0.0])
    assert np.argmax(stream_scores([0, 0], [5, 5], [0.1, 0.9])) == 1


def test_ratings_of_any_form() -> None:
    ratings = [7, 0, 99, "high", None, float("nan"), 10**400]
    memories = [{"memory": f"m{i}", "importance": rating} for i, rating in enumerate(ratings)]
    assert [rating for _, rating in rated_memories([*memories, {"memory": " "}, {"importance": 3}])] == [
        *(7.0, 1.0, 10.0, 5.0, 5.0, 1.0, 10.0)
    ]


async def test_generative_agents_weigh_importance_and_recency_with_relevance() -> None:
    def script(prompt: str) -> str:
        if "Part of the text" not in prompt:
            return right(prompt)
        title = written(prompt)
        return "Here: " + json.dumps([{"memory": STATEMENTS[title], "importance": 10 if title == "Moss" else 1}])

    setup, policy = make_setup(script)
    episode = await make_method("generative_agents", setup).run(TASK)
    assert episode.reward == 1.0
    assert len(policy.prompts) == 4 + 2
    assert log_of(episode) == [
        *(("create", STATEMENTS[title]) for title in ("Moss", "Orla", "Kiln", "Bran")),
        ("read", "Where does Bran live ?"),
        ("read", "Who is a potter ?"),
    ]
    shown = [[item.text for item in step.view.retrieved] for step in episode.steps[4:]]
    # Bran: newest and most relevant (1 + 0 + 1). Moss: important, but old and off the point (0 + 1 + 0).
    assert shown[0][0] == "Bran lives in Port"
    assert "- Bran lives in Port" in policy.prompts[4]
    assert [step.store_size for step in episode.steps] == [1, 2, 3, 4, 4, 4]
    assert len(replay(operation for step in episode.steps for operation in step.operations).entries) == 4


async def test_a_mem_links_notes_and_rewrites_their_neighbours() -> None:
    def script(prompt: str) -> str:
        if "Part of the text" in prompt:
            title = written(prompt)
            return json.dumps([{"content": STATEMENTS[title], "keywords": [title], "context": "town", "tags": ["x"]}])
        if "A new note" not in prompt:
            return right(prompt)
        if "A new note:\nBran" in prompt:
            number = next(line for line in prompt.splitlines() if "Orla is a potter" in line)[0]
            change = {"number": int(number), "context": "sister of Bran", "tags": ["family"]}
            return json.dumps({"links": [int(number), 77], "tags": ["places"], "neighbours": [change, {"number": "1"}]})
        return "no change"

    setup, policy = make_setup(script, memory=MemoryConfig(retrieve_k=1))
    episode = await make_method("a_mem", setup).run(TASK)
    assert episode.reward == 1.0
    assert len(policy.prompts) == 4 + 3 + 2  # the first note has no neighbour
    calls = setup.embedder.calls  # type: ignore[attr-defined]
    assert [len(texts) for _, *texts in calls] == [1, 1, 1, 1, 2, 1, 1]  # both notes that changed, in one call
    log = log_of(episode)
    # Every new note is a query for its neighbours; the first has none.
    assert [text.partition(";")[0] for kind, text in log if kind == "read" and text][:3] == [
        *(STATEMENTS[title] for title in ("Orla", "Kiln", "Bran"))
    ]
    assert log[-5:] == [
        ("read", "Bran lives in Port; context: town; keywords: Bran; tags: x"),
        ("update", "Bran lives in Port; context: town; keywords: Bran; tags: places"),
        ("update", "Orla is a potter; context: sister of Bran; keywords: Orla; tags: family"),
        ("read", "Where does Bran live ?"),
        ("read", "Who is a potter ?"),
    ]
    shown = episode.steps[-3].view
    assert shown.query == "Bran lives in Port; context: town; keywords: Bran; tags: x"
    assert {item.text[:4] for item in shown.retrieved} == {"moss", "Orla", "kiln"}
    assert all(f"{item.handle}. {item.text}" in policy.prompts[-3] for item in shown.retrieved)
    # One note is retrieved, and what it links to comes along.
    first = [item.text for item in episode.steps[-2].view.retrieved]
    assert [text[:4] for text in first] == ["Bran", "Orla"]
    assert "sister of Bran" in policy.prompts[-2]
    assert [problem.reason for step in episode.steps for problem in step.problems] == [ProblemReason.NOT_JSON] * 2
    contents = replay(operation for step in episode.steps for operation in step.operations)
    assert contents.entries[2].text.startswith("Orla is a potter; context: sister")


def test_notes_of_any_form() -> None:
    (note,) = parse_notes(
        [{"content": " a \ud800", "keywords": "k", "context": 3, "tags": ["t", 1, " "]}, {"content": None}, {}]
    )
    assert (note.content, note.keywords, note.context, note.tags) == ("a ?", [], "", ["t"])
    assert note.text() == "a ?; tags: t"


@pytest.mark.parametrize("name", ["generative_agents", "a_mem"])
@pytest.mark.parametrize(
    "reply",
    ["", "nothing", "[", "{}", '{"content": 1, "memory": 2}', "[1, [2]]", '{"a":' * 1100, '[{"memory": "x"}, {"mem'],
)
async def test_no_reply_raises(name: str, reply: str) -> None:
    setup, _ = make_setup(lambda prompt: right(prompt) if "Question:" in prompt else reply)
    episode = await make_method(name, setup).run(TASK)
    assert episode.reward == 1.0
    creates = [step for step in episode.steps for operation in step.operations if operation.kind == "create"]
    assert len(creates) == (4 if name == "generative_agents" and reply.endswith('{"mem') else 0)


@pytest.mark.parametrize("name", ["generative_agents", "a_mem"])
async def test_outages_while_reading_fail_the_episode(name: str) -> None:
    setup, _ = make_setup(lambda prompt: OutageError("gone"))
    assert (await make_method(name, setup).run(TASK)).error == "gone"
    setup, _ = make_setup(lambda prompt: '[{"memory": "x", "content": "x"}]')
    setup.embedder.fail = OutageError("no embeddings")  # type: ignore[attr-defined]
    assert (await make_method(name, setup).run(TASK)).error == "no embeddings"


@pytest.mark.parametrize("name", ["generative_agents", "a_mem"])
async def test_a_task_without_text_is_still_asked(name: str) -> None:
    setup, policy = make_setup()
    assert (await make_method(name, setup).run(replace(TASK, documents=()))).reward == 1.0
    assert "(nothing is remembered)" in policy.prompts[0]

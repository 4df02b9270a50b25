"""The dialect of whole completions: one memory that every completion overwrites (arXiv 2507.02259)."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from atommem.actions import ANSWERS_ACTION, MEMORY_ACTIONS, Action, Problem, ProblemReason, answers_in
from atommem.config import MemoryConfig
from atommem.dialects import get_dialect, register_dialect
from atommem.envs.task import Document, Question, Task
from atommem.episode_runner import EpisodeRunner
from atommem.errors import DialectError
from atommem.memory.entries import MemoryView
from atommem.observation import StopReason
from atommem.parsing import parse_whole
from atommem.policy.contract import Sampling
from tests.atommem.test_prompts import READING, builder
from tests.fakes import ListPolicy, WordEmbedder, WordTokenizer, answering, longdoc, make_episode_runner

TASK = Task(
    "t1",
    (Question("Where does Ann live?", ("Rome",)),),
    (Document("", "Ann lives in Rome."), Document("", "Bob sings.")),
)
PAD, ANSWER = "scratchpad", "answer"
SPEC = next(spec for spec in MEMORY_ACTIONS if spec.name == PAD)


def runner(texts: list[str | Exception], scratchpad_tokens: int = 1024) -> EpisodeRunner:
    tokenizer = WordTokenizer()
    return make_episode_runner(
        policy=ListPolicy(tokenizer, texts),
        embedder=WordEmbedder(),
        tokenizer=tokenizer,
        environments=longdoc(tokenizer, max_reads=0),
        memory=MemoryConfig(dialect="memagent", templates="memagent", scratchpad_tokens=scratchpad_tokens),
        sampling=Sampling(),
    )


async def test_two_chunks_and_an_answer() -> None:
    run = runner(["Ann: Rome", "Ann lives in Rome; Bob sings", r"She lives there. \boxed{Rome}"])
    episode = await run.run(TASK)
    assert (episode.reward, episode.answers, episode.stop_reason) == (1.0, ("Rome",), StopReason.ANSWERED)
    assert [step.view.scratchpad for step in episode.steps] == ["", "Ann: Rome", "Ann lives in Rome; Bob sings"]
    assert [step.store_size for step in episode.steps] == [0, 0, 0]
    assert [[o.kind for o in step.operations] for step in episode.steps] == [[PAD], [PAD], []]
    assert run.agent.embedder.calls == []  # type: ignore[attr-defined]
    prompts = run.agent.policy.prompts  # type: ignore[attr-defined]
    assert "Ann lives in Rome." in prompts[0]
    assert "Your memory so far:\n(nothing yet)" in prompts[0]
    assert "Ann: Rome" in prompts[1]
    assert "Bob sings." in prompts[1]
    # The old memory is gone, and the text with it.
    assert "Ann: Rome" not in prompts[2]
    assert "Bob sings." not in prompts[2]
    assert "Ann lives in Rome; Bob sings" in prompts[2]


async def test_tags_of_other_dialects_are_text_and_an_answer_without_a_box_is_none() -> None:
    text = "<create_memory>x</create_memory>"
    episode = await runner([text, text, "Rome"]).run(TASK)
    assert episode.steps[2].view.scratchpad == text
    assert (episode.reward, episode.answers, episode.stop_reason) == (0.0, (None,), StopReason.UNANSWERED)
    assert [problem.reason for problem in episode.steps[2].problems] == [ProblemReason.NO_BOX]


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("  all of it\n", "all of it"),
        ("<think>hm</think>\nthe memory", "the memory"),
        ("hm</think>the memory", "the memory"),
        ("one <THINK>a</think>two<think>b</think>", "one two"),
    ],
)
def test_the_whole_completion_outside_of_thinking(text: str, body: str) -> None:
    parsed = parse_whole(text, SPEC, text.startswith("hm</think>"))
    assert parsed.actions == (Action(PAD, body, start=0, end=len(text)),)
    assert parsed.problems == ()


def test_what_is_empty_or_never_stops_thinking_leaves_the_memory_as_it_was() -> None:
    assert parse_whole(" ", SPEC).problems == (Problem(ProblemReason.EMPTY, "scratchpad", 0, 1),)
    assert parse_whole("<think>hm</think>", SPEC).actions == ()
    cut = parse_whole("<think>hm, so", SPEC)
    assert (cut.actions, cut.problems) == ((), (Problem(ProblemReason.UNCLOSED_THINKING, "think", 0, 13),))
    kept = parse_whole("memory <think>hm", SPEC)
    assert [action.text for action in kept.actions] == ["memory"]
    assert [problem.reason for problem in kept.problems] == [ProblemReason.UNCLOSED_THINKING]


def test_several_answers_are_the_boxes_that_hold_no_other() -> None:
    text = r"\boxed{never} <think>\boxed{no}</think> 1. \boxed{\boxed{a} b} 2. \boxed{} 3. \boxed{{c} d} \boxed{cut"
    parsed = parse_whole(text, ANSWERS_ACTION)
    assert [action.text for action in parsed.actions] == ["never", "a", "", "{c} d"]
    assert answers_in(parsed.actions, 3) == ["a", None, "{c} d"]
    assert answers_in(parsed.actions, 5) == ["never", "a", None, "{c} d", None]
    assert answers_in((), 2) == [None, None]
    assert [p.reason for p in parse_whole("none", ANSWERS_ACTION).problems] == [ProblemReason.NO_BOX]
    grammar = get_dialect("paper").grammar((ANSWERS_ACTION,))
    several = grammar.parse(r"<final_answer>\boxed{a} \boxed{b}</final_answer><final_answer>\boxed{c}</final_answer>")
    assert answers_in(several.actions, 3) == ["a", "b", "c"]


def test_tags_and_whole_completions_do_not_mix() -> None:
    with pytest.raises(DialectError, match="and no tags"):
        register_dialect("test_both", {PAD: "note"}, whole={"reading": PAD, "answering": ANSWER})
    with pytest.raises(DialectError, match="templates 'full' explain tags, and dialect 'memagent' has none"):
        get_dialect("memagent", "full")
    with pytest.raises(DialectError, match="templates 'memagent' have no query, memory or entry"):
        get_dialect("paper", "memagent")


# Actions that are switched off leave the prompt, with all that they alone could fill ---------------


def test_without_a_store_the_prompt_has_no_trace_of_one() -> None:
    prompts = builder(disabled_actions=["create", "read", "update", "delete"])
    text = prompts.text(READING, MemoryView("SCRATCH"))
    assert "SCRATCH" in text
    assert "the scratchpad: a short note" in prompts.system
    for word in ("store", "query", "entries", "Memory 2"):
        assert word not in text
    closing = prompts.text(answering("Who?", 2), MemoryView("SCRATCH"))
    assert closing.endswith("Answer the question in the box.\n[assistant]")


def test_without_a_scratchpad_the_prompt_has_no_trace_of_one() -> None:
    text = builder(disabled_actions=["scratchpad"]).text(READING, MemoryView("", "QUERY"))
    assert "scratchpad" not in text
    assert "QUERY" in text
    assert "the store: a list of entries" in text


def test_places_have_to_be_explained_completely(tmp_path: Path) -> None:
    from tests.atommem.test_dialects import MINIMAL

    path = tmp_path / "templates.yaml"
    path.write_text(yaml.safe_dump({**MINIMAL, "places": {"store": "a list"}}))
    with pytest.raises(DialectError, match="places needs scratchpad and store"):
        get_dialect("paper", str(path))

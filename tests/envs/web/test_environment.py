"""The web environment through the one loop: whose turn it is, what is shown, what a call costs, how it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.description import TaskShape
from atommem.environment import EnvironmentFactory, Turn, environment_config, make_environments
from atommem.envs.task import Document, Question, Task
from atommem.envs.task_files import save_tasks
from atommem.envs.web.sources import make_sources
from atommem.envs.web.tools import Link, Tool, ToolResult, ToolSource, text_tool
from atommem.episode import Episode
from atommem.episode_runner import EpisodeRunner
from atommem.errors import OutageError
from atommem.memory.log import Source
from atommem.observation import StopReason
from atommem.policy.contract import Sampling
from tests.envs.longdoc.test_longdoc import ByteTokenizer
from tests.fakes import ListPolicy, WordEmbedder, WordTokenizer, make_episode_runner

FLOOD = "tests.envs.web.test_environment:Flood"
PAGES = (
    Document("Ann", "Ann lives in Oakrest . She wrote to Bob Vin ."),
    Document("Bob Vin", "Bob Vin lives in Fenford ."),
    Document("Cold Mere", "one two three four five six seven eight nine ten ."),
)
ANSWER = "<final_answer>\\boxed{Oakrest}</final_answer>"


def make_task(*questions: str, **metadata: Any) -> Task:
    texts = questions or ("Where does Ann live?",)
    return Task(
        "t", tuple(Question(text, ("Oakrest",)) for text in texts), PAGES, metadata=metadata
    )


def call(name: str, /, **arguments: str) -> str:
    inside = ", ".join(f'"{key}": "{value}"' for key, value in arguments.items())
    return f'<tool_call>{{"name": "{name}", "arguments": {{{inside}}}}}</tool_call>'


def web(**settings: Any) -> EnvironmentFactory:
    return make_environments(environment_config("web", **settings), WordTokenizer())


def make_runner(completions: Sequence[str] = (), **settings: Any) -> EpisodeRunner:
    tokenizer = WordTokenizer()
    return make_episode_runner(
        policy=ListPolicy(tokenizer, list(completions)),
        tokenizer=tokenizer,
        embedder=WordEmbedder(),
        environments=make_environments(environment_config("web", **settings), tokenizer),
        memory=MemoryConfig(),
        sampling=Sampling(),
    )


def play(completions: Sequence[str], task: Task | None = None, **settings: Any) -> Episode:
    """One episode, after which its tools are closed."""
    runner = make_runner(completions, **settings)

    async def run() -> Episode:
        try:
            return await runner.run(task or make_task())
        finally:
            await runner.environments.close()

    return asyncio.run(run())


def use(source: ToolSource, *calls: tuple[str, Mapping[str, Any]]) -> list[ToolResult]:
    """What calls of a source's tools give, one after another; then it is closed."""
    tools = {tool.name: tool for tool in source.tools}

    async def run() -> list[ToolResult]:
        try:
            return [await tools[name].run(arguments, None) for name, arguments in calls]
        finally:
            await source.close()

    return asyncio.run(run())


def texts(episode: Episode) -> list[list[Any]]:
    return [step.observation.values("text") for step in episode.steps]


def test_a_call_shows_its_result_at_the_next_step_and_nowhere_else() -> None:
    written = "<create_memory>Ann: Oakrest</create_memory>"
    episode = play([call("visit", page="Ann"), written + call("search", query="Vin"), ANSWER])
    assert (episode.stop_reason, episode.reward) == (StopReason.ANSWERED, 1.0)
    (operation,) = episode.steps[1].operations
    assert operation.source is not None
    assert operation.source.piece == "Ann", "memory applies before the call and knows the page"
    assert [step.observation.phase for step in episode.steps] == ["acting"] * 3
    first, second, third = texts(episode)
    assert first == []
    assert second == [PAGES[0].text]
    assert [text[:22] for text in third] == ["Bob Vin: Bob Vin lives"]
    assert [step.observation.values("left") for step in episode.steps] == [[40], [39], [38]]
    assert [step.observation.origin for step in episode.steps] == [
        None,
        "Ann",
        "search Vin | Bob Vin | Ann",
    ]


@pytest.mark.parametrize(
    ("task", "pages", "shown"),
    [
        (
            make_task(),
            ["ann", "1", "1"],
            [PAGES[0].text, PAGES[1].text, "There is no page: 1"],
        ),  # it has no links
        (
            make_task(),
            ["Ann", "9" * 5000],
            [PAGES[0].text, "There is no page: " + "9" * 982 + "..."],
        ),
        (
            make_task(start="Ann", links={"Ann": ["Cold Mere", "Nobody"]}),
            ["2"],
            ["There is no page: Nobody"],
        ),
    ],
)
def test_a_number_follows_a_link_that_is_shown(
    task: Task, pages: list[str], shown: list[str]
) -> None:
    episode = play([*(call("visit", page=page) for page in pages), ANSWER], task)
    assert [text for (text,) in texts(episode)[1:]] == shown


class Flood(ToolSource):
    """A page whose title and links are larger than any prompt, and of which each character is several bytes."""

    @property
    def tools(self) -> list[Tool]:
        """One."""

        async def run(page: str, task: Any) -> ToolResult:
            links = tuple(Link("\U00012000" * 100_000, f"p{number}") for number in range(1000))
            return ToolResult(
                "\U00012000" * 30, title="\ud800" + "t" * 100_000, links=links, origin="a\ud800"
            )

        return [text_tool("visit", "Shows a page.", "page", "Which.", run)]


def test_titles_links_and_calls_take_a_bounded_part_of_a_prompt() -> None:
    runner = make_runner([call("visit", page="x" * 50_000), ANSWER], tools=[FLOOD])
    episode = asyncio.run(runner.run(make_task()))
    step = episode.steps[1]
    assert [len(title) for title in step.observation.values("title")] == [200]
    assert sum(len(name.encode()) for name in step.observation.values("name")) <= 8000
    assert len(step.observation.values("name")) == 10
    assert len(step.observation.values("call")[0]) == 200
    assert (step.observation.values("title")[0][:2], step.observation.origin) == (
        "\ufffdt",
        "a\ufffd",
    )
    environment = make_environments(
        environment_config("web", tools=[FLOOD], chunk_tokens=40), ByteTokenizer()
    )()

    async def run() -> list[str]:
        await environment.reset(make_task())
        shown = await environment.step(Turn("", (Action("visit", arguments={"page": "a"}),), ()))
        assert shown.observation is not None
        return shown.observation.values("text")

    assert asyncio.run(run())[0] == "\U00012000" * 10, (
        "characters of several tokens are cut into parts too"
    )


def test_only_the_first_call_of_a_turn_is_carried_out_and_the_next_step_says_so() -> None:
    episode = play([call("visit", page="Ann") + call("visit", page="Bob Vin"), ANSWER])
    assert texts(episode)[1] == [PAGES[0].text]
    assert [piece.name for piece in episode.steps[1].observation.stream] == [
        "page",
        "links",
        "ignored",
    ]
    assert episode.question_metrics[0].keys() >= {"em"}
    assert web().diagnose(make_task(), episode) == [{"calls": 2.0, "calls_refused": 1.0}]
    evidence = {"evidence": [["7", "Ann"], ["8", "Cold Mere"]]}
    task = Task(
        "t", (Question("Where?", ("Oakrest",), metadata=evidence), Question("Who?", ("x",))), PAGES
    )
    counts = {"calls": 2.0, "calls_refused": 1.0}
    assert web().diagnose(task, episode) == [{**counts, "evidence_shown": 0.5}, counts]


def test_a_long_page_goes_on_by_itself_until_another_call_is_made() -> None:
    visit, note = call("visit", page="Cold Mere"), "<create_memory>Mere: cold</create_memory>"
    read = play([visit, "", note, "", call("visit", page="Ann"), ANSWER], chunk_tokens=4)
    shown = [text for (text,) in texts(read)[1:4]]
    assert " ".join(" ".join(shown).split()) == PAGES[2].text
    assert [step.observation.values("part") for step in read.steps[1:4]] == [[1], [2], [3]]
    assert read.steps[2].observation.origin == "Cold Mere, part 2/3"
    spans = [slice(step.observation.start, step.observation.end) for step in read.steps[1:4]]
    assert [PAGES[2].text[span] for span in spans] == shown
    (operation,) = read.steps[2].operations
    assert operation.source == Source(2, "Cold Mere, part 2/3", spans[1].start, spans[1].stop)
    left = [step.observation.values("left") for step in read.steps]
    assert left[1:6] == [[39], [39], [39], [38], [37]], (
        "reading on costs nothing, a turn without anything does"
    )
    gone = play([visit, call("visit", page="Bob Vin"), ANSWER], chunk_tokens=4)
    assert gone.steps[2].observation.values("part") == [1]


def test_when_the_calls_are_used_up_the_last_result_is_read_to_its_end_and_the_next_step_must_answer() -> (
    None
):
    visit = call("visit", page="Cold Mere")
    episode = play([visit, visit, "", ANSWER], max_calls=1, chunk_tokens=4)
    assert [step.observation.phase for step in episode.steps] == [
        "acting",
        "acting",
        "acting",
        "answering",
    ]
    assert episode.steps[2].observation.values("part") == [2], "the second call was not carried out"
    assert episode.steps[2].observation.stream[-1].name == "ignored"
    assert episode.steps[3].observation.values("part") == [3]
    assert episode.reward == 1.0
    assert (
        play([visit, "", "", "nothing"], max_calls=1, chunk_tokens=4).stop_reason
        is StopReason.UNANSWERED
    )


def weather(place: str) -> str:
    """Tells the weather.

    Args:
        place: Where; "far" lets all wait for it.
    """
    if place != "far":
        return f"rain in {place}"
    time.sleep(0.3)
    return "calm" * 200_000


async def failing(place: str) -> str:
    """Fails.

    Args:
        place: Where; "out" for an outage.
    """
    raise OutageError("the station is gone") if place == "out" else KeyError(place)


FUNCTIONS = [f"{__name__}:{function}" for function in ("weather", "failing")]


def test_a_typed_function_is_a_tool_and_one_that_fails_says_so() -> None:
    calls = [
        call("weather", place="Ann"),
        call("weather", place="2", when="now"),
        call("failing", place="x"),
    ]
    episode = play([*calls, ANSWER], tools=["task", *FUNCTIONS])
    _, told, wrong, failed = texts(episode)
    assert (told, failed) == (["rain in Ann"], ["KeyError: 'x'"])
    assert "when" in wrong[0]
    assert play([call("failing", place="out")], tools=FUNCTIONS).stop_reason is StopReason.FAILED
    system = make_runner(tools=FUNCTIONS).agent.prompts.system
    assert "Tells the weather." in system
    assert '"search"' not in system


def test_a_function_that_waits_holds_up_nobody_and_what_it_gives_is_cut() -> None:
    waited = play([call("weather", place="far")], tools=FUNCTIONS, tool_seconds=0.1)
    assert "weather is silent for 0.1 seconds" in str(waited.error)
    (result,) = use(
        make_sources(FUNCTIONS[:1], environment_config("web"))[0], ("weather", {"place": "far"})
    )
    assert len(result.text) == 500_000

    async def run() -> int:
        runner, ticks = make_runner([call("weather", place="far"), ANSWER], tools=FUNCTIONS), 0
        playing = asyncio.create_task(runner.run(make_task()))
        while not playing.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert playing.result().steps[1].observation.values("text")[0].startswith("calm")
        return ticks

    assert asyncio.run(run()) > 10


def test_several_questions_are_searched_for_together_and_asked_one_by_one() -> None:
    task = make_task("Where does Ann live?", "Where does Bob live?")
    episode = play(
        [call("visit", page="Ann"), ANSWER, ANSWER, "<final_answer>\\boxed{x}</final_answer>"], task
    )
    assert [step.observation.question for step in episode.steps] == [None, None, 0, 1]
    assert episode.answers == ("Oakrest", "x")
    assert episode.reward == 0.5
    assert episode.steps[2].observation.values("text") == [], "nothing but memory answers"
    waited = play([ANSWER, "", ANSWER, ANSWER], task, max_reads=1)
    assert [step.observation.question for step in waited.steps] == [None, 0, 0, 1]


def test_the_compact_form_of_a_call_and_a_search_that_finds_nothing() -> None:
    task = make_task(start="Ann")
    completions = [
        f"<tool_call> {said} </tool_call>"
        for said in ("visit 1", "search Vin Fenford", "fly 3", "visit")
    ]
    episode = play([*completions, ANSWER], task, calls="compact")
    assert texts(episode)[1] == [PAGES[1].text]
    assert texts(episode)[2][0].startswith("Bob Vin: ")
    assert all("Write a tool" in shown for (shown,) in texts(episode)[3:5])
    assert texts(play([call("search", query="zebra"), ANSWER]))[1] == [
        "No page was found for: zebra"
    ]


def test_the_most_that_an_episode_may_be_as_a_dry_run_is_told(tmp_path: Path) -> None:
    supposed = TaskShape("supposed", 1000, 200, 0, 0, 5.5, 0, 3)
    environments = web(max_calls=7, chunk_tokens=50)
    shape = environments.shape(None, supposed)
    assert (shape.stream_steps, shape.stream_tokens, shape.questions, shape.reads) == (
        7,
        50,
        1.0,
        0,
    )
    assert not shape.same_stream
    path = tmp_path / "tasks.jsonl"
    questions = tuple(Question(f"q{number}", ("a",)) for number in range(3))
    save_tasks([Task("a", questions[:1]), Task("b", questions)], path)
    measured = environments.shape(str(path), supposed)
    assert (measured.tasks, measured.questions, measured.stream_steps) == (2, 2.0, 7)
    assert str(path) in measured.source

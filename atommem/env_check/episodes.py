"""Checks of how an environment behaves: episodes of scripted policies, side by side, cut short, given up."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from atommem.description import QuestionDescription, TaskDescription
from atommem.env_check.contents import check_observation, check_score
from atommem.env_check.findings import told
from atommem.env_check.player import AbandonedError, Played, Player
from atommem.env_check.probes import PROBES, Writer
from atommem.environment import EnvironmentFactory, Score
from atommem.episode import Episode
from atommem.episode_runner import set_score
from atommem.observation import Observation, StopReason
from atommem.session import Session
from atommem.trace import read_trace, write_trace

GIVEN_UP_SECONDS = 2.0
_MANY = 5
"""Steps after which an episode that is played again, or given up, is not looked at further."""
END = object()


async def check_episodes(player: Player, tasks: Sequence[tuple[Any, TaskDescription]]) -> None:
    """All checks, on these tasks."""
    player.findings.begin("reset", "observations", "step", "end", "score", "event loop")
    for task, description in tasks:
        plays = {
            name: await player.play(task, description, probe) for name, probe in PROBES.items()
        }
        _check_plays(player, task, description, plays)
    first = tasks[0]
    for steps in (0, 1):
        await player.play(*first, PROBES["prose"], steps)
    await _check_feedback(player, *first)
    await _check_apart(player, first, tasks[-1])
    await _check_given_up(player, *first)
    await _check_texts(player)


def _check_plays(
    player: Player, task: Any, description: TaskDescription, plays: dict[str, Played]
) -> None:
    """The first observations of several plays, what silence earns, diagnoses, traces."""
    starts = [played.observations[0] for played in plays.values() if played.observations]
    same = all(start == starts[0] for start in starts)
    remedy = (
        "Draw what is random from the task: the episodes of a group are compared with each other."
    )
    player.findings.expect(same, "reset", f"{description.id} begins in different ways", remedy)
    silent = plays["silent"].score
    if isinstance(silent, Score) and silent.reward:
        remedy = "Training would have that for nothing: score what was done."
        player.findings.warn(
            "score", f"who writes nothing earns {silent.reward:g} on {description.id}", remedy
        )
    played = plays["everything"]
    if not isinstance(played.score, Score):
        return
    episode = Episode(
        description.id, 0, played.steps, stop_reason=played.reason or StopReason.STEP_LIMIT
    )
    set_score(episode, played.score)
    _check_diagnosis(player, task, description, episode)
    _check_trace(player, description, episode)


def _check_diagnosis(
    player: Player, task: Any, description: TaskDescription, episode: Episode
) -> None:
    try:
        count = len(player.declared.factory.diagnose(task, episode))
    except Exception as error:
        player.findings.fail(
            "score", f"diagnose: {told(error)}", "Diagnose what was not done as well."
        )
        return
    questions = len(description.questions)
    detail = f"diagnose() gave {count} values, and describe() {questions} questions"
    player.findings.expect(
        count in (0, questions), "score", detail, "Give one for every question, or none."
    )


def _check_trace(player: Player, description: TaskDescription, episode: Episode) -> None:
    player.findings.begin("trace")
    remedy = "Observations hold texts, numbers and pieces alone."
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = write_trace(Path(folder) / "trace.jsonl", episode, description.to_json())
            read = read_trace(path).episode.steps
        except Exception as error:
            player.findings.fail("trace", told(error), remedy)
            return
    for mine, theirs in zip(episode.steps, read, strict=True):
        same = mine.observation == theirs.observation
        player.findings.expect(
            same, "trace", f"step {mine.index + 1} is read as another observation", remedy
        )


async def _check_feedback(player: Player, task: Any, description: TaskDescription) -> None:
    if not any(spec.is_tool for spec in player.writer.actions):
        return
    player.findings.begin("feedback")
    call = player.writer.element(
        player.writer.dialect.call_tag, json.dumps({"name": "no such tool", "arguments": {}})
    )

    def refused(writer: Writer, observation: Observation, rng: random.Random) -> str:
        return call

    after = [
        await player.play(task, description, probe, 1) for probe in (PROBES["silent"], refused)
    ]
    if all(len(played.observations) == 2 for played in after) and after[0].seen == after[1].seen:
        remedy = "Show what came of each of `turn.calls`: a problem's `detail` says what to write instead."
        player.findings.warn(
            "feedback", "after a call of an unknown tool nothing is said of it", remedy
        )


async def _check_apart(
    player: Player, first: tuple[Any, TaskDescription], second: tuple[Any, TaskDescription]
) -> None:
    """Episodes alone, again, and in turns with each other."""
    player.findings.begin("repeatable")
    for name in ("calls", "everything", "prose"):
        probe = PROBES[name]
        alone = [await player.play(*task, probe, _MANY) for task in (first, second)]
        again = [await player.play(*task, probe, _MANY) for task in (first, second)]
        if any(one.score is None for one in (*alone, *again)):
            continue
        if [played.seen for played in alone] != [played.seen for played in again]:
            remedy = "Traces of it cannot be replayed; draw what is random from the task, if that can be."
            player.findings.warn(
                "repeatable", f"`{name}` on {first[1].id} went another way the second time", remedy
            )
            continue
        player.findings.begin("apart")
        beside = [Played(), Played()]
        running = [
            player.turns(*task, probe, played, _MANY)
            for task, played in zip((first, second), beside, strict=True)
        ]
        while running:
            running = [turns for turns in running if await anext(turns, END) is not END]
        same = [played.seen for played in beside] == [played.seen for played in alone]
        remedy = "Keep what belongs to an episode in the environment, of which each has its own, not in the factory."
        player.findings.expect(
            same, "apart", f"`{name}` went another way beside an episode of {second[1].id}", remedy
        )


async def _check_texts(player: Player) -> None:
    """Where `atommem.Memory` can read texts with it: what it reads, and a question without a gold answer."""
    declared, findings = player.declared, player.findings
    if declared.kind.reading is EnvironmentFactory.reading:
        return
    findings.begin("texts")
    try:
        text, questions = "A text.\n\n" + "It has many words. " * 200, ("What has it?", "How many?")
        observations = [
            declared.factory.reading(given, questions) for given in (text, ["A text.", text])
        ]
        task = declared.factory.asking(questions[0])
    except Exception as error:
        findings.fail(
            "texts",
            told(error),
            "`reading` and `asking` belong together, and take any text and question.",
        )
        return
    for observation in (*observations[0], *observations[1]):
        check_observation(findings, declared, observation, len(questions), where="texts")
    asked = TaskDescription("asked", "", (QuestionDescription(questions[0]),))
    played = await player.play(task, asked, PROBES["silent"])
    detail = f"the episode of a question does not ask the question: {played.observations[:1]}"
    remedy = "The task of `asking` asks at its first step."
    asks = not played.observations or played.observations[0].question == 0
    findings.expect(asks, "texts", detail[:300], remedy)


async def _check_given_up(player: Player, task: Any, description: TaskDescription) -> None:
    """Cancel reset, then each of the first steps where it waits for something; and score what is left."""
    player.findings.begin("given up")
    for steps in range(_MANY):
        played, questions = Played(), len(description.questions)
        try:
            if not steps:
                await _given_up(player, "reset", player.declared.factory().reset, task)
                continue
            environment = await player.start(task, played, questions)
            session = Session(player.agent, description.id)
            while len(played.steps) < steps - 1 and played.reason is None:
                await player.step(environment, session, PROBES["calls"], played, questions)
            if played.reason is not None:
                return
            await _given_up(
                player,
                "step",
                environment.step,
                await player.turn(session, PROBES["calls"], played),
            )
            score = await player.call("score", environment.score)
            check_score(player.findings, score, description, "after a step that was given up")
        except AbandonedError:
            return


async def _given_up(player: Player, name: str, function: Callable[..., Any], argument: Any) -> None:
    work = asyncio.ensure_future(player.call(name, function, argument))
    for _ in range(3):
        await asyncio.sleep(0)
    if work.done():
        await work
        return
    work.cancel()
    done, _ = await asyncio.wait({work}, timeout=GIVEN_UP_SECONDS)
    detail = f"{name}() went on when it was cancelled"
    remedy = "Let asyncio.CancelledError through: catch Exception, never BaseException, and shield nothing."
    player.findings.expect(done and work.cancelled(), "given up", detail, remedy)

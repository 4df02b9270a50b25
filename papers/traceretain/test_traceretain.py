"""TraceRetain: games, agent and bank on a stand-in engine; two games on ALFWorld's own."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest

from atommem.errors import ConfigError, OutageError
from atommem.policy.contract import Sampling
from papers.asking import Asker
from papers.experience import Bank
from papers.experiment import Journal, Report
from papers.inputs import StoredVectors, load_published
from papers.test_papers import ChatServer, unit_vectors
from papers.traceretain.__main__ import Bench, compare, sign_test, solvable
from papers.traceretain.engine import (
    Engine,
    Player,
    Stream,
    find_engine,
    is_relevant,
    play,
    run_tasks,
)
from papers.traceretain.games import FAMILIES, Game, make_games
from papers.traceretain.react import ModelPlayer, Transcript, read_command

PAPER = load_published("traceretain")
GAMES = make_games(30, 1, PAPER)
_STATES = {"clean": "isClean", "heat": "isHot", "cool": "isCool"}


class Household:
    """A stand-in for ALFWorld's engine that reads the same problems.

    It understands the agent's commands and the goals of `games`.
    """

    def __init__(self) -> None:
        self.loads = 0

    def load(self, problem: str, plan: bool = False) -> dict[str, Any]:
        """Start; there is a plan of one command, which wins nothing."""
        self.loads += 1
        start, _, self.goal = problem.partition("(:goal")
        shown = engine_names(re.findall(r"(\S+_bar_\S+) - (?:receptacle|object)", start))
        lying = re.findall(r"\(inReceptacle (\S+) (\S+)\)", start)
        self.places = {shown[thing]: shown[place] for thing, place in lying}
        self.closed = {shown[name] for name in re.findall(r"\(openable (\S+)\)", start)}
        self.done: set[tuple[str, str]] = set()
        self.at = self.held = ""
        return {"text": "", "won": False, "plan": ["look"]}

    def step(self, command: str) -> dict[str, Any]:
        """One command; what is not possible changes nothing."""
        verb, names = command.partition(" ")[0], re.findall(r"[a-z]+ \d+", command) or [""]
        thing, place = names[0], names[-1]
        if verb == "go":
            self.at = place
        elif verb == "open" and place == self.at:
            self.closed.discard(place)
        elif verb == "take" and not self.held and self._open():
            if self.places.get(thing) == place == self.at:
                self.held, self.places[thing] = thing, ""
        elif verb == "move" and (thing, place) == (self.held, self.at) and self._open():
            self.held, self.places[thing] = "", place
        elif verb in _STATES and (thing, place) == (self.held, self.at):
            self.done.add((_STATES[verb], thing))
        elif verb == "use" and self.places.get(thing) == self.at:
            self.done.add(("isToggled", self.held))
        inside = [f"a {name}" for name, where in self.places.items() if where == self.at]
        text = (
            f"In it, you see {', '.join(inside) or 'nothing'}."
            if self._open()
            else f"The {self.at} is closed."
        )
        return {"text": text, "won": self._won()}

    def _open(self) -> bool:
        return self.at not in self.closed

    def _won(self) -> bool:
        kinds = re.findall(r"objectType \?o\d? (\w+)Type", self.goal)
        states = set(re.findall(r"\((is\w+) \?", self.goal))
        target = [kind.lower() for kind in re.findall(r"receptacleType \?r (\w+)Type", self.goal)]
        # What is looked at under the lamp is held: it lies nowhere.
        fit = [
            name
            for name, at in self.places.items()
            if [name.split()[0], *at.split()[:1]] == [kinds[0], *target]
        ]
        return sum(
            states <= {state for state, thing in self.done if thing == name} for name in fit
        ) >= len(kinds)


def engine_names(identifiers: list[str]) -> dict[str, str]:
    """Return the engine's names: the last in the alphabet is number 1 of its kind."""
    kinds: dict[str, list[str]] = {}
    for identifier in sorted(identifiers, reverse=True):
        kind, _, *basin = identifier.split("_bar_")
        kinds.setdefault(basin[0] if basin else kind, []).append(identifier)
    return {name: f"{kind} {i}" for kind, found in kinds.items() for i, name in enumerate(found, 1)}


def make_player(tmp_path: Path, engine: Any) -> Player:
    return Player(engine, Journal(tmp_path / "played.jsonl"), 50)


def task_vectors() -> StoredVectors:
    texts = sorted({game.task for game in GAMES})
    return StoredVectors(texts, unit_vectors(0, len(texts), 12))


PARTS = [
    *(f"Table {n}" for n in range(1, 5)),
    *("retention score", "the eleven features", "TraceRetain-Linear", "TraceRetain-CEM"),
    *("TraceRetain-RL-K50", "noisy-write stress", "FIFO, LRU, LFU, random", "Ebbinghaus-K50"),
    *("no memory, unbounded", "ReAct-style agent, fixed example", "trajectory summary (C)"),
    *("clean, T = 100, seeds 42 and 43", "clean, T = 200", "noisy, T = 100", "eval-seen transfer"),
    *("Precision@5 (B)", "Wilson intervals", "paired sign tests", "steps, similarity"),
    *("gpt-5-mini", "text-embedding-3-large", "top 5, 50 steps, K = 50", "ALFWorld"),
]
"""Every table, equation and setting of the paper, which has no figures."""


def test_games_are_of_six_families_and_follow_from_their_seed() -> None:
    assert {game.family for game in GAMES} == set(FAMILIES)
    assert make_games(30, 1, PAPER) == GAMES
    assert make_games(30, 2, PAPER) != GAMES
    for game in GAMES:
        assert len(set(game.receptacles)) == len(game.receptacles)
        # The goal does not hold at the start.
        thing, place = re.findall(r"\(inReceptacle (\S+) (\S+)\)", game.problem)[0]
        assert thing.split("_bar_")[0] == game.object
        assert game.receptacle not in place.split("_bar_")


def test_agent_wins_and_a_hint_shortens_the_way() -> None:
    alone = [play(Household(), game, (), 100) for game in GAMES]
    assert all(played.won for played in alone)
    pairs = zip(GAMES, alone, strict=True)
    hinted = [play(Household(), game, one.found, 100) for game, one in pairs]
    assert all(played.won for played in hinted)
    assert sum(one.steps for one in hinted) < 0.7 * sum(one.steps for one in alone)


def test_player_plays_an_episode_once(tmp_path: Path) -> None:
    engine = Household()
    first = make_player(tmp_path, engine).play(GAMES[0], ())
    again = make_player(tmp_path, engine)
    assert again.play(GAMES[0], ()) == first
    assert engine.loads == 1
    again.play(GAMES[0], (("object", "shelf"),))
    assert engine.loads == 2


async def test_model_plays_with_its_records_in_the_prompt(tmp_path: Path) -> None:
    game = next(game for game in GAMES if game.family == "heat")
    program = Transcript(Household())
    alone = play(program, game, (), 50)
    replies = ["", *program.commands]  # the program's, after a reply that is no command

    def reply(prompt: str) -> str:
        return f"Thought: so\nAction: {replies[len(script.prompts) - 1].upper()}."

    script = ChatServer(reply)
    journal = Journal(tmp_path / "played.jsonl")
    asker = Asker(script, Sampling(0.0))
    player = ModelPlayer(Household(), journal, 50, asker, "model", PAPER)
    bank = Bank(task_vectors(), capacity=8)
    stream = await run_tasks(player, [game], bank, retrieved=5)
    assert (stream.won, stream.steps) == ([True], [alone.steps + 1]), "the unread reply is a step"
    assert "\nAction: \n" in script.prompts[1]
    assert "put a hot" in script.prompts[0].partition("Your task")[2], "an example of the family"
    asked = len(script.prompts)
    again = await run_tasks(player, [game], Bank(task_vectors()), retrieved=5)
    assert (again.won, len(script.prompts)) == ([True], asked), "the journal's"
    (record,) = bank.records()
    work = f"done in {alone.steps + 1} steps: ; {'; '.join(program.commands)}"
    assert (record.details or {})["execution"] == work
    script.prompts.clear()
    await run_tasks(player, [game], bank, retrieved=5)
    assert f"- {game.task}: {work}" in script.prompts[0]


def test_read_command_takes_the_action_or_the_last_line() -> None:
    for reply, command in {
        "Thought: go\n**Action:** Go to shelf 1.": "go to shelf 1",
        "> open drawer 2": "open drawer 2",
        " \n": "",
    }.items():
        assert read_command(reply) == command


async def test_failed_copies_evict_successes_from_fifo_only(tmp_path: Path) -> None:
    games = [GAMES[i % 6] for i in range(18)]
    found = {}
    for rule in ("fifo", "failures_first"):
        bank = Bank(task_vectors(), capacity=8, retention=rule)
        player = make_player(tmp_path, Household())
        stream = await run_tasks(player, games, bank, retrieved=5, failures=3)
        found[rule] = stream.precision[-6:]
        assert len(bank) == 8
    assert sum(found["fifo"]) == 0, "eight records hold two episodes; every task came six ago"
    assert sum(found["failures_first"]) > 0


def test_is_relevant_and_sign_test_by_hand() -> None:
    game = Game("g", "clean", "mug", "shelf", (), "")
    for family, thing, place, relevant in (
        ("clean", "mug", "desk", True),
        ("clean", "pan", "shelf", True),
        ("clean", "pan", "desk", False),
        ("cool", "mug", "shelf", False),
    ):
        assert is_relevant([family, thing, family, place], game) == relevant
    one, other = Stream(won=[True] * 9 + [False]), Stream(won=[False] * 8 + [True] * 2)
    assert sign_test(one, other) == "+8/-1, p 0.0391"
    assert sign_test(one, one) == "+0/-0, p 1"


@pytest.mark.slow
def test_every_table_is_made_and_short_streams_hold_nothing(tmp_path: Path) -> None:
    cem = {**PAPER["cem"], "population": 4, "elite": 2, "iterations": 1}
    paper = {**PAPER, "capacity": 6, "cem": cem}
    player = make_player(tmp_path, Household())
    report = Report("traceretain", "")
    solvable(report, player, GAMES[:3])
    with asyncio.Runner() as runner:
        arguments = paper, player, task_vectors(), GAMES[:18], 12, tmp_path / "cem.json", runner
        bench = Bench(*arguments)
        bench.tune(GAMES[18:24], player)
        compare(report, bench, [42])
        bench.select(["fifo"])
        fewer = Report("traceretain", "")
        compare(fewer, bench, [42, 43])
    assert [row[0] for row in fewer.tables[1].rows] == ["none", "fifo", "failures first"]
    assert all("of 24" in str(row[-1]) for row in fewer.tables[1].rows), "both streams"
    rules = {str(row[0]) for row in report.tables[1].rows}
    assert {"unbounded", "unbounded, newer first", "failures first", "traceretain cem"} <= rules
    assert len(report.tables) == 6
    assert not report.checks[0].holds, "the stand-in's plan wins nothing"


def test_missing_engine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALFWORLD_PYTHON", raising=False)
    for flag in (None, str(tmp_path / "python")):
        with pytest.raises(ConfigError, match=r"no such interpreter.*pip install alfworld"):
            find_engine(flag)
    with (
        Engine("/bin/true", tmp_path / "log") as engine,
        pytest.raises(OutageError, match="has ended"),
    ):
        engine.load("")


@pytest.mark.slow
def test_alfworld_plans_and_plays_the_games(tmp_path: Path) -> None:
    if not os.environ.get("ALFWORLD_PYTHON"):
        pytest.skip("needs ALFWORLD_PYTHON, an environment with alfworld and textworld[pddl]")
    with Engine(find_engine(None), tmp_path / "log") as engine:
        player = make_player(tmp_path, engine)
        for game in make_games(12, 5, PAPER)[1::5]:
            assert 0 < player.plan_length(game) < 15
            played = play(engine, game, (), 100)
            assert played.won
            stand_in = play(Household(), game, (), 100)
            assert played.steps == stand_in.steps, "the stand-in differs from the engine"

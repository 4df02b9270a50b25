"""A language model that plays ALFWorld's engine: ReAct (arXiv 2210.03629) in words of ours."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from papers.asking import Asker
from papers.experiment import Journal, progress
from papers.streams import Shown, executions
from papers.traceretain.engine import Engine, Played, Player, play
from papers.traceretain.games import FAMILIES, Game, make_games

EXAMPLE_SEED = 70
"""Games of this seed are the examples, one a family; no stream has them."""
SYSTEM = """You do a task in a household by commands of one line. A reply is a thought, if you \
need one, and a command:
Thought: what you know, and what you do next
Action: the command

Commands: go to PLACE, open PLACE, close PLACE, take THING from PLACE, move THING to PLACE, clean \
THING with PLACE, heat THING with PLACE, cool THING with PLACE, use THING, look, inventory.
Things and places have numbers, as in "mug 1" and "shelf 2". You hold one thing at most. A \
sinkbasin cleans, a microwave heats, a fridge cools. What is impossible does nothing."""
_THOUGHTS = {
    "go to": "I look for what I need, or go where it belongs.",
    "open": "It is closed, so I open it.",
    "take": "This is what the task names.",
    "clean": "It must be clean.",
    "heat": "It must be hot.",
    "cool": "It must be cool.",
    "move": "This is where it belongs.",
    "use": "This light shows it.",
}


class Transcript(Engine):
    """An engine that writes down commands and what they show."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.commands: list[str] = []
        self.lines: list[str] = []

    def load(self, problem: str, plan: bool = False) -> Mapping[str, Any]:
        """Start a game."""
        return self._engine.load(problem, plan)

    def step(self, command: str) -> Mapping[str, Any]:
        """Take a step."""
        answer = self._engine.step(command)
        self.commands.append(command)
        self.lines += [f"Action: {command}", " ".join(str(answer["text"]).split())]
        return answer


class ModelPlayer(Player):
    """Plays by a policy's replies; an episode of the same policy and prompt is played once."""

    def __init__(
        self,
        engine: Engine,
        journal: Journal,
        limit: int,
        asker: Asker,
        identity: str,
        house: Mapping[str, Any],
    ) -> None:
        super().__init__(engine, journal, limit)
        self._asker, self._identity = asker, identity
        self._example = cache(lambda family: self._play_example(family, house))

    async def act(self, game: Game, shown: Shown) -> Played:
        """Play one episode of at most `limit` steps with the retrieved records in the prompt."""
        head = self._head(game, shown)
        parts = "\0".join([self._identity, str(self.limit), SYSTEM, head, game.problem])
        key = f"react {hashlib.sha256(parts.encode()).hexdigest()[:24]}"
        if key not in self._journal:
            transcript = Transcript(self._engine)
            won = bool(transcript.load(game.problem)["won"])
            while not won and len(transcript.commands) < self.limit:
                prompt = "\n".join([head, *transcript.lines])
                name = f"{game.name}/{len(transcript.commands)}"
                command = read_command(await self._asker.ask(SYSTEM, prompt, name))
                won = bool(transcript.step(command)["won"])
            self._journal.add(key, [won, len(transcript.commands), transcript.commands])
            self.played += 1
            progress(f"traceretain: {game.task}: {'won' if won else 'lost'}")
        won, steps, commands = self._journal[key]
        return Played(won, steps, commands=tuple(commands))

    def _head(self, game: Game, shown: Shown) -> str:
        records = [
            f"- {record.text}: {work}"
            for (record, _), work in zip(shown, executions(shown), strict=True)
        ]
        earlier = ["Earlier tasks, the most similar first:", *records, ""] if records else []
        places = ", ".join(sorted(game.receptacles))
        task = [f"Your task: {game.task}", f"You are in the middle of a room. You see: {places}."]
        return "\n".join(["An example:", self._example(game.family), "", *earlier, *task])

    def _play_example(self, family: str, house: Mapping[str, Any]) -> str:
        """Return the program's episode as a model would have played it, with a short search."""
        game = make_games(len(FAMILIES), EXAMPLE_SEED, house)[FAMILIES.index(family)]
        transcript = Transcript(self._engine)
        play(transcript, game, play(self._engine, game, (), 100).found, 100)
        lines = [f"Your task: {game.task}"]
        for command, text in zip(transcript.commands, transcript.lines[1::2], strict=True):
            verb = next(verb for verb in _THOUGHTS if command.startswith(verb))
            lines += [f"Thought: {_THOUGHTS[verb]}", f"Action: {command}", text]
        return "\n".join(lines)


def read_command(reply: str) -> str:
    """Return the first action of a reply, or else its last line; empty if there is none."""
    found = re.search(r"^\W*action:[ *`]*(.+)$", reply, re.IGNORECASE | re.MULTILINE)
    lines = [line for line in reply.splitlines() if line.strip()]
    command = found[1] if found else lines[-1] if lines else ""
    return command.strip(" >*`.\"'").lower()[:200]

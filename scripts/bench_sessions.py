"""Bar: 200 episodes, each put down and taken up in another process after every turn, equal the uninterrupted ones.

    python scripts/bench_sessions.py [--quick] [--episodes N] [--policy DIR] [--embedder_model DIR]

The world is the limited demo's (a store of three entries, all actions in use). The policy is that demo's after a short
cold start, a transformers model that samples at temperature 1 from its own seeds, one prompt at a time; it is trained
where --policy is not there yet (two minutes). ``--quick`` takes the scripted expert that forgets things, and few
episodes. There are two processes; whatever goes from one to the other goes through files:

1. Each episode runs undisturbed, in one of them.
2. Turn by turn the two take it from each other: `Session.take_up` on what `SessionFile` holds, the environment driven
   again through the turns so far, one turn, `Session.put_down`. Before the turn, of every fourth episode, a fork with
   another key goes the same turn, and the parent must be what it was.
3. Compared with 1, exactly: prompts, completions and their log-probabilities, views, actions, operations, answers,
   scores. "As it was at step n" must be the view that the trace has of step n, for every n.
4. Forks at a step of the finished episode, by both ways: its memory at that step, taken up for one turn; and its steps
   until then, from which `EpisodeRunner.run` goes on to the end.

With --embedder_model (a sentence-transformers folder, such as all-MiniLM-L6-v2's) all of it is also done under that
embedder, for fewer episodes, with the vectors kept beside the sessions: a text that is embedded in other company comes
out different in its last bits. Last it is timed what putting down costs in one session of 1,000 turns.

The last line is one JSON object, and the exit code is 0 if and only if its "holds" is true: no difference anywhere.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from agents import make_agent
from quick import add_quick, command_line, last_line
from tiny_policy import cold_start

from atommem.config import MemoryConfig, fields_of, load_config
from atommem.demo.recipe import GRPO_CONFIG, LIMITED, CopyingConfig, Recipe
from atommem.demo.tiny_policy import make_tokenizer
from atommem.dialects import get_dialect
from atommem.environment import Turn
from atommem.envs.synthetic.expert import Expert
from atommem.envs.synthetic.expert_policy import ExpertPolicy
from atommem.envs.synthetic.prose import get_prose
from atommem.envs.synthetic.world import generate
from atommem.envs.task import Task
from atommem.episode import Episode, Step
from atommem.episode_runner import EpisodeRunner, set_score
from atommem.observation import StopReason
from atommem.policy.scripted import ScriptedPolicy
from atommem.session import Agent, Session
from atommem.session_state import SessionFile, SessionState, vectors_path
from atommem.trace import read_trace, write_trace

RECIPE: Recipe = replace(
    LIMITED,
    copying=CopyingConfig(steps=300),
    cold_start=replace(LIMITED.cold_start, episodes=800, steps=300),
)
EPISODES, QUICK_EPISODES, MODEL_EPISODES = 200, 4, 40
FORKED = 4
SEED = 11
LONG_TURNS = 1000


@dataclass(frozen=True)
class Setup:
    """What a process needs to build its agent; `policy` None is the scripted expert."""

    folder: Path
    policy: Path | None
    embedder_model: str | None
    episodes: int

    @property
    def vectors(self) -> bool:
        """Whether vectors are kept beside the sessions."""
        return self.embedder_model is not None

    def file(self, index: int, kind: str) -> Path:
        """Of an episode: its ``session`` where it was put down, its ``steps`` by then, or the ``whole`` one."""
        return self.folder / f"{index}.{kind}"


# What the processes do. Each keeps its agent, and nothing of an episode, from one call to the next.


@cache
def agent_of(setup: Setup) -> Agent:
    """This process's agent."""
    if setup.policy is None:
        saved = yaml.safe_load(GRPO_CONFIG.read_text()) | {"capacity": RECIPE.world.capacity}
        memory = MemoryConfig(**fields_of(MemoryConfig, saved))
        tokenizer = make_tokenizer(RECIPE.world, memory)
        dialect = get_dialect(memory.dialect, memory.templates)
        expert = Expert(get_prose(RECIPE.world.prose), dialect, RECIPE.cold_start.faults)
        policy: Any = ExpertPolicy(expert, tokenizer, tokenizer.eos_token_id)
    else:
        from atommem.policy.local import LocalPolicy

        saved = load_config(setup.policy)
        policy = LocalPolicy.from_pretrained(setup.policy, device="cpu", max_batch_tokens=1)
        tokenizer = policy.tokenizer
    embedder = None
    if setup.embedder_model is not None:
        from atommem.embedding.sentence_transformer import SentenceTransformerEmbedder

        embedder = SentenceTransformerEmbedder(
            setup.embedder_model
        )  # as it is: a batcher would remember vectors
    settings = {**saved, "temperature": 1.0, "max_tokens": 48, "seed": SEED}
    return make_agent(policy, embedder, tokenizer, stored=settings, keep_prompts=True)


@cache
def tasks_of(count: int) -> Sequence[Task]:
    """The tasks; both processes make the same."""
    return list(generate(RECIPE.world, count, SEED))


async def run_whole(setup: Setup, index: int) -> None:
    """Part 1: an episode from its beginning to its end."""
    episode = await EpisodeRunner(agent_of(setup)).run(tasks_of(setup.episodes)[index])
    write_trace(setup.file(index, "whole"), episode, {}, tokens=True)


async def run_turn(setup: Setup, index: int) -> dict[str, Any]:
    """Part 2: take an episode up, have one turn, put it down."""
    agent, task = agent_of(setup), tasks_of(setup.episodes)[index]
    file = SessionFile(setup.file(index, "session"))
    episode = Episode(task.id, 0)
    found: dict[str, Any] = {"done": False, "touched": 0, "forks": 0, "pid": os.getpid()}
    started = time.perf_counter()
    if file.path.exists():
        session = await Session.take_up(agent, file.read())
        found["take_up"] = time.perf_counter() - started
        episode.steps = read_trace(setup.file(index, "steps")).episode.steps
    else:
        session = Session(agent, f"{task.id}/0")
    environment = agent.environments()
    observation = await environment.reset(task)
    for step in episode.steps:
        result = await environment.step(
            Turn(step.text, step.actions, step.problems, step.operations)
        )
        assert result.observation is not None, "the episode has gone on after this step"
        observation = result.observation
    if index % FORKED == 0:
        before = json.dumps(session.put_down().to_json())
        fork = session.fork("another key")
        await fork.turn(observation)
        found["forks"] = 1
        found["touched"] = int(json.dumps(session.put_down().to_json()) != before)
    step = await session.turn(observation, affinity=task.id)
    started = time.perf_counter()
    file.write(session.put_down(vectors=setup.vectors))
    found["put_down"] = time.perf_counter() - started
    episode.steps.append(step)
    result = await environment.step(Turn(step.text, step.actions, step.problems, step.operations))
    if result.observation is None:
        found["done"] = True
        episode.stop_reason = result.reason or StopReason.ANSWERED
        set_score(episode, await environment.score())
    write_trace(setup.file(index, "steps"), episode, {}, tokens=True)
    return found


async def compare(setup: Setup, index: int) -> dict[str, Any]:
    """Parts 3 and 4: everything that differs, counted."""
    agent, task = agent_of(setup), tasks_of(setup.episodes)[index]
    whole = read_trace(setup.file(index, "whole")).episode
    put_down = read_trace(setup.file(index, "steps")).episode
    path = setup.file(index, "session")
    state = SessionState.load(path)
    session = await Session.take_up(agent, state)
    differences = Counter(differing(whole, put_down))
    count = len(whole.steps)
    views = [step.view for step in whole.steps] + [session.memory.view()]
    for number in range(count + 1):
        was = session.memory.at(number).contents.view(agent.memory.capacity)
        differences["as it was"] += was != views[number]
    log = tuple(operation for step in whole.steps for operation in step.operations)
    differences["log"] += session.memory.log != log
    number = random.Random(f"{SEED}/{index}").randrange(count)
    then = SessionState(state.key, number, 0, session.memory.at(number), vectors=state.vectors)
    step = await (await Session.take_up(agent, then)).turn(
        whole.steps[number].observation, affinity=task.id
    )
    differences["fork of the memory"] += replace(step, seconds=0.0) != replace(
        whole.steps[number], seconds=0.0
    )
    again = await EpisodeRunner(agent).run(task, past=whole.steps[:number])
    forked = list(differing(whole, again))
    if setup.vectors:  # it goes on from steps alone, so its vectors are made again: scores may differ in the last digit
        forked = [
            name
            for name in forked
            if name.startswith("step.") and name[5:] in ("text", "token_ids")
        ]
    differences["fork of the episode"] += len(forked)
    compact = session.put_down(history=False)
    vectors = vectors_path(path)
    return {
        "differences": +differences,
        "steps": count,
        "kinds": Counter(operation.kind for operation in log),
        "outcomes": Counter(str(operation.outcome) for operation in log),
        "tokens": sum(len(step.token_ids) for step in whole.steps),
        "em": whole.metrics["em"],
        "bytes": path.stat().st_size,
        "bytes_compact": len(json.dumps(compact.to_json())),
        "bytes_vectors": vectors.stat().st_size if vectors.exists() else 0,
    }


def differing(one: Episode, other: Episode) -> Iterable[str]:
    """The names of what differs between two episodes, their times apart."""
    if len(one.steps) != len(other.steps):
        yield "steps"
    for step, twin in zip(one.steps, other.steps, strict=False):
        for name in Step.__dataclass_fields__:
            if name != "seconds" and getattr(step, name) != getattr(twin, name):
                yield f"step.{name}"
    for name in (
        "answers",
        "reward",
        "metrics",
        "question_metrics",
        "question_notes",
        "stop_reason",
        "error",
    ):
        if getattr(one, name) != getattr(other, name):
            yield name


def made(work: Callable[[Setup, int], Coroutine[Any, Any, Any]], setup: Setup, index: int) -> Any:
    """What comes of a part for one episode, in this process."""
    return asyncio.run(work(setup, index))


class Processes(ExitStack):
    """Two processes; what is done to an episode goes to the one that did not do the last thing to it."""

    def __init__(self) -> None:
        super().__init__()
        context = get_context("spawn")
        self._pools = [
            self.enter_context(ProcessPoolExecutor(1, mp_context=context)) for _ in range(2)
        ]

    def all(
        self, work: Callable[..., Any], setup: Setup, indices: Sequence[int], turn: int
    ) -> list[Any]:
        """The results for all `indices`, in order."""
        futures = [
            self._pools[(index + turn) % 2].submit(made, work, setup, index) for index in indices
        ]
        return [future.result() for future in futures]


def measure(processes: Processes, setup: Setup) -> dict[str, Any]:
    """All four parts under one embedder."""
    started = time.perf_counter()
    indices = list(range(setup.episodes))
    processes.all(run_whole, setup, indices, 0)
    active, turn, last = indices, 0, dict.fromkeys(indices, 0)
    turns: list[dict[str, Any]] = []
    while active:
        found = processes.all(run_turn, setup, active, turn)
        for index, result in zip(active, found, strict=True):
            assert last[index] != result["pid"], "an episode stayed in its process"
            last[index] = result["pid"]
        turns += found
        active = [index for index, result in zip(active, found, strict=True) if not result["done"]]
        turn += 1
    compared = processes.all(compare, setup, indices, turn)
    differences: Counter[str] = sum((result["differences"] for result in compared), Counter())
    differences["fork touched its parent"] += sum(result["touched"] for result in turns)

    def total(name: str) -> dict[str, int]:
        return dict(sum((result[name] for result in compared), Counter()))

    def milliseconds(name: str) -> dict[str, float]:
        seconds = [result[name] for result in turns if name in result]
        return {f"p{q}": round(float(np.percentile(seconds, q)) * 1e3, 2) for q in (50, 99)}

    def kilobytes(name: str) -> dict[str, float]:
        return {
            "mean": round(float(np.mean([result[name] for result in compared])) / 1e3, 2),
            "max": round(max(result[name] for result in compared) / 1e3, 2),
        }

    return {
        "episodes": setup.episodes,
        "turns": len(turns),
        "tokens": sum(result["tokens"] for result in compared),
        "operations": total("kinds"),
        "outcomes": total("outcomes"),
        "em": round(float(np.mean([result["em"] for result in compared])), 3),
        "forks": sum(result["forks"] for result in turns) + 2 * setup.episodes,
        "differences": dict(+differences),
        "take_up_ms": milliseconds("take_up"),
        "put_down_ms": milliseconds("put_down"),
        "file_kb": kilobytes("bytes"),
        "without_history_kb": kilobytes("bytes_compact"),
        **({"vectors_kb": kilobytes("bytes_vectors")} if setup.vectors else {}),
        "seconds": round(time.perf_counter() - started, 1),
    }


async def long_session(folder: Path, turns: int) -> dict[str, Any]:
    """What it costs to put down one session again and again: appended, and written whole."""
    agent = agent_of(Setup(folder, None, None, 1))
    texts = iter(
        f"<create_memory> note {number} of a session </create_memory> <read_memory> note {number} </read_memory> "
        f"<update_memory> Memory 1: note {number} once more </update_memory>"
        for number in range(turns)
    )
    agent.policy = ScriptedPolicy(agent.tokenizer, lambda prompt: next(texts))
    agent.memory.capacity = None
    session, file = Session(agent, "long"), SessionFile(folder / "long.session")
    appended, saved = [], []
    observation = agent.environments.blank("reading")
    for _ in range(turns):
        await session.turn(observation)
        started = time.perf_counter()
        file.write(session.put_down())
        appended.append(time.perf_counter() - started)
        started = time.perf_counter()
        session.put_down().save(folder / "saved.session")
        saved.append(time.perf_counter() - started)
    started = time.perf_counter()
    state = file.read()
    read = time.perf_counter() - started
    again = await Session.take_up(agent, state)
    assert again.memory.log == session.memory.log, "a long session came back with another log"

    def around(seconds: list[float], place: int) -> float:
        return round(float(np.median(seconds[max(0, place - 20) : place])) * 1e3, 3)

    places = [place for place in (20, 100, turns) if place <= turns]
    return {
        "turns": turns,
        "operations": len(session.memory.log),
        "appended_ms": {place: around(appended, place) for place in places},
        "saved_whole_ms": {place: around(saved, place) for place in places},
        "read_ms": round(read * 1e3, 1),
        "take_up_ms": round((time.perf_counter() - started - read) * 1e3, 1),
        "file_kb": round(file.path.stat().st_size / 1e3, 1),
    }


def main(argv: list[str] | None = None) -> int:
    """Run all passes; print the table and the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument(
        "--policy", type=Path, default=Path("runs/bench_sessions"), help="made if it is not there"
    )
    parser.add_argument(
        "--embedder_model", help="a sentence-transformers folder, for a second pass"
    )
    add_quick(parser, episodes=QUICK_EPISODES)
    options = parser.parse_args(argv)
    count = options.episodes
    policy = None if options.quick else cold_start(options.policy, 0, RECIPE).resolve()
    result: dict[str, Any] = {"policy": "expert" if policy is None else "cold start, 300 updates"}
    with tempfile.TemporaryDirectory() as folder, Processes() as processes:
        passes = (
            [("model", options.embedder_model, min(count, MODEL_EPISODES))]
            if options.embedder_model
            else []
        )
        passes.append(("hashing", None, count))
        for name, model, episodes in passes:
            own = Path(folder) / name
            own.mkdir()
            result[name] = measure(processes, Setup(own, policy, model, episodes))
            for key, value in result[name].items():
                print(f"{name:<10}{key:<22}{value}", flush=True)
        result["long"] = asyncio.run(
            long_session(Path(folder), LONG_TURNS // (10 if options.quick else 1))
        )
        print("long      ", result["long"])
    result["holds"] = all(
        not result[name]["differences"] for name in ("hashing", "model") if name in result
    )
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())

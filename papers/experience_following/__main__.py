"""Experience following (arXiv 2505.16067): play four agents, and print the paper's tables."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atommem.config import EmbedderConfig, PolicyConfig, check_choice, check_least
from atommem.embedding import make_embedder
from atommem.embedding.embedder import Embedder
from atommem.errors import ConfigError
from atommem.plugins import find
from atommem.policy.contract import Sampling
from atommem.policy.opening import open_policy, policy_identity
from papers.asking import Asker, add_policy_flags
from papers.experience_following.agents import Agent, RegAgent, StreamAgent
from papers.experience_following.clinic import EhrAgent
from papers.experience_following.driving import DriverAgent
from papers.experience_following.flows import CicIotAgent
from papers.experience_following.report import add_figure, add_runs, add_table
from papers.experience_following.runs import Arm, Run, play
from papers.experiment import Journal, Report, main, progress
from papers.inputs import load_published
from papers.streams import SIMILARITIES, StreamRow, shift

AGENTS = {one.name: one for one in (RegAgent, EhrAgent, DriverAgent, CicIotAgent)}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the experiment's flags."""
    add = parser.add_argument
    help_text = f"Play the arms of {', '.join(AGENTS)}, or of your class (MODULE:CLASS, with "
    help_text += "act(row, shown) and score(row, output)); unset: saved runs are read."
    add("--agent", metavar="NAME", help=help_text)
    help_text = "For your class: JSON Lines of query and truth; with output for the initial memory."
    add("--stream", type=Path, metavar="FILE", help=help_text)
    help_text = f"Of your stream's queries: {', '.join(SIMILARITIES)} (%(default)s)."
    add("--similarity", default="text", help=help_text)
    add("--table", type=int, metavar="N", help="Table 1, 2, 4, 5, 6 or 8; without --figure, 1.")
    add("--figure", type=int, metavar="N", help="Figure 2 to 18; --output_dir takes its plot.")
    help_text = "Play these arms in place of the table's, as 'strict, history, n 10'."
    add("--arms", nargs="+", default=[], metavar="NAME", help=help_text)
    add_policy_flags(parser, "a script that copies from the prompt", 1024)
    help_text = "Judges C1, C2 and C3: model folders, or URL#MODEL of chat servers; unset: the "
    help_text += "truth, misread at fixed rates. RegAgent's are thresholds."
    add("--judges", nargs="+", default=[], metavar="MODEL", help=help_text)
    help_text = "Write rows for SFT that teach a judge the truth of the runs (C3)."
    add("--judge_rows", type=Path, metavar="FILE", help=help_text)
    help_text = "Files in the original format (README); unset: generated ones."
    add("--data", type=Path, metavar="FOLDER", help=help_text)
    add("--tasks", type=int, metavar="N", help="Fewer tasks than the paper's.")
    add("--initial", type=int, metavar="N", help="Another initial memory than the paper's.")
    add("--temperature", type=float, default=0.0, help="Of the policy (%(default)s).")
    help_text = "Sentence-transformers model for EHRAgent's questions; unset: hashed words."
    add("--embedder_model", help=help_text)
    add("--seed", type=int, default=0, help="Of data, samples, follower and misreading judges.")
    folder = Path("runs/experience_following")
    add("--runs", type=Path, default=folder, metavar="FOLDER", help="Saved runs (%(default)s).")


def run(arguments: argparse.Namespace, journal: Journal) -> Report:
    """Play what is asked for, and report the table or figure."""
    paper = load_published("experience_following")
    number, figure, own = arguments.table, arguments.figure, arguments.stream is not None
    if figure is None and number is None and not own:
        number = 1
    names: list[str] = paper["stream"]["arms"] if own and figure is None else []
    if number is not None:
        check_choice("table", str(number), [*map(str, paper["tables"])])
        rows = paper["tables"][number]["rows"]
        names = [name for name, cells in rows.items() if own or arguments.agent in cells]
    if figure is not None:
        check_choice("figure", str(figure), [*map(str, paper["figures"])])
        names = [*names, *paper["figures"][figure]["arms"]]
    report = Report("experience_following", paper["source"])
    if arguments.agent is not None:
        arms = [Arm.parse(name) for name in dict.fromkeys(arguments.arms or names)]
        add_runs(report, asyncio.run(_play_all(arguments, arms)))
    if number is not None and not own:
        add_table(report, paper, number, arguments.runs)
    if figure is not None:
        agents = ["stream"] if own else []
        add_figure(report, paper, figure, arguments.runs, arguments.output_dir, agents)
    return report


def _make_agent(arguments: argparse.Namespace, embedder: Embedder | None) -> tuple[Agent, str]:
    """Return the agent, and what identifies the code of a user's class."""
    if arguments.stream is None:
        check_choice("agent", arguments.agent, list(AGENTS))
        return AGENTS[arguments.agent](arguments.data, arguments.seed, embedder), ""
    check_choice("similarity", arguments.similarity, list(SIMILARITIES))
    made = find("atommem.agents", arguments.agent)
    code = hashlib.sha256(Path(inspect.getfile(made)).read_bytes()).hexdigest()[:16]
    values = made(), arguments.similarity, arguments.seed, embedder
    return StreamAgent(arguments.stream, *values), f"{arguments.agent} {code}"


async def _play_all(arguments: argparse.Namespace, arms: Sequence[Arm]) -> list[Run]:
    """Play arms at the same time, so that a local model samples them in batches."""
    check_least(arguments, tasks=1, initial=1, max_completion_length=1)
    embedder = None
    if arguments.embedder_model is not None:
        embedder = make_embedder(EmbedderConfig("sentence_transformer", arguments.embedder_model))
    agent, code = _make_agent(arguments, embedder)
    if not arms:
        raise ConfigError(f"agent={arguments.agent}: has no row in that table. Give --arms.")
    if (arguments.judges or arguments.judge_rows) and "judge" not in agent.prompts:
        raise ConfigError(f"agent={agent.name}: is not judged by models. Drop judges, judge_rows.")
    initial = arguments.initial or agent.settings["initial"]
    rows = agent.tasks(initial, arguments.tasks or agent.settings["stream"])
    known = [agent.score(row, row.output) for row in rows if row.output is not None]
    settings = {
        name: getattr(arguments, name)
        for name in ("judges", "seed", "temperature", "max_completion_length", "embedder_model")
    }
    data = arguments.stream or arguments.data or "generated"
    settings |= {"policy": code or "follower", "data": str(data), "known": known}
    settings |= {"tasks": len(rows) - len(known), "initial": len(known)}
    longest, seed = arguments.max_completion_length, arguments.seed
    sampling = Sampling(arguments.temperature, max_completion_length=longest, seed=seed)
    opened: list[Any] = []
    if arguments.policy is not None:
        server = {name: getattr(arguments, name) for name in ("api", "model", "tokenizer")}
        config = PolicyConfig([arguments.policy], **server)
        opened.append(open_policy(config))
        agent.asker = Asker(opened[0], sampling)
        settings["policy"] = await policy_identity(config, opened[0])
    for name in arguments.judges:
        url, _, model = name.partition("#")
        chat = {"api": "chat", "model": model} if model else {}
        opened.append(open_policy(PolicyConfig([url], **chat)))
        asker = Asker(opened[-1], Sampling(0.0, max_completion_length=longest))
        agent.judges = [*agent.judges, asker]
    folder = arguments.runs / agent.name

    async def one(arm: Arm) -> Run:
        saved = Journal(arm.file(folder))
        if saved.once("settings", lambda: settings) != json.loads(json.dumps(settings)):
            raise ConfigError(f"{saved.path}: a run with other settings. Give another --runs.")
        base, stream = None, rows
        if arm.error_free:
            base = await one(Arm.parse(arm.name.replace(", error-free", "")))
        if "shift" in arm.changes:
            vectors = None
            if agent.similarity is None:
                queries = [row.query for row in rows[len(known) :]]
                vectors = await agent.embedder.embed(queries, "entry")
            stream = shift(rows, int(arm.changes["shift"]), agent.seed, vectors)
        progress(f"{agent.name}: {arm.name}")
        await play(agent, arm, stream, saved, base)
        return Run(arm, saved)

    try:
        runs = await asyncio.gather(*(one(arm) for arm in arms if not arm.error_free))
        runs += [await one(arm) for arm in arms if arm.error_free]
    finally:
        for policy in opened:
            await policy.close()
    if arguments.judge_rows is not None:
        write_judge_rows(agent, rows[len(known) :], runs, arguments.judge_rows)
    return runs


def write_judge_rows(
    agent: Agent, tasks: Sequence[StreamRow], runs: Sequence[Run], path: Path, most: int = 300
) -> None:
    """Write judgements of the truth, as many of successes as of failures, as TRL's rows."""
    found: dict[bool, list[str]] = {True: [], False: []}
    for played in (run for run in runs if "shift" not in run.arm.changes):
        for row, line in zip(tasks, played.lines, strict=True):
            system, user = agent.judge_prompt(row, line["output"])
            prompt = [{"role": "system", "content": system}, {"role": "user", "content": user}]
            right = line["outcome"] >= 1
            words = ("CORRECT", "INCORRECT") if agent.name == "cic_iot" else ("yes", "no")
            reply = [{"role": "assistant", "content": words[not right]}]
            shown = {"prompt": prompt[0 if system else 1 :], "completion": reply}
            found[right].append(json.dumps(shown))
    share = min(most // 2, *(len(set(lines)) for lines in found.values()))
    chosen = [line for lines in found.values() for line in list(dict.fromkeys(lines))[:share]]
    path.write_text("\n".join(chosen) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main("experience_following", __doc__, add_flags, run))

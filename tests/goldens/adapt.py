"""The goldens' only imports from the product: adapt the lines here to renames and moves."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.embedding.embedder import HashingEmbedder
from atommem.environment import environment_config, make_factory
from atommem.envs.longdoc.environment import chunk_observation, question_observation
from atommem.envs.task import Document, Question, Task
from atommem.eval.eval_config import parse_arguments
from atommem.eval.methods import Setup, make_method
from atommem.eval.reporting.results import make_results, read_evaluation
from atommem.eval.runner import evaluate
from atommem.eval.suite import expand, load_suite
from atommem.memory.log import MemoryView, Operation, Retrieved, to_json
from atommem.policy.contract import Sampling, ScriptedPolicy
from atommem.prompts import PromptBuilder
from atommem.rollout import Agent, Session
from atommem.run import RunConfig
from tests.serve import servers


def prompt_builder(tokenizer: Any, **memory: Any) -> Any:
    """An object with ``build(observation, view) -> ids`` and ``text(observation, view) -> str``."""
    config = MemoryConfig(**memory)
    dialect = get_dialect(config.dialect, config.templates)
    return PromptBuilder.of(tokenizer, dialect, config, longdoc(tokenizer))


def longdoc(tokenizer: Any, **settings: Any) -> Any:
    return make_factory(environment_config("longdoc", **settings), tokenizer)


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
        sampling=Sampling(seed=3, max_tokens=4000),
    )


def scripted(tokenizer: Any, script: Callable[[str], str]) -> Any:
    policy: Any = ScriptedPolicy(tokenizer, script)
    policy.tokenizer = tokenizer
    return policy


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
        made.append(Row([1], [2] * len(logprobs), logprobs, index, advantage, weight))
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


def train_settings(path: Path) -> dict[str, Any]:
    from atommem.train.settings import parse

    stage = next((name for name in ("sft", "async") if path.stem.startswith(name)), "grpo")
    found = parse(stage, ["--config", str(path), "--use_cpu"])
    run = found.run
    return changed(found.args, run.memory, run.embedder, run.environment, found.model)


def eval_settings(path: Path) -> dict[str, Any]:
    flags = ["--config", str(path), "--policy", "p", "--data", "d", "--out", "o"]
    return evaluation_settings(parse_arguments(flags))


def evaluation_settings(found: Any) -> dict[str, Any]:
    run = found.run
    parts = (found.config, found.policy, run.memory, run.embedder, run.environment, run.sampling)
    settings = changed(*parts)
    if settings.get("seed") == 0:  # the default of an evaluation
        del settings["seed"]
    if run.chat_template_kwargs:
        settings["chat_template_kwargs"] = run.chat_template_kwargs
    return settings


def suite_runs(path: Path) -> dict[str, dict[str, Any]]:
    suite = load_suite(path)
    suite = suite.with_policies({row.policy: row.policy for row in suite.rows})
    suite = replace(suite, settings={"policy": "POLICY", **suite.settings})
    found = {
        f"{item.row.name} / {item.column.key} / {item.seed}": evaluation_settings(item.evaluation)
        for item in expand(suite, [], Path("OUT"))[0]
    }
    for settings in found.values():  # the folder was called cells
        settings["out"] = settings["out"].replace("OUT/runs/", "OUT/cells/")
    return found


def changed(*configs: Any) -> dict[str, Any]:
    """The fields that differ from their defaults, by name, as JSON values."""
    found = {}
    for config in configs:
        for item in fields(config):
            value = getattr(config, item.name)
            usual = item.default_factory() if callable(item.default_factory) else 0
            if value not in (usual, item.default):
                found[item.name] = json.loads(json.dumps(value, default=str))
    return found


async def run_evaluation(
    name: str, tokenizer: Any, script: Any, tasks: Sequence[Any], out: Path, seed: int
) -> None:
    sampling = Sampling(temperature=0.7, seed=seed, max_tokens=200)
    setup = Setup(
        run=RunConfig(memory=MemoryConfig(retrieve_k=2), sampling=sampling),
        policy=scripted(tokenizer, script),
        embedder=HashingEmbedder(32),
        factory=longdoc(tokenizer, chunking="documents", max_reads=1),
        max_in_flight=1,
    )
    method, settings = make_method(name, setup), {"seed": seed}
    await evaluate(tasks, method, out, samples_per_task=2, settings=settings, progress=False)


def report_numbers(folders: dict[str, list[Path]], reference: str) -> dict[str, Any]:
    """Every number of the report: scores with intervals and other means by row, tests."""
    rows = [(row, folder) for row, paths in folders.items() for folder in paths]
    read = [read_evaluation(folder, row, "toy") for row, folder in rows]
    results = make_results(read, reference=reference)
    found: dict[str, Any] = {}

    def lines_of(name: str, row: str, *drop: str) -> list[dict[str, Any]]:
        drop = ("row", "column", *drop)
        lines = [line for line in results[name] if line["row"] == row]
        return [{k: v for k, v in line.items() if k not in drop} for line in lines]

    for group in results["groups"]:
        row = group["row"]
        counts = {name: group[name] for name in ("episodes", "failed", "overflow")}
        metrics = [line["metric"] for line in results["scores"] if line["row"] == row]
        scores = dict(zip(metrics, lines_of("scores", row, "metric"), strict=True))
        found[f"scores/{row}"] = scores | counts | {"breakdowns": lines_of("breakdowns", row)}
        means = group["means"].items()
        found[f"means/{row}"] = {k: v for k, v in means if "tokens" not in k and k != "seconds"}
    for test in results["comparisons"]:
        test = {"dataset": "toy", "documents": None, **test}
        del test["column"]
        found[f"tests/{test['first']} - {test['second']}"] = test
    return found


@contextmanager
def served(tokenizer: Any, folder: Path) -> Iterator[str]:
    """The address of a server whose policy takes notes; the model is called ``scripted``."""
    model = servers.scripted(tokenizer=tokenizer, chunk_tokens=160)
    with servers.running(servers.make_conversations(folder / "log.db", model)) as server:
        yield f"{server.url}/v1"


def demo_summary(seed: int, out: Path, quick: bool) -> dict[str, Any]:
    from atommem.demo.demo_cli import main

    assert main([*(["--quick"] if quick else []), "--seed", str(seed), "--out", str(out)]) == 0
    return json.loads((out / "summary.json").read_text(encoding="utf-8"))

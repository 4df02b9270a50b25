"""An environment from outside, installed beside ours: every command works on it, with no line of ours changed."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from atommem import cli
from atommem.config import EmbedderConfig, MemoryConfig
from atommem.demo.recipe import PolicySize
from atommem.demo.tiny_policy import make_model, prompt_words, word_tokenizer
from atommem.dialects import get_dialect
from atommem.embedding import make_embedder
from atommem.environment import EnvironmentFactory, environment_config, find_environment, make_environments
from atommem.envs.scoring.records import EvalResult
from atommem.eval.runner import evaluate
from atommem.memory.contents import replay
from atommem.memory.entries import MemoryView
from atommem.observation import Observation
from atommem.policy.contract import Completion, Sampling
from atommem.policy.local import LocalPolicy
from atommem.prompts import PromptBuilder
from atommem.trace import read_trace, write_trace
from tests.fakes import make_episode_runner

PACKAGE = Path(__file__).with_name("external")
MEMORY = MemoryConfig(templates="compact", retrieve_k=2, scratchpad_tokens=16)
EMBEDDER = EmbedderConfig(embedder="hashing", embedder_dim=64)
SETTINGS = ["--environment", "atlas", "--templates", "compact", "--retrieve_k", "2", "--scratchpad_tokens", "16"]
SETTINGS += ["--embedder", "hashing", "--embedder_dim", "64"]
TASKS = 6


def call(tool: str, **arguments: Any) -> str:
    return f"<tool_call> {json.dumps({'name': tool, 'arguments': arguments})} </tool_call>"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package as pip installs it, in a folder of its own."""
    source = tmp_path_factory.mktemp("source") / "atlas"
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path_factory.mktemp("installed")
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", folder]
    subprocess.run([sys.executable, *install, source], check=True)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.split(".")[0] == "atommem_atlas"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def data(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "tasks.atlas"
    command = ["data", "build", "--environment", "atlas", "--n", str(TASKS), "--seed", "7", "--out", str(path)]
    assert cli.main(command) == 0
    return path


def environments(tokenizer: Any, **settings: Any) -> EnvironmentFactory:
    return make_environments(environment_config("atlas", **settings), tokenizer)


def test_it_is_150_lines_of_python_and_imports_the_core_alone() -> None:
    files = [path.read_text() for path in PACKAGE.rglob("*.py")]
    assert sum(len(text.splitlines()) for text in files) <= 150
    imported = {line.split()[1] for text in files for line in text.splitlines() if line.startswith("from atommem.")}
    assert {name.split(".")[1] for name in imported} == {
        "actions",
        "description",
        "environment",
        "errors",
        "observation",
    }


class Guide:
    """Looks the person up, keeps the home, asks for its neighbours, and answers: on half the tasks in part."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    async def complete_observation(self, observation: Observation, view: MemoryView, sampling: Sampling) -> Completion:
        (person,) = observation.values("person")
        calls, texts = observation.values("call"), observation.values("text")
        if not calls:
            text = call("lookup", name=person)
        elif calls[0].startswith("lookup"):
            text = f"<create_memory> {person} : {texts[0]} </create_memory> <read_memory> {person} </read_memory> "
            text += call("neighbours", place=texts[0])
        else:
            text = f"<final_answer> \\boxed{{ {texts[0]} }} </final_answer>"
        token_ids = [*self._tokenizer.encode(text, add_special_tokens=False), self._tokenizer.eos_token_id]
        return Completion(token_ids, [0.0] * len(token_ids), text, "stop")

    async def close(self) -> None:
        return None


def demonstrate(data: Path, out: Path | None, tokenizer: Any) -> EvalResult:
    """The guide on every task; its traces in `out`."""
    runner = make_episode_runner(
        policy=Guide(tokenizer),
        tokenizer=tokenizer,
        embedder=make_embedder(EMBEDDER),
        environments=environments(tokenizer),
        memory=MEMORY,
        sampling=Sampling(seed=0),
    )
    return asyncio.run(evaluate(find_environment("atlas").read_tasks(data), runner, out, progress=False))


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy made from nothing: shown how, trained for two updates, evaluated before and after."""
    out = tmp_path_factory.mktemp("runs")
    tasks = find_environment("atlas").read_tasks(data)
    known = [json.dumps(task.facts) for task in tasks]
    words = [word.strip('",:{}') for text in known for word in text.split()]
    said = [call(tool, **{argument: word}) for word in words for tool, argument in TOOLS.items()]
    tokenizer = word_tokenizer(
        [*prompt_words(environment_config("atlas"), MEMORY), *words, *said, "\\boxed{ }", ": 0 1 2 3 4"]
    )
    torch.manual_seed(0)
    make_model(PolicySize(), tokenizer).save_pretrained(out / "policy")
    tokenizer.save_pretrained(out / "policy")
    assert demonstrate(data, out / "guide", tokenizer).mean("em") == 1.0

    size = ["--max_completion_length", "48", "--save_strategy", "no", "--report_to", "none"]
    size += ["--dataloader_pin_memory", "false", "--logging_steps", "1"]
    sft = ["--data", str(out / "guide"), "--output_dir", str(out / "sft"), "--max_steps", "80"]
    sft += ["--learning_rate", "3e-3", "--per_device_train_batch_size", "18"]
    assert cli.main(["train", "sft", "--model_name_or_path", str(out / "policy"), *sft, *SETTINGS, *size]) == 0
    # From here on the environment and its settings come with the model folder.
    grpo = ["--data", str(data), "--output_dir", str(out / "grpo"), "--max_steps", "2", "--num_generations", "4"]
    grpo += ["--per_device_train_batch_size", "8", "--learning_rate", "1e-3", "--save_traces", "true"]
    assert cli.main(["train", "grpo", "--model_name_or_path", str(out / "sft"), *grpo, *size]) == 0
    for name in ("sft", "grpo"):
        evaluation = ["--policy", str(out / name), "--data", str(data), "--out", str(out / f"eval_{name}")]
        assert cli.main(["eval", *evaluation, "--temperature", "1", "--environment", "atlas"]) == 0
    return out


TOOLS = {"lookup": "name", "neighbours": "place"}


@pytest.mark.slow
def test_it_is_trained(runs: Path) -> None:
    logged = [json.loads(line) for line in (runs / "grpo" / "metrics.jsonl").read_text().splitlines()]
    updates = [entry for entry in logged if "loss" in entry]
    assert [entry["step"] for entry in updates] == [1, 2]
    for entry in updates:
        assert 0 <= entry["overlap"] == pytest.approx(entry["reward"])
        assert entry["overlap/atlas"] == pytest.approx(entry["overlap"])
        assert entry["actions/lookup"] > 0
        assert entry["sampling/sampling_logp_difference/mean"] < 1e-4
    settings = json.loads((runs / "grpo" / "atommem_config.json").read_text())
    assert (settings["environment"], settings["turns"]) == ("atlas", 4)


@pytest.mark.slow
def test_it_is_evaluated(runs: Path) -> None:
    summary = json.loads((runs / "eval_grpo" / "summary.json").read_text())
    assert summary["episodes"] == TASKS
    assert set(summary["metrics"]) >= {"em", "overlap"}
    assert summary["means"]["actions/lookup"] > 0


@pytest.mark.slow
def test_it_is_traced(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = min((runs / "guide" / "traces").iterdir())
    assert cli.main(["trace", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "step 2/3, acting" in printed
    assert "call: lookup" in printed
    assert "overlap: 1" in printed


@pytest.mark.slow
async def test_it_is_replayed_token_by_token(runs: Path, data: Path) -> None:
    policy = LocalPolicy.from_pretrained(str(runs / "grpo"))
    runner = make_episode_runner(
        policy=policy,
        tokenizer=policy.tokenizer,
        embedder=make_embedder(EMBEDDER),
        environments=environments(policy.tokenizer),
        memory=MEMORY,
        sampling=Sampling(seed=1, max_tokens=48),
        keep_prompts=True,
    )
    tasks = find_environment("atlas").read_tasks(data)
    episodes = await runner.run_all([(task, 0) for task in tasks])
    await policy.close()
    prompts = PromptBuilder.of(policy.tokenizer, get_dialect("paper", "compact"), MEMORY, runner.environments)
    for episode in episodes:
        path = write_trace(runs / "whole" / f"{episode.task_id}.jsonl", episode, {}, tokens=True)
        steps = read_trace(path).episode.steps
        for step in steps:
            assert prompts.build(step.observation, step.view) == step.prompt_ids
        contents = replay([operation for step in steps for operation in step.operations])
        assert len(contents.entries) == steps[-1].store_size


@pytest.mark.slow
def test_it_is_compared_and_reported(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(runs / f"eval_{name}") for name in ("sft", "grpo")]
    assert cli.main(["compare", *folders, "--metric", "overlap"]) == 0
    assert f"overlap on the {TASKS} tasks" in capsys.readouterr().out
    report = runs / "report"
    assert cli.main(["report", *folders, "--out", str(report), "--training", str(runs / "grpo")]) == 0
    results = json.loads((report / "results.json").read_text())
    assert {cell["dataset"] for cell in results["cells"]} == {"atlas"}
    tables = (report / "tables.md").read_text()
    assert "overlap" in tables
    assert "lookup" in tables
    assert "neighbours" in (report / "report.html").read_text()


@pytest.mark.slow
def test_it_is_checked(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["env", "list"]) == 0
    assert "atlas" in capsys.readouterr().out
    assert cli.main(["env", "check", "atlas", "--data", str(data)]) == 0


@pytest.mark.slow
def test_what_only_documents_allow_is_refused_by_name(
    runs: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A baseline that reads documents, and a plan for tasks of which the environment gives no estimate."""
    evaluation = ["eval", "--policy", str(runs / "sft"), "--data", str(data), "--out", str(runs / "rag")]
    assert cli.main([*evaluation, "--method", "rag"]) == 2
    assert "method rag reads documents, and the environment 'atlas' has none" in capsys.readouterr().err
    plan = ["train", "grpo", "--model_name_or_path", str(runs / "sft"), "--data", str(data), "--dry_run"]
    assert cli.main(plan) == 2
    assert "Atlas gives no estimate of its tasks" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("command", [["eval", "--policy", "x", "--out", "y"], ["train", "grpo", "--output_dir", "y"]])
def test_a_setting_that_a_command_has_too_is_refused_by_name(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "seeded.py").write_text(SEEDED)
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main([*command, "--data", "z", "--environment", "seeded:Seeded"]) == 2
    assert "environment Seeded has a setting that this command has too" in capsys.readouterr().err


SEEDED = """
from dataclasses import dataclass
from atommem.environment import EnvironmentConfig
from atommem.envs.longdoc import Environments

@dataclass
class SeededConfig(EnvironmentConfig):
    seed: int = 0

class Seeded(Environments):
    config_class = SeededConfig
"""

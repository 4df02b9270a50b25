"""An environment from outside, as its tutorial has it: every command works on it, with no line of ours changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from atommem import cli
from atommem.config import EmbedderConfig, MemoryConfig
from atommem.dialects import get_dialect
from atommem.embedding import make_embedder
from atommem.environment import environment_config, find_environment, make_environments
from atommem.memory.contents import replay
from atommem.policy.contract import Sampling
from atommem.policy.local import LocalPolicy
from atommem.prompts import PromptBuilder
from atommem.trace import read_trace, write_trace
from tests.fakes import make_episode_runner
from tests.pages import Reader

PACKAGE = Path(__file__).parents[1] / "examples" / "atlas"
MEMORY = MemoryConfig(templates="compact", retrieve_k=2, scratchpad_tokens=16)
EMBEDDER = EmbedderConfig(embedder="hashing", embedder_dim=64)
TASKS = 6


def test_it_is_160_lines_of_python_and_imports_the_core_alone() -> None:
    files = [path.read_text() for path in PACKAGE.rglob("*.py") if path.stem != "start"]
    assert sum(len(text.splitlines()) for text in files) <= 160
    imported = {line.split()[1] for text in files for line in text.splitlines() if line.startswith("from atommem.")}
    assert {name.split(".")[1] for name in imported} == {
        "actions",
        "description",
        "environment",
        "errors",
        "observation",
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the tutorial leaves: a policy from nothing, trained, evaluated before and after, served."""
    with Reader(tmp_path_factory.mktemp("reader")) as reader:
        names = reader.follow("docs/tutorials/own_environment.md")
        # Two updates teach it little: sometimes it uses up its turns and gives no answer.
        assert names["answer"].status in ("completed", "incomplete")
        assert names["answer"].output
        yield reader.folder / "runs" / "atlas"


@pytest.fixture(scope="module")
def data(runs: Path) -> Path:
    return runs.parents[1] / "train.atlas"


@pytest.mark.slow
def test_it_is_trained_evaluated_traced_and_reported(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    summary = json.loads((runs / "after" / "summary.json").read_text())
    assert summary["episodes"] == TASKS
    assert set(summary["metrics"]) >= {"em", "overlap"}
    assert summary["means"]["actions/lookup"] > 0
    assert cli.main(["trace", str(min((runs / "guide" / "traces").iterdir()))]) == 0
    folders = [str(runs / name) for name in ("before", "after")]
    assert cli.main(["compare", *folders, "--metric", "overlap"]) == 0
    printed = capsys.readouterr().out
    for said in ("step 2/3, acting", "call: lookup", "overlap: ", f"overlap on the {TASKS} tasks"):
        assert said in printed
    report = runs / "report"
    assert cli.main(["report", *folders, "--out", str(report), "--training", str(runs / "grpo")]) == 0
    results = json.loads((report / "results.json").read_text())
    assert {cell["dataset"] for cell in results["cells"]} == {"atlas"}
    for file, words in (("tables.md", ("overlap", "lookup")), ("report.html", ("neighbours",))):
        assert all(word in (report / file).read_text() for word in words)


@pytest.mark.slow
async def test_it_is_replayed_token_by_token(runs: Path, data: Path) -> None:
    policy = LocalPolicy.from_pretrained(str(runs / "grpo"))
    runner = make_episode_runner(
        policy=policy,
        tokenizer=policy.tokenizer,
        embedder=make_embedder(EMBEDDER),
        environments=make_environments(environment_config("atlas"), policy.tokenizer),
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

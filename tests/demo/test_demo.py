"""`atommem demo`: quick runs in one and two processes, their claims, and the parts of a recipe."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from atommem import cli
from atommem.demo.recipe import BOUNDED, FULL, INJECTED, WEB, make_expert, make_tasks, world_words
from atommem.demo.run import load_settings
from atommem.demo.tiny_policy import make_model, prompt_words, word_tokenizer
from atommem.dialects import get_dialect
from atommem.envs.synthetic.expert import ExpertPolicy
from atommem.envs.synthetic.world import get_prose
from atommem.policy.contract import Sampling
from atommem.policy.local import LocalPolicy
from atommem.rollout import EpisodeRunner
from atommem.run import build_agent
from atommem.trace import read_trace
from tests.serve.servers import until


def test_demo_in_a_folder_of_other_files_is_refused(tmp_path, capsys):
    (tmp_path / "eval").mkdir()
    (tmp_path / "summary.json").write_text("{}")  # of an evaluation
    assert cli.main(["demo", "--quick", "--output_dir", str(tmp_path)]) == 2
    assert "its eval, summary.json would be lost" in capsys.readouterr().err
    assert (tmp_path / "eval").is_dir()


@contextmanager
def demo(out: Path, processes: int, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start one in a session of its own, which is gone afterwards."""
    command = [sys.executable, "-m", "atommem.cli", "demo", "--output_dir", str(out)]
    command += ["--processes", str(processes), *options]
    with (out.parent / f"{out.name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a quick demo in one process, which replaced an earlier one."""
    out = tmp_path_factory.mktemp("demo") / "single"
    (out / "eval" / "before" / "traces" / "old").mkdir(parents=True)
    (out / "heldout.parquet").touch()
    with demo(out, 1, "--quick") as process:
        assert process.wait(timeout=300) == 0
    return out


@pytest.mark.slow
def test_demo_replaces_an_earlier_one_and_evaluates_its_ablations(single):
    summary = json.loads((single / "summary.json").read_text())
    assert (summary["seed"], summary["n"]) == (0, 8)
    for name in ("before", "after", *FULL.ablations):
        traces = list((single / "eval" / name / "traces").iterdir())
        assert len(traces) == 8
        assert read_trace(traces[0]).complete
    log = single.with_name("single.log").read_text()
    assert str(single / "training.png") in log
    assert "only checks that the parts run" in log
    assert [line for line in log.splitlines() if len(line) > 80 and str(single) not in line] == []
    assert (single / "training.png").exists()
    LocalPolicy.from_pretrained(single / "grpo")


@pytest.mark.slow
def test_demo_on_two_processes_trains_as_on_one(single, tmp_path):
    out = tmp_path / "two"
    with demo(out, 2, "--quick") as process:
        assert process.wait(timeout=300) == 0
    logs = [folder.with_name(f"{folder.name}.log").read_text() for folder in (single, out)]
    # Until the first epoch of 302 rows ends, whose last batch is filled up where two share it.
    losses = [re.findall(r"^ +[1-4] +\S+ +(\d\.\d{4}) ", log, re.M) for log in logs]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 4


@pytest.mark.slow
def test_demo_with_a_killed_process_ends_the_other(tmp_path):
    out, log = tmp_path / "demo", tmp_path / "demo.log"
    with demo(out, 2) as process:
        until(lambda: "Pretraining" in log.read_text(), 120)
        for child in psutil.Process(process.pid).children():
            if any("spawn_main" in word for word in child.cmdline()):
                child.kill()
        assert process.wait(timeout=60) == 2
    assert "process 1 of the demo's 2 ended with status -9" in log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("binding", [True, False])
def test_binding_tasks_never_have_fewer_facts_than_the_store_holds(binding):
    told = [
        [
            one
            for document in task.documents
            for one in get_prose("compact").statements(document.text)
        ]
        for task in make_tasks(BOUNDED.world, 60, 3, [8], binding)
    ]
    fewest = min(sum(one.kind == "fact" for one in statements) for statements in told)
    assert (fewest >= 8) == binding


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [FULL, WEB, INJECTED], ids=["full", "web", "injected"])
def test_tokenizer_of_a_recipe_knows_every_word(recipe, tmp_path):
    settings = load_settings(tmp_path, recipe)
    run = settings.run
    run.sampling = Sampling(seed=0)
    words = prompt_words(run.environment, run.memory) + world_words(recipe.world, run.memory)
    tokenizer = word_tokenizer(words)
    expert = make_expert(recipe.world, get_dialect(run.memory.dialect, run.memory.templates))
    policy = ExpertPolicy(expert, tokenizer, tokenizer.eos_token_id)
    agent = build_agent(run, policy, tokenizer=tokenizer, keep_prompts=True)
    jobs = [(task, 0) for task in make_tasks(recipe.world, 40, 1)]
    episodes = asyncio.run(EpisodeRunner(agent).run_all(jobs))
    for step in (step for episode in episodes for step in episode.steps):
        assert tokenizer.unk_token_id not in step.prompt_ids + step.token_ids
        assert tokenizer.decode(step.token_ids, skip_special_tokens=True) == step.text
        assert len(step.token_ids) <= settings.args.max_completion_length
        assert len(step.prompt_ids) + 48 <= recipe.size.max_positions
    assert sum(episode.metrics["em"] for episode in episodes) / 40 >= 0.95
    assert 100_000 < make_model(recipe.size, tokenizer).num_parameters() < 1_000_000

"""Evaluation during training: scores of ``atommem eval``, and the best checkpoint."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atommem.errors import OutageError
from atommem.eval.runner import evaluate
from atommem.train.checkpoints import list_checkpoints
from atommem.train.console import METRICS_FILE, read_metrics
from atommem.train.errors import RolloutFailedError
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from tests.train.harness import make_real_trainer, make_tasks

pytestmark = pytest.mark.slow

HELD_OUT = [
    replace(task, id=f"h{index}", source=("hotpotqa", "musique")[index % 2])
    for index, task in enumerate(make_tasks(8))
]


def make(folder: Path, **settings: Any) -> MemoryGRPOTrainer:
    held = {"held_out": HELD_OUT, "eval_data": "file", "eval_strategy": "steps"}
    return make_real_trainer(folder, learning_rate=2e-2, **held, **settings)[0]


def test_evaluation_is_logged_and_chooses_the_best_checkpoint(tmp_path: Path) -> None:
    best = {"save_strategy": "best", "metric_for_best_model": "em", "greater_is_better": True}
    best |= {"load_best_model_at_end": True, "save_total_limit": 1}
    trainer = make(tmp_path, max_steps=3, eval_steps=2, **best)
    trainer.train()
    logged = [entry for entry in read_metrics(tmp_path / METRICS_FILE) if "eval_em" in entry]
    assert [entry["step"] for entry in logged] == [2, 3], "and in the end"
    for entry in logged:
        assert (entry["eval_n"], entry["eval_episodes"], entry["eval_failed"]) == (8, 8, 0)
        by_source = [entry["eval_em/hotpotqa"], entry["eval_em/musique"]]
        assert entry["eval_em"] == pytest.approx(sum(by_source) / 2)
    step = max(logged, key=lambda entry: entry["eval_em"])["step"]
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{step}")
    assert [path.name for path in list_checkpoints(tmp_path)] == [f"checkpoint-{step}"]
    trainer.close()


async def test_evaluation_scores_equal_those_of_eval(tmp_path: Path) -> None:
    trainer = make(tmp_path, eval_temperature=0.7, num_generations_eval=2)
    metrics = await asyncio.to_thread(trainer.evaluate)
    runner = trainer.backend.runner
    runner.agent.sampling = replace(runner.agent.sampling, temperature=0.7, seed=3)
    result = await evaluate(HELD_OUT, runner, samples_per_task=2, progress=False)
    summary = result.summary()
    for key, of in (("", "mean"), ("_low", "low"), ("_high", "high")):
        assert metrics[f"eval_em{key}"] == summary["metrics"]["em"][of]
    assert metrics["eval_n"] == 16
    assert metrics["eval_actions/create"] == summary["means"]["actions/create"]
    await asyncio.to_thread(trainer.close)


def test_failed_evaluation_ends_the_run(tmp_path: Path) -> None:
    """A mean over what an outage left over would choose the best checkpoint by chance."""
    trainer = make(tmp_path, max_steps=2, eval_steps=1, save_strategy="steps", save_steps=9)
    runner = trainer.backend.runner
    complete = runner.agent.policy.complete

    async def gone(prompt_ids: list[int], sampling: Any) -> Any:
        if trainer.state.global_step == 1:
            raise OutageError("no server answers")
        return await complete(prompt_ids, sampling)

    runner.agent.policy.complete = gone  # type: ignore[method-assign]
    with pytest.raises(RolloutFailedError, match="8 of 8 episodes of the evaluation failed"):
        trainer.train()
    trainer.close()
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-1"]

"""Checkpoint folders; runs that stop, fail or are killed, and resume bit for bit."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from atommem.config import MemoryConfig, save_config
from atommem.envs.task_files import save_tasks
from atommem.errors import BudgetSpentError, ConfigError, OutageError
from atommem.train import checkpoints, stop_request
from atommem.train.checkpoints import PARTIAL, last_checkpoint, list_checkpoints
from atommem.train.console import GRPO_COLUMNS, METRICS_FILE, read_metrics, use_console
from atommem.train.errors import CheckpointError, DivergedError, MemoryFault, RolloutFailedError
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from atommem.train.stop_request import StopRequest
from tests.serve.servers import until
from tests.train.harness import (
    ROOT,
    at,
    environment,
    fail,
    make_action_model,
    make_config,
    make_real_trainer,
    make_tasks,
    make_trainer,
    save_model,
)
from tests.train.toys import make_model, mixed_episode

RELEASED = MemoryConfig(dialect="released")


def to_resume(choice: str | None, output_dir: Path, **settings: object) -> str | None:
    config = make_config(output_dir, resume_from_checkpoint=choice)
    vars(config).update(settings)
    return checkpoints.checkpoint_to_resume(config)


def names(folder: Path) -> list[str]:
    return [path.name for path in list_checkpoints(folder)]


def write_partial(folder: Path, step: int) -> Path:
    partial = folder / PARTIAL / f"checkpoint-{step}"
    partial.mkdir(parents=True)
    save_config(partial, RELEASED)
    (partial / "optimizer.pt").write_bytes(b"moments" * 100)
    return partial


def save_checkpoint(folder: Path, step: int) -> Path:
    return checkpoints.publish_checkpoint(write_partial(folder, step), folder, make_config(folder))


def test_checkpoint_to_resume_names_the_damage_and_a_complete_one(tmp_path):
    older, last = save_checkpoint(tmp_path, 10), save_checkpoint(tmp_path, 2)
    assert to_resume("auto", tmp_path) == str(last)
    with pytest.raises(ConfigError, match="it holds checkpoint-2 of an earlier run"):
        to_resume(None, tmp_path)
    os.truncate(last / "optimizer.pt", 100)
    damage = r"checkpoint-2 is damaged: optimizer\.pt has 100 of its 700"
    for choice in ("auto", str(last)):
        message = rf"{damage}.*--resume_from_checkpoint {older} continues"
        with pytest.raises(CheckpointError, match=message):
            to_resume(choice, tmp_path)
    assert to_resume(str(older), tmp_path) == str(older)


FREE = {"max_steps": 9, "save_steps": 7, "token_budget": 40, "run_name": "other", "bf16": True}
FREE |= {"eval_steps": 5, "use_vllm": True, "vllm_mode": "server", "facts": {"judge_url": "b"}}
LASTING: dict[str, Any] = {"learning_rate": 0.5, "beta": 0.1, "temperature": 0.5}
LASTING |= {"vllm_importance_sampling_mode": "token_mask", "lr_scheduler_type": "cosine"}


def test_checkpoint_to_resume_with_other_settings_is_refused(tmp_path):
    save_checkpoint(tmp_path, 3)
    assert to_resume("auto", tmp_path, **FREE)
    facts = {"facts": {"dialect": "paper"}, "per_device_train_batch_size": 16}
    with pytest.raises(ConfigError, match=r"checkpoint-3 is of a run with other") as refusal:
        to_resume("auto", tmp_path, **LASTING, **facts)
    for name, value in (LASTING | {"dialect": "paper", "episodes_per_update": 16}).items():
        assert f"{name}={value!r} (was " in str(refusal.value)


def test_checkpoint_to_resume_removes_what_was_not_finished(tmp_path):
    save_checkpoint(tmp_path, 3)
    write_partial(tmp_path, 4)  # killed before the manifest
    assert to_resume("auto", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]


def test_prune_checkpoints_keeps_the_last_the_best_and_renamed_copies(tmp_path):
    best, *_ = [save_checkpoint(tmp_path, step) for step in (2, 4, 6, 8)]
    (tmp_path / "checkpoint-4-good").mkdir()
    checkpoints.prune_checkpoints(tmp_path, 2, str(best))
    assert names(tmp_path) == ["checkpoint-2", "checkpoint-8"]
    assert (tmp_path / "checkpoint-4-good").is_dir()


SETTINGS: dict[str, Any] = {"max_steps": 3, "save_strategy": "steps", "save_steps": 100}
SETTINGS |= {"shuffle_dataset": True, "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[float]]:
    with make_real_trainer(tmp_path_factory.mktemp("whole"), **SETTINGS) as trainer:
        trainer.train()
    return trainer.model.state_dict(), rewards(Path(trainer.args.output_dir))


def rewards(folder: Path) -> list[float]:
    return [entry["reward"] for entry in read_metrics(folder / METRICS_FILE) if "reward" in entry]


def spend_budget(trainer: MemoryGRPOTrainer) -> None:
    error = BudgetSpentError("call_budget is spent: 7 calls are recorded. Give more.")
    fail(trainer, trainer.backend, "rollout", 2, error)


def lose_servers(trainer: MemoryGRPOTrainer) -> None:
    fail(trainer, trainer.runner.agent.policy, "complete", 2, OutageError("no server answers"))


def diverge(trainer: MemoryGRPOTrainer) -> None:
    trainer.model.lm_head.weight.register_hook(
        lambda gradient: gradient * float("nan") if trainer.state.global_step == 2 else gradient
    )


def fill_disk(trainer: MemoryGRPOTrainer) -> None:
    """Let the checkpoint of the third update have its weights written, but not its optimizer."""
    trainer.args.save_steps = trainer.state.save_steps = 2
    fail(trainer, trainer, "_save_optimizer_and_scheduler", 3, OSError("No space left on device"))


def exhaust_memory(trainer: MemoryGRPOTrainer) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    fail(trainer, trainer._update, "_backward", 2, error)


ENDINGS: dict[str, tuple[Callable[[MemoryGRPOTrainer], None], type[Exception], str]] = {
    "spent budget": (spend_budget, RolloutFailedError, "update 3 cannot .* call_budget is spent"),
    "outage": (lose_servers, RolloutFailedError, r"8 of 8 .* update 3 failed.*no server answers"),
    "NaN": (diverge, DivergedError, "gradient norm of update 3 is nan"),
    "out of memory": (exhaust_memory, MemoryFault, "out of memory .* Lower token_budget"),
    "full disk": (fill_disk, CheckpointError, "of update 3 could not be written: No space left"),
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_run_that_ends_early_resumes_from_the_last_update(tmp_path, whole, ending):
    """All of them in the third update: the second one is saved, and the run resumes bit for bit."""
    arrange, error, message = ENDINGS[ending]
    before = signal.getsignal(signal.SIGTERM)
    with make_real_trainer(tmp_path, **SETTINGS) as trainer:
        arrange(trainer)
        with pytest.raises(error, match=rf"{message}.*--resume"):
            trainer.train()
    assert signal.getsignal(signal.SIGTERM) is before
    assert names(tmp_path) == ["checkpoint-2"]
    assert not (tmp_path / PARTIAL).exists()
    (weights,) = (tmp_path / "checkpoint-2").glob("*.safetensors")
    assert weights.stat().st_mode == (tmp_path / METRICS_FILE).stat().st_mode  # others may read it
    with (tmp_path / METRICS_FILE).open("a") as file:
        file.write('{"step": 3, "lo')  # killed while it wrote
    assert rewards(tmp_path)[:2] == whole[1][:2]
    # Other weights: everything has to come from the checkpoint.
    with make_real_trainer(tmp_path, make_action_model(seed=9), **SETTINGS) as resumed:
        resumed.train(resume_from_checkpoint=str(last_checkpoint(tmp_path)))
    for name, expected in whole[0].items():
        assert torch.equal(resumed.model.state_dict()[name], expected), name
    assert rewards(tmp_path) == whole[1]


@pytest.mark.slow
def test_finished_run_resumed_trains_no_more(tmp_path, capsys):
    """In the middle of an epoch transformers would make one more update."""
    settings = {**SETTINGS, "max_steps": 2, "save_steps": 2, "logging_steps": 2}
    for checkpoint, sampled in ((None, 16), (True, 0)):
        config = make_config(tmp_path, **settings)
        trainer, _, runner = make_trainer(make_model(), config, mixed_episode, tasks=6)
        use_console(trainer, GRPO_COLUMNS)
        trainer.train(resume_from_checkpoint=checkpoint)
        assert (trainer.state.global_step, len(runner.jobs)) == (2, sampled)
        assert (tmp_path / METRICS_FILE).read_text().count("train_loss") == 1
        assert trainer.state.log_history[0]["num_tokens"] == trainer.state.num_input_tokens_seen > 0
    assert "nothing left to do: 2 of 2 updates" in capsys.readouterr().out


@pytest.mark.slow
def test_longer_run_goes_on_at_the_rate_of_its_schedule(tmp_path):
    """transformers made the first further update at the old end's rate, 0."""
    rates = []
    for steps, checkpoint in ((2, None), (4, str(tmp_path / "checkpoint-2"))):
        settings = {**SETTINGS, "max_steps": steps, "save_steps": 2}
        config = make_config(tmp_path, lr_scheduler_type="linear", **settings)
        trainer, _, _ = make_trainer(make_model(), config, mixed_episode, tasks=6)
        use_console(trainer, GRPO_COLUMNS)

        def note(trainer: Any = trainer) -> None:
            rates.append(trainer.optimizer.param_groups[0]["lr"])

        for update in range(4):
            trainer.add_callback(at("on_step_begin", update, note))
        trainer.train(resume_from_checkpoint=checkpoint)
    assert rates == pytest.approx([1e-2, 5e-3, 5e-3, 2.5e-3])
    logged = read_metrics(tmp_path / METRICS_FILE)
    assert [entry["learning_rate"] for entry in logged if "loss" in entry] == pytest.approx(rates)


def ask_twice() -> None:
    stop_request.SAME_REQUEST_SECONDS = 0.0
    with StopRequest().installed():
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
            print(number, flush=True)
            signal.raise_signal(number)


def test_stop_request_second_signal_ends_the_process(capfd):
    """SIGUSR1 never ends a process that is saving."""
    process = multiprocessing.get_context("fork").Process(target=ask_twice)
    process.start()
    process.join(10)
    assert process.exitcode == -signal.SIGTERM
    assert capfd.readouterr().out.split() == ["15", "10", "15"]


def logged_updates(out: Path) -> int:
    file = out / METRICS_FILE
    return sum("loss" in entry for entry in read_metrics(file)) if file.is_file() else 0


@pytest.mark.slow
def test_two_processes_of_the_shipped_launcher_stop_together(tmp_path):
    model, data = save_model(tmp_path), tmp_path / "tasks.jsonl"
    save_tasks(make_tasks(), data)
    flags = f"""--model_name_or_path {model} --data {data} --seed 3 --learning_rate 1e-2
        --per_device_train_batch_size 6 --num_generations 6 --save_steps 2 --max_steps 40
        --use_cpu --report_to none --disable_tqdm true --dataloader_pin_memory false
        --eval_data {data} --eval_strategy steps --eval_steps 2 --resume""".split()
    out, launcher = tmp_path / "out", str(ROOT / "configs" / "accelerate" / "ddp.yaml")
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", launcher]
    command += ["--num_processes", "2", "--mixed_precision", "no", "--main_process_port", "0", "-m"]
    command += ["atommem.train.train_cli", "grpo", *flags, "--output_dir", str(out)]
    streams: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), **streams) as process:
        until(lambda: logged_updates(out) >= 3, 240)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[1]), signal.SIGTERM)
        _, error = process.communicate(timeout=180)
    assert error.count("--resume continues from the last checkpoint") >= 2, error[-3000:]
    evaluations = [entry for entry in read_metrics(out / METRICS_FILE) if "eval_em" in entry]
    assert {(entry["eval_n"], entry["eval_episodes"]) for entry in evaluations} == {(6, 6.0)}
    assert last_checkpoint(out) == out / f"checkpoint-{logged_updates(out)}"

"""``atommem train async`` from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from atommem.config import load_config, save_config
from atommem.envs.task_files import save_tasks
from atommem.errors import ConfigError
from atommem.train.train_cli import main, parse_async
from tests.train.loops.asynchronous.test_async_trainer import metrics, save_model
from tests.train.loops.test_end_to_end import SETTINGS, make_tasks

MINIMUM = ["--model_name_or_path", "some/model", "--data", "tasks.parquet", "--use_cpu"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--auto_find_batch_size", "true"], "auto_find_batch_size is True: only False"),
        (["--lora_dropout", "0.1"], "lora_dropout is 0.1: only 0.0"),
        (["--attn_implementation", "sdpa"], "attn_implementation is 'sdpa': only None"),
        (["--log_episodes_steps", "0"], "log_episodes_steps"),
        (["--max_failed_fraction", "2"], "max_failed_fraction is 2.0"),
        (["--beta", "-0.1"], "beta is -0.1: give 0"),
    ],
)
def test_values_that_cannot_be_honoured_are_refused(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_async([*MINIMUM, *flags])


def test_an_adapter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="is a peft adapter: merge it"):
        main(["async", "--model_name_or_path", str(tmp_path), "--data", "x", "--use_cpu"])


@pytest.mark.slow
def test_trains_saves_and_resumes(tmp_path: Path) -> None:
    model, data, out = save_model(tmp_path), tmp_path / "tasks.parquet", tmp_path / "out"
    save_config(model, *SETTINGS)
    save_tasks(make_tasks(), data)
    command = ["async", "--model_name_or_path", str(model), "--data", str(data), "--output_dir", str(out), "--use_cpu"]
    command += ["--num_generations", "4", "--per_device_train_batch_size", "8", "--learning_rate", "1e-2"]
    command += ["--save_steps", "1", "--save_total_limit", "2", "--report_to", "none", "--disable_tqdm", "true"]
    assert main([*command, "--max_steps", "2", "--save_traces", "true"]) == 0
    assert load_config(out)["templates"] == "compact"
    assert (out / "model.safetensors").is_file()
    assert len(list((out / "traces" / "step-1").iterdir())) == 8
    assert main([*command, "--max_steps", "3", "--resume_from_checkpoint", "true"]) == 0
    assert [entry["step"] for entry in metrics(out)] == [1, 2, 3]

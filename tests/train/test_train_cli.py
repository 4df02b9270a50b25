"""``atommem train`` from the command line: settings, refusals, and both stages on a tiny model."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from atommem.config import load_config
from atommem.envs.task_files import save_tasks
from atommem.errors import ConfigError
from atommem.train.console import METRICS_FILE, read_metrics
from atommem.train.settings import parse
from atommem.train.train_cli import main
from tests.train.harness import make_tasks, save_model

MINIMUM = ["--model_name_or_path", "some/model", "--data", "tasks.parquet", "--use_cpu"]


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    return save_model(tmp_path)


def test_train_without_arguments_prints_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "atommem train [grpo|sft|async]" in capsys.readouterr().out
    assert main([]) == 2
    with pytest.raises(ConfigError, match=r"dpo: unknown stage\. Give one of grpo, sft, async"):
        main(["dpo"])


REFUSED_VALUES = [
    ("grpo", "--lerning_rate=1", r"unknown setting \(did you mean learning_rate\?\)"),
    ("grpo", "--gradient_accumulation_steps 4", "gradient_accumulation_steps=4: only 1"),
    ("grpo", "--loss_type cispo", "epsilon_high=0.28: with loss_type=cispo"),
    ("async", "--max_staleness -1", "max_staleness=-1: must be at least 0"),
    ("sft", "--packing true", "packing=True: only False"),
]


@pytest.mark.parametrize(("stage", "flags", "message"), REFUSED_VALUES)
def test_parse_value_that_cannot_be_honoured_is_refused(
    stage: str, flags: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(stage, [*MINIMUM, *flags.split(" ")])


@pytest.mark.slow
def test_train_model_that_a_stage_cannot_train_is_refused(tmp_path: Path) -> None:
    save_tasks(make_tasks(), tmp_path / "tasks.jsonl")
    (tmp_path / "config.json").write_text("{}")
    flags = f"--model_name_or_path {tmp_path} --data {tmp_path / 'tasks.jsonl'} --use_cpu".split()
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"this is an adapter\. Merge it"):
        main(["async", *flags])


def test_parse_flags_override_the_file_and_the_model_folder(
    model_folder: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"retrieve_k: 3\nscratchpad_tokens: 9\nmodel_name_or_path: {model_folder}\n")
    flags = f"--data x --use_cpu --config {config} --retrieve_k 5 --use_peft --lora_r 4"
    found = parse("grpo", flags.split())
    assert (found.model.use_peft, found.model.lora_r) == (True, 4)
    sources = [found.sources[name] for name in ("retrieve_k", "templates", "learning_rate")]
    assert sources == ["flag", "model folder", "default"]
    memory = found.run.memory
    assert found.args.max_completion_length == 4
    assert (memory.templates, memory.retrieve_k, memory.scratchpad_tokens) == ("compact", 5, 9)


def train(folder: Path, stage: str, flags: str) -> None:
    """Run a stage on the tasks and the model of `folder`."""
    common = "--data tasks.jsonl --use_cpu --report_to none --disable_tqdm true --seed 3"
    group = "" if stage == "sft" else "--per_device_train_batch_size 12 --num_generations 6"
    save_tasks(make_tasks(), folder / "tasks.jsonl")
    with contextlib.chdir(folder):
        assert main([stage, *f"{common} {group} {flags}".split()]) == 0


@pytest.mark.slow
def test_train_grpo_then_sft_on_its_traces_then_grpo_resumed(
    model_folder: Path, tmp_path: Path
) -> None:
    """GRPO with traces, then a cold start from these traces, then GRPO from that, resumed."""
    first = "--model_name_or_path model --output_dir first --max_steps 2 --save_traces true"
    train(tmp_path, "grpo", first)
    assert len(list((tmp_path / "first" / "traces").rglob("*.jsonl"))) == 24

    second = "--model_name_or_path first --output_dir cold --data first --max_steps 2"
    train(tmp_path, "sft", second)
    assert load_config(tmp_path / "cold")["retrieve_k"] == 2

    last = "--model_name_or_path cold --output_dir last --save_steps 1"
    train(tmp_path, "grpo", f"{last} --max_steps 1")
    train(tmp_path, "grpo", f"{last} --max_steps 2 --resume_from_checkpoint true")
    assert (tmp_path / "last" / "checkpoint-2" / "atommem_config.json").is_file()
    assert "atommem serve --policy last" in (tmp_path / "last" / "README.md").read_text()
    logged = read_metrics(tmp_path / "last" / METRICS_FILE)
    assert [entry["step"] for entry in logged if "reward" in entry] == [1, 2]


@pytest.mark.slow
def test_train_async_saves_the_model_and_traces(model_folder: Path, tmp_path: Path) -> None:
    flags = "--model_name_or_path model --output_dir out --max_steps 1 --save_traces true"
    train(tmp_path, "async", flags)
    assert load_config(tmp_path / "out")["templates"] == "compact"
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert len(list((tmp_path / "out" / "traces" / "step-1").iterdir())) == 12

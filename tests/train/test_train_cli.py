"""``atommem train`` from the command line: settings, refusals, and both stages on a tiny model."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch

from atommem.config import load_config
from atommem.envs.task_files import save_tasks
from atommem.errors import ConfigError
from atommem.train.logs.console import METRICS_FILE, read_metrics
from atommem.train.settings import parse
from atommem.train.stages import launcher_warning
from atommem.train.train_cli import main
from atommem.train.train_config import ColdStartConfig, TrainConfig
from tests.train.loops.test_end_to_end import make_tasks, save_model

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


def test_help_shows_our_settings_and_help_all_those_of_trl(
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = []
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            parse("grpo", [flag])
        texts.append(capsys.readouterr().out)
    short, whole = texts
    assert "--retrieve_k K" in short
    assert "--weight_decay" not in short
    assert "--weight_decay" in whole
    assert whole.index("--retrieve_k") < whole.index("--weight_decay")
    assert max(map(len, short.splitlines())) <= 80


def test_parse_every_config_has_flags() -> None:
    flags = "--capacity 20 --embedder hashing --chunk_tokens 500 --use_peft --lora_r 4"
    found = parse("grpo", [*MINIMUM, *flags.split()])
    assert isinstance(found.args, TrainConfig)
    assert (found.args.data, found.run.memory.capacity) == ("tasks.parquet", 20)
    assert found.run.embedder.embedder == "hashing"
    assert found.run.environment.chunk_tokens == 500  # type: ignore[attr-defined]
    assert (found.model.use_peft, found.model.lora_r) == (True, 4)
    assert found.sources["capacity"] == "flag"
    assert found.sources["retrieve_k"] == "default"
    assert isinstance(parse("sft", MINIMUM).args, ColdStartConfig)


@pytest.mark.parametrize("missing", ["data", "model_name_or_path"])
def test_parse_without_a_required_setting_is_refused(missing: str) -> None:
    given = {"data": "model_name_or_path", "model_name_or_path": "data"}[missing]
    with pytest.raises(ConfigError, match=f"--{missing} is missing"):
        parse("grpo", [f"--{given}", "x", "--use_cpu"])


GROUPS = ["--num_generations", "4", "--per_device_train_batch_size", "8"]
REFUSED_VALUES = [
    ("grpo", "--lr=1", r"--lr=1: unknown setting \(did you mean learning_rate\?\)"),
    ("grpo", "--learning_rate abc", "learning_rate=abc: give a finite number"),
    ("grpo", "--gradient_accumulation_steps 4", "gradient_accumulation_steps=4: only 1"),
    ("grpo", "--top_p 0.9", "top_p=0.9: only 1.0"),
    ("grpo", "--loss_type bnpo", "loss_type=bnpo: unknown. Give one of dapo, grpo, dr_grpo"),
    ("grpo", "--loss_type cispo", "epsilon_high=0.28: with loss_type=cispo"),
    ("grpo", "--per_device_train_batch_size 7", "divisible by num_generations"),
    ("grpo", "--chat_template_kwargs x", "chat_template_kwargs=x: give a JSON object"),
    ("grpo", "--rerolls 2 --carried_groups 1", "rerolls=2: needs steps_per_generation=1"),
    ("grpo", "--credit steps --scale_rewards group", "scale_rewards=group"),
    ("grpo", "--eval_data x", "eval_strategy=no, eval_data=x"),
    ("grpo", "--use_vllm --vllm_tensor_parallel_size 2", "colocated vLLM runs with 1"),
    ("grpo", '--use_vllm --vllm_engine_kwargs {"model":9}', "model cannot be set"),
    ("async", "--auto_find_batch_size true", "auto_find_batch_size=True: only False"),
    ("async", "--lora_dropout 0.1", "lora_dropout=0.1: only 0.0"),
    ("async", "--max_staleness -1", "max_staleness=-1: must be at least 0"),
    ("sft", "--packing true", "packing=True: only False"),
    ("grpo", "--hub_strategy every_save", "hub_strategy=.*: only end"),
]


@pytest.mark.parametrize(("stage", "flags", "message"), REFUSED_VALUES)
def test_parse_value_that_cannot_be_honoured_is_refused(
    stage: str, flags: str, message: str
) -> None:
    groups = [] if stage == "sft" else GROUPS
    with pytest.raises(ConfigError, match=message):
        parse(stage, [*MINIMUM, *groups, *flags.split()])


def test_loss_type_sets_the_normalization() -> None:
    def normalization(*flags: str) -> str:
        return str(parse("grpo", [*MINIMUM, *flags]).args.normalization)

    expected = {"dapo": "token", "grpo": "step", "dr_grpo": "constant", "cispo": "token"}
    assert {
        kind: normalization("--loss_type", kind, "--epsilon_high", "5") for kind in expected
    } == expected
    assert normalization("--loss_type", "grpo", "--normalization", "trajectory") == "trajectory"


def test_launcher_warning_of_short_shutdown_and_signals() -> None:
    signals = {
        "TORCHELASTIC_RUN_ID": "x",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    }
    assert "kills its processes 30 s after SIGTERM" in (launcher_warning(signals) or "")
    signals["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGTERM,SIGINT,SIGUSR1"
    assert "30 s" in (launcher_warning(signals) or "")
    for name in ("PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"):
        assert launcher_warning({**signals, name: "600"}) is launcher_warning({}) is None


def test_models_that_a_stage_cannot_train_are_refused(tmp_path: Path) -> None:
    save_tasks(make_tasks(), tmp_path / "tasks.jsonl")
    (tmp_path / "config.json").write_text("{}")
    flags = [
        "--model_name_or_path",
        str(tmp_path),
        "--data",
        str(tmp_path / "tasks.jsonl"),
        "--use_cpu",
    ]
    with pytest.raises(ConfigError, match="no tokenizer could be loaded"):
        main(flags)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"this is an adapter\. Merge it"):
        main(["async", *flags])


def test_gpu_settings_are_off_without_a_gpu() -> None:
    for args in (parse("grpo", MINIMUM).args, parse("sft", MINIMUM).args):
        assert args.bf16 is torch.cuda.is_available()
        assert args.gradient_checkpointing is torch.cuda.is_available()
    assert (
        parse("grpo", [*MINIMUM, "--gradient_checkpointing", "true"]).args.gradient_checkpointing
        is True
    )


def test_flags_override_the_file_and_the_model_folder(model_folder: Path, tmp_path: Path) -> None:
    base = ["--data", "x", "--use_cpu", "--model_name_or_path", str(model_folder)]
    found = parse("grpo", base)
    args, memory = found.args, found.run.memory
    assert (memory.templates, memory.retrieve_k, args.max_completion_length) == ("compact", 2, 4)
    config = tmp_path / "config.yaml"
    config.write_text(f"retrieve_k: 3\nscratchpad_tokens: 9\nmodel_name_or_path: {model_folder}\n")
    flags = ["--data", "x", "--use_cpu", "--config", str(config), "--retrieve_k", "5"]
    memory = parse("grpo", flags).run.memory
    assert (memory.templates, memory.retrieve_k, memory.scratchpad_tokens) == ("compact", 5, 9)


def test_chat_template_arguments_are_kept_with_the_model(tmp_path: Path) -> None:
    args = parse("grpo", [*MINIMUM, "--chat_template_kwargs", '{"enable_thinking": false}']).args
    assert args.template_kwargs == {"enable_thinking": False}
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "atommem_config.json").write_text(
        '{"chat_template_kwargs": {"enable_thinking": false}}'
    )
    args = parse("sft", ["--data", "x", "--use_cpu", "--model_name_or_path", str(tmp_path)]).args
    assert args.template_kwargs == {"enable_thinking": False}


def train(folder: Path, stage: str, flags: str) -> None:
    """Run a stage on the tasks and the model of `folder`."""
    common = "--data tasks.jsonl --use_cpu --report_to none --disable_tqdm true --seed 3"
    group = "" if stage == "sft" else "--per_device_train_batch_size 12 --num_generations 6"
    save_tasks(make_tasks(), folder / "tasks.jsonl")
    with contextlib.chdir(folder):
        assert main([stage, *f"{common} {group} {flags}".split()]) == 0


@pytest.mark.slow
def test_grpo_sft_and_resumed_grpo(model_folder: Path, tmp_path: Path) -> None:
    """GRPO with traces, then a cold start from these traces, then GRPO from that, resumed."""
    first = "--model_name_or_path model --output_dir first --max_steps 2 --save_traces true"
    train(tmp_path, "grpo", first)
    assert len(list((tmp_path / "first" / "traces").rglob("*.jsonl"))) == 24

    train(
        tmp_path, "sft", "--model_name_or_path first --output_dir cold --data first --max_steps 2"
    )
    assert load_config(tmp_path / "cold")["retrieve_k"] == 2

    last = "--model_name_or_path cold --output_dir last --save_steps 1"
    train(tmp_path, "grpo", f"{last} --max_steps 1")
    train(tmp_path, "grpo", f"{last} --max_steps 2 --resume_from_checkpoint true")
    assert (tmp_path / "last" / "checkpoint-2" / "atommem_config.json").is_file()
    assert "atommem serve --policy last" in (tmp_path / "last" / "README.md").read_text()
    assert load_config(tmp_path / "last")["max_tokens"] == 4
    logged = read_metrics(tmp_path / "last" / METRICS_FILE)
    assert [entry["step"] for entry in logged if "reward" in entry] == [1, 2]


@pytest.mark.slow
def test_adapter_is_trained_further(model_folder: Path, tmp_path: Path) -> None:
    common = "--max_steps 1 --learning_rate 1e-2 --beta 0.01"
    lora = f"{common} --use_peft --lora_r 2 --lora_target_modules q_proj v_proj"
    train(tmp_path, "grpo", f"{lora} --model_name_or_path model --output_dir adapter")
    with pytest.raises(ConfigError, match="is an adapter already"):
        train(tmp_path, "grpo", f"{lora} --model_name_or_path adapter --output_dir again")
    train(tmp_path, "grpo", f"{common} --model_name_or_path adapter --output_dir again")
    assert (tmp_path / "again" / "adapter_config.json").is_file()
    assert (tmp_path / "again" / "atommem_config.json").is_file()


@pytest.mark.slow
def test_async_saves_and_resumes(model_folder: Path, tmp_path: Path) -> None:
    flags = "--model_name_or_path model --output_dir out --learning_rate 1e-2 --save_steps 1"
    train(tmp_path, "async", f"{flags} --max_steps 2 --save_traces true")
    out = tmp_path / "out"
    assert load_config(out)["templates"] == "compact"
    assert (out / "model.safetensors").is_file()
    assert len(list((out / "traces" / "step-1").iterdir())) == 12
    train(tmp_path, "async", f"{flags} --max_steps 3 --resume_from_checkpoint true")
    assert [entry["step"] for entry in read_metrics(out / METRICS_FILE) if "loss" in entry] == [
        1,
        2,
        3,
    ]

"""``atommem train`` from the command line: settings, refusals, and both stages on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atommem.config import load_config, save_config
from atommem.envs.task_files import save_tasks
from atommem.errors import ConfigError
from atommem.train.async_config import AsyncTrainConfig
from atommem.train.loops.launch import launcher_problem
from atommem.train.train_cli import main, parse_grpo, parse_sft
from atommem.train.train_config import ColdStartConfig, TrainConfig
from tests.train.loops.test_end_to_end import SETTINGS, make_element_tokenizer, make_tasks
from tests.train.toys import make_model

MINIMUM = ["--model_name_or_path", "some/model", "--data", "tasks.parquet", "--use_cpu"]


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A tiny model with its tokenizer and the memory settings that it was cold-started with."""
    tokenizer = make_element_tokenizer()
    folder = tmp_path / "model"
    make_model(vocabulary=len(tokenizer), spread=0.1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_config(folder, *SETTINGS)
    return folder


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "atommem train [grpo|sft|async]" in capsys.readouterr().out
    assert main([]) == 2


def test_unknown_stage() -> None:
    with pytest.raises(ConfigError, match="unknown stage 'dpo': give one of grpo, sft, async"):
        main(["dpo"])


def test_fields_of_all_configs_are_flags() -> None:
    args, memory, embedder, environment, model = parse_grpo(
        [*MINIMUM, "--capacity", "20", "--embedder", "hashing", "--chunk_tokens", "500", "--use_peft", "--lora_r", "4"]
    )
    assert isinstance(args, TrainConfig)
    assert (args.data, memory.capacity) == ("tasks.parquet", 20)
    assert (embedder.embedder, environment.chunk_tokens) == ("hashing", 500)
    assert (model.model_name_or_path, model.use_peft, model.lora_r) == ("some/model", True, 4)
    assert isinstance(parse_sft(MINIMUM)[0], ColdStartConfig)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="data is not set"):
        parse_grpo(["--model_name_or_path", "x", "--use_cpu"])
    with pytest.raises(ConfigError, match="model_name_or_path is not set"):
        parse_grpo(["--data", "x", "--use_cpu"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lerning_rate", "1"], r"lerning_rate 1 is not understood \(did you mean --learning_rate\?\)"),
        (["--learning_rate", "abc"], "--learning_rate is 'abc': give a number"),
        (["--config", "nowhere.yaml"], r"nowhere\.yaml"),
        (["--gradient_accumulation_steps", "4"], "gradient_accumulation_steps is 4: only 1"),
        (["--num_iterations", "0"], "num_iterations 0: give at least 1"),
        (["--loss_type", "bnpo"], "loss_type is 'bnpo': give one of dapo, grpo, dr_grpo, cispo"),
        (["--loss_type", "cispo"], "epsilon_high is 0.28: with loss_type cispo it is the largest"),
        (["--importance_sampling_level", "word"], "importance_sampling_level is 'word': give one of token, sequence"),
        (["--fp16", "true"], "fp16 is True: only False"),
        (["--neftune_noise_alpha", "5"], r"neftune_noise_alpha is 5.0: only None"),
        (["--vllm_mode", "remote"], "vllm_mode is 'remote': give one of server, colocate"),
        (["--use_vllm", "true", "--vllm_tensor_parallel_size", "2"], "tensor parallel size is 2: a colocated"),
        (["--episode_max_seconds", "0"], "episode_max_seconds is 0"),
        (["--top_p", "0.9"], "top_p is 0.9: only 1.0"),
        (["--normalization", "word"], "normalization is 'word': give one of token, step, trajectory, constant"),
        (["--num_generations", "1"], "num_generations is 1: a group needs at least 2"),
        (["--temperature", "0"], "temperature is 0 or less"),
        (["--per_device_train_batch_size", "0"], "per_device_train_batch_size is 0"),
        (["--per_device_train_batch_size", "7"], "divisible by num_generations"),
        (["--router_aux_loss_coef", "0.1"], "router_aux_loss_coef is 0.1: only 0"),
        (["--micro_batch_tokens", "0"], "micro_batch_tokens is 0: give at least 1"),
        (["--chat_template_kwargs", "no object"], "chat_template_kwargs is 'no object': give a JSON object"),
        (["--capacity", "0"], "capacity is 0"),
    ],
)
def test_values_that_cannot_be_honoured_are_refused(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_grpo([*MINIMUM, *flags])


def test_a_loss_brings_its_normalization() -> None:
    def normalization(*flags: str) -> str:
        return str(parse_grpo([*MINIMUM, *flags])[0].normalization)

    assert normalization() == "token"
    assert normalization("--loss_type", "grpo") == "step"
    assert normalization("--loss_type", "dr_grpo") == "constant"
    assert normalization("--loss_type", "cispo", "--epsilon_high", "5") == "token"
    assert normalization("--loss_type", "grpo", "--normalization", "trajectory") == "trajectory"


def test_processes_wait_for_the_longest_episode() -> None:
    """29 steps of 4,096 tokens, the most of qwen3_8b_hotpotqa, take 31 minutes at the dry run's 64 tokens a second. By
    transformers' default the processes that wait for it would have ended the run after 30."""
    longest = 29 * 4096 / 64
    for config in (parse_grpo(["--data", "t", "--model_name_or_path", "m"])[0], AsyncTrainConfig()):
        assert config.ddp_timeout > 2 * longest


def test_a_launcher_that_would_not_let_a_run_save_is_named() -> None:
    signals = {"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT"}
    assert launcher_problem({}) is None
    assert "kills its processes 30 s after SIGTERM" in (launcher_problem(signals) or "")
    signals["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGTERM,SIGINT,SIGUSR1"
    assert "30 s" in (launcher_problem(signals) or "")
    assert launcher_problem({**signals, "PET_SHUTDOWN_TIMEOUT": "600"}) is None
    assert launcher_problem({**signals, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "600"}) is None


def test_packing_is_refused_in_the_cold_start() -> None:
    with pytest.raises(ConfigError, match="packing is True: only False"):
        parse_sft([*MINIMUM, "--packing", "true"])


def test_without_a_gpu_what_only_helps_gpus_is_off() -> None:
    import torch

    for args in (parse_grpo(MINIMUM)[0], parse_sft(MINIMUM)[0]):
        assert args.bf16 is torch.cuda.is_available()
        assert args.gradient_checkpointing is torch.cuda.is_available()
    assert parse_grpo([*MINIMUM, "--gradient_checkpointing", "true"])[0].gradient_checkpointing is True


def test_a_flag_wins_over_the_file_and_that_over_the_model_folder(model_folder: Path, tmp_path: Path) -> None:
    base = ["--data", "x", "--use_cpu", "--model_name_or_path", str(model_folder)]
    args, memory, *_ = parse_grpo(base)
    assert (memory.templates, memory.retrieve_k, args.max_completion_length) == ("compact", 2, 4)
    config = tmp_path / "config.yaml"
    config.write_text(f"retrieve_k: 3\nscratchpad_tokens: 9\nmodel_name_or_path: {model_folder}\n")
    _, memory, *_ = parse_grpo(["--data", "x", "--use_cpu", "--config", str(config), "--retrieve_k", "5"])
    assert (memory.templates, memory.retrieve_k, memory.scratchpad_tokens) == ("compact", 5, 9)


def test_chat_template_arguments_are_kept_with_the_model(tmp_path: Path) -> None:
    args = parse_grpo([*MINIMUM, "--chat_template_kwargs", '{"enable_thinking": false}'])[0]
    assert args.template_kwargs == {"enable_thinking": False}
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "atommem_config.json").write_text('{"chat_template_kwargs": {"enable_thinking": false}}')
    args = parse_sft(["--data", "x", "--use_cpu", "--model_name_or_path", str(tmp_path)])[0]
    assert args.template_kwargs == {"enable_thinking": False}


@pytest.mark.slow
def test_no_model_is_named(tmp_path: Path) -> None:
    save_tasks(make_tasks(), tmp_path / "tasks.jsonl")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="no tokenizer could be loaded from"):
        main(["--model_name_or_path", str(tmp_path), "--data", str(tmp_path / "tasks.jsonl"), "--use_cpu"])


@pytest.mark.slow
def test_both_stages(model_folder: Path, tmp_path: Path) -> None:
    """GRPO with traces, then a cold start from these traces, then GRPO from that, resumed."""
    data = tmp_path / "tasks.jsonl"
    save_tasks(make_tasks(), data)
    common = ["--use_cpu", "--report_to", "none", "--disable_tqdm", "true", "--seed", "3"]
    grpo = ["--data", str(data), "--per_device_train_batch_size", "12", "--num_generations", "6", *common]
    first = ["--model_name_or_path", str(model_folder), "--output_dir", str(tmp_path / "first")]
    assert main(["grpo", *first, *grpo, "--max_steps", "2", "--save_traces", "true", "--learning_rate", "1e-3"]) == 0
    assert len(list((tmp_path / "first" / "traces").rglob("*.jsonl"))) == 24

    cold = ["--model_name_or_path", str(tmp_path / "first"), "--output_dir", str(tmp_path / "cold")]
    assert main(["sft", *cold, "--data", str(tmp_path / "first"), "--max_steps", "2", *common]) == 0
    assert load_config(tmp_path / "cold")["retrieve_k"] == 2

    last = ["--model_name_or_path", str(tmp_path / "cold"), "--output_dir", str(tmp_path / "last"), "--save_steps", "1"]
    assert main([*last, *grpo, "--max_steps", "1"]) == 0
    assert main([*last, *grpo, "--max_steps", "2", "--resume_from_checkpoint", "true"]) == 0
    assert (tmp_path / "last" / "checkpoint-2" / "atommem_config.json").is_file()
    card = (tmp_path / "last" / "checkpoint-2" / "README.md").read_text()
    assert "atommem serve --policy checkpoint-2" in card
    assert "2 of 2 updates" in card
    assert load_config(tmp_path / "last")["max_tokens"] == 4
    lines = (tmp_path / "last" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines if "reward" in json.loads(line)] == [1, 2]


@pytest.mark.slow
def test_an_adapter_goes_on_being_trained(model_folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "tasks.jsonl"
    save_tasks(make_tasks(), data)
    common = ["--use_cpu", "--data", str(data), "--per_device_train_batch_size", "12", "--num_generations", "6"]
    common += ["--max_steps", "1", "--learning_rate", "1e-2", "--disable_tqdm", "true", "--beta", "0.01"]
    adapter, again = tmp_path / "adapter", tmp_path / "again"
    lora = ["--use_peft", "--lora_r", "2", "--lora_target_modules", "q_proj", "v_proj"]
    assert main([*common, *lora, "--model_name_or_path", str(model_folder), "--output_dir", str(adapter)]) == 0
    with pytest.raises(ConfigError, match="is a peft adapter already"):
        main([*common, *lora, "--model_name_or_path", str(adapter), "--output_dir", str(again)])
    assert main([*common, "--model_name_or_path", str(adapter), "--output_dir", str(again)]) == 0
    assert (again / "adapter_config.json").is_file()
    assert (again / "atommem_config.json").is_file()

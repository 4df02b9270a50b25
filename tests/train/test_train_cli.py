"""``atommem train``: settings, refusals, the stages on a tiny model, and their logs."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import wandb
from peft import LoraConfig, get_peft_model
from torch.nn import Dropout
from transformers import AutoModelForCausalLM, TrainingArguments
from wandb.sdk.lib.noop_run import NoopRun

from atommem.config import SHIPPED, load_config
from atommem.envs.task_files import save_tasks
from atommem.errors import ConfigError, DataError
from atommem.files import load_beside
from atommem.train.console import METRICS_FILE, read_metrics
from atommem.train.episode_logs import COLUMNS
from atommem.train.loops.models import load_model, load_tokenizer, make_policy, model_arguments
from atommem.train.settings import parse
from atommem.train.stages import make_trainer, prepare_reporters
from atommem.train.train_cli import main
from tests.train.harness import make_config, make_tasks, save_model
from tests.train.toys import make_model, make_tokenizer

MINIMUM = ["--model_name_or_path", "some/model", "--data", "tasks.parquet", "--use_cpu"]
REFUSED = load_beside(__file__, "refused_settings.yaml")


@pytest.mark.parametrize(("stage", "flags", "message"), REFUSED)
def test_parse_value_that_cannot_be_honoured_is_refused(stage, flags, message):
    with pytest.raises(ConfigError, match=message):
        parse(stage, [*MINIMUM, *flags.split(" ")])


def test_one_of_several_visible_gpus_is_used(monkeypatch):
    """With more, transformers would wrap the model in `nn.DataParallel`, and TRL stop."""
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda _: 8))
    assert make_config("unused").n_gpu == 1


def test_parse_flags_override_the_file_and_the_model_folder(tmp_path):
    model, config = save_model(tmp_path), tmp_path / "config.yaml"
    config.write_text(f"retrieve_k: 3\nscratchpad_tokens: 9\nmodel_name_or_path: {model}\n")
    flags = f"--data x --use_cpu --config {config} --retrieve_k 5 --use_peft --lora_r 4"
    found = parse("grpo", flags.split())
    assert (found.model.use_peft, found.model.lora_r) == (True, 4)
    memory = found.run.memory
    assert found.args.max_completion_length == 4
    assert (memory.templates, memory.retrieve_k, memory.scratchpad_tokens) == ("compact", 5, 9)


@pytest.mark.parametrize(("flag", "shown"), [("--help", "[--resume]"), ("--help-all", "--top_k")])
def test_help_names_what_can_be_given(flag, shown, capsys):
    with pytest.raises(SystemExit):
        main(["grpo", flag])
    printed = capsys.readouterr().out
    assert (shown in printed) == (shown == "[--resume]")  # `top_k` would be refused
    assert "--learning_rate" in printed


def test_shipped_adapter_is_trained_by_its_name():
    found = parse("grpo", [*MINIMUM, "--model_name_or_path", SHIPPED])
    assert (Path(str(found.model.model_name_or_path)) / "adapter_config.json").is_file()
    assert found.run.memory.templates == "plain"


@pytest.mark.parametrize("given", [False, True])
def test_adapter_is_trained_on_its_base_or_the_given_one(tmp_path, given):
    base, adapter = save_model(tmp_path), tmp_path / "adapter"
    model = AutoModelForCausalLM.from_pretrained(base)
    trained = get_peft_model(model, LoraConfig(target_modules=["q_proj"]))
    trained.peft_config["default"].base_model_name_or_path = "/gone" if given else str(base)
    trained.save_pretrained(adapter)
    flags = [*MINIMUM, "--model_name_or_path", str(adapter)]
    found = parse("grpo", [*flags, "--base_model", str(base)] if given else flags)
    assert load_tokenizer(found.model).name_or_path == str(base)
    policy = model_arguments(found.model, found.args)["model"]
    assert policy.get_base_model().name_or_path == str(base)
    with pytest.raises((ConfigError, OSError), match=r"is an adapter|/gone"):
        load_model(str(adapter), found.args)
    found.model.base_model, found.model.model_name_or_path = "base", str(base)
    with pytest.raises(ConfigError, match="is not the folder of an adapter"):
        load_tokenizer(found.model)


@pytest.mark.parametrize("is_new", [True, False])
def test_an_adapter_is_trained_without_its_dropout(tmp_path, is_new):
    adapter, args = LoraConfig(lora_dropout=0.5, target_modules=["q_proj"]), make_config(tmp_path)
    model = make_model() if is_new else get_peft_model(make_model(), adapter)
    policy = make_policy(model, args, make_tokenizer(), adapter if is_new else None)
    dropouts = [module.p for module in policy.modules() if isinstance(module, Dropout)]
    assert {*dropouts} == {0.0}


def train(folder: Path, stage: str, flags: str) -> None:
    reports = "" if "--report_to" in flags else "--report_to none"
    common = f"--data tasks.jsonl --use_cpu {reports} --disable_tqdm true --seed 3"
    group = "" if stage == "sft" else "--per_device_train_batch_size 12 --num_generations 6"
    if not (folder / "model").exists():
        save_model(folder)
        save_tasks(make_tasks(), folder / "tasks.jsonl")
    with contextlib.chdir(folder):
        assert main([stage, *f"{common} {group} {flags}".split()]) == 0


@pytest.mark.slow
def test_train_grpo_then_sft_on_its_traces_then_grpo_resumed(tmp_path):
    first = "--model_name_or_path model --output_dir first --max_steps 2 --save_traces true"
    train(tmp_path, "grpo", first)
    assert len(list((tmp_path / "first" / "traces").rglob("*.jsonl"))) == 24

    second = "--model_name_or_path first --output_dir cold --data first --max_steps 2"
    train(tmp_path, "sft", second)
    train(tmp_path, "sft", f"{second} --resume")
    assert load_config(tmp_path / "cold")["retrieve_k"] == 2

    last = "--model_name_or_path cold --output_dir last --save_steps 1"
    train(tmp_path, "grpo", f"{last} --max_steps 1")
    resumed = f"{last} --max_steps 2 --resume_from_checkpoint true"
    save_tasks(make_tasks(7), tmp_path / "other.jsonl")
    changed = r"max_reads=7 \(was 0\), data_digest='\w+' \(was '\w+'\)"
    with pytest.raises(ConfigError, match=changed):
        train(tmp_path, "grpo", f"{resumed} --data other.jsonl --max_reads 7")
    train(tmp_path, "grpo", resumed)
    assert (tmp_path / "last" / "checkpoint-2" / "atommem_config.json").is_file()
    assert (tmp_path / "last" / "README.md").is_file()
    logged = read_metrics(tmp_path / "last" / METRICS_FILE)
    assert [entry["step"] for entry in logged if "reward" in entry] == [1, 2]


def double(task: Any, answers: list[str | None]) -> float:
    return 2.0 * (answers[0] in task.questions[0].answers)


@pytest.mark.slow
def test_make_trainer_with_tasks_and_a_reward_of_the_caller(tmp_path):
    settings = {"model_name_or_path": save_model(tmp_path), "output_dir": tmp_path / "out"}
    settings |= {"reward": double, "max_steps": 1, "report_to": "none", "use_cpu": True}
    settings |= {"per_device_train_batch_size": 12, "num_generations": 6}
    held: dict[str, Any] = {"held_out": make_tasks(3), "eval_strategy": "steps", "eval_steps": 1}
    with make_trainer(tasks=iter(make_tasks()), **held, **settings) as trainer:
        trainer.train()
        trainer.save_model(tmp_path / "copy")
        trainer.save_final()
    update, evaluation, _ = read_metrics(tmp_path / "out" / METRICS_FILE)
    assert 0 < update["em"] < 1
    assert update["reward"] == pytest.approx(2 * update["em"])
    assert evaluation["eval_reward"] == pytest.approx(2 * evaluation["eval_em"])
    assert {load_config(tmp_path / x)["reward"] for x in ("out", "copy")} == {f"{__name__}:double"}
    with pytest.raises(ConfigError, match="it holds the model to train"):
        make_trainer(tasks=make_tasks(), **{**settings, "model_name_or_path": tmp_path / "out"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": [1], "data": "file"}, "tasks, data: both"),
        ({"tasks": [1], "held_out": [1], "eval_data": "file"}, "held_out, eval_data: both"),
        ({"tasks": "file"}, "tasks: not tasks. Give data=FILE"),
        ({"tasks": [1], "reward": lambda task, answers: 1.0}, "a module's top level"),
        ({"tasks": [1], "callbacks": []}, "callbacks: of transformers' Trainer"),
        ({"tasks": [1], "held_out": [{"id": "a"}]}, "held_out: not tasks. Give eval_data=FILE"),
    ],
)
def test_make_trainer_refuses_what_are_no_tasks(settings, message):
    with pytest.raises(ConfigError, match=message):
        make_trainer(**settings)


@pytest.mark.slow
def test_train_async_saves_the_model_and_traces_and_resumes(tmp_path):
    flags = "--model_name_or_path model --output_dir out --save_traces true --max_steps"
    train(tmp_path, "async", f"{flags} 1")
    train(tmp_path, "async", f"{flags} 1 --resume")
    assert load_config(tmp_path / "out")["templates"] == "compact"
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert len(list((tmp_path / "out" / "traces" / "step-1").iterdir())) == 12


def test_wandb_run_of_a_resumed_run_is_continued(tmp_path):
    def run_id(*flags: str) -> str:
        reports = ["--report_to", "wandb", "--output_dir", str(tmp_path / "out")]
        with mock.patch.dict(os.environ):
            os.environ.pop("WANDB_RUN_ID", None)
            prepare_reporters(parse("grpo", [*MINIMUM, *reports, *flags]).args)
            assert os.environ["WANDB_RESUME"] == "allow"
            return os.environ["WANDB_RUN_ID"]

    first = run_id()
    assert run_id("--resume_from_checkpoint", "auto") == first
    assert run_id() != first


@pytest.mark.slow
@mock.patch.dict(os.environ, WANDB_MODE="disabled")
def test_wandb_gets_settings_rates_and_episodes(tmp_path, monkeypatch):
    logged: list[dict[str, Any]] = []
    monkeypatch.setattr(NoopRun, "log", lambda self, values, **options: logged.append(values))
    flags = "--model_name_or_path model --output_dir out --save_strategy no --max_steps 2"
    try:
        train(tmp_path, "grpo", f"{flags} --report_to wandb --run_name named --capacity 3")
        run: Any = wandb.run
        assert (run.project, run.name) == ("atommem", "named")
        settings = dict(run.config)
    finally:
        wandb.finish()
    assert (settings["dialect"], settings["capacity"]) == ("paper", 3)
    updates = [values for values in logged if "train/store_fill" in values]
    assert [values["train/global_step"] for values in updates] == [1, 2]
    (table,) = (values["episodes"] for values in logged if "episodes" in values)
    assert table.data[0][COLUMNS.index("task")].startswith("task-")


def test_plot_draws_several_runs(tmp_path):
    entry = {"reward": 0.5, "store_size": 1.0, "actions/create": 0.3, "loss": 0.0}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        lines = [json.dumps({"step": step, **entry}) for step in (1, 2)]
        (tmp_path / name / "metrics.jsonl").write_text("\n".join(lines))
    runs = [str(tmp_path / name) for name in ("a", "b")]
    assert main(["plot", *runs, "--out", str(tmp_path / "both.png")]) == 0
    assert main(["plot", runs[1]]) == 0
    one, both = (tmp_path / "b" / "training.png", tmp_path / "both.png")
    assert one.read_bytes() != both.read_bytes()
    with pytest.raises(DataError, match="there is no metrics"):
        main(["plot", *runs, str(tmp_path)])

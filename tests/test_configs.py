"""Shipped YAML files parse with the commands that take them, and every recipe passes a dry run."""

import json
import os
import shutil
import subprocess
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser

from atommem.arguments import load_yaml
from atommem.dialects import get_dialect, load_templates
from atommem.eval.eval_config import parse_arguments
from atommem.eval.reporting.report_cli import paper_tables
from atommem.eval.suite import expand, load_suite
from atommem.run import make_run, stored_settings
from atommem.train.dry_run.shapes import read_launch
from atommem.train.settings import parse
from atommem.train.train_cli import main
from tests.fakes import prompt_builder

CONFIGS = Path(__file__).parents[1] / "configs"
TRAIN = sorted((CONFIGS / "train").glob("*.yaml"))
EVAL = sorted((CONFIGS / "eval").glob("*.yaml"))
TEMPLATES = sorted((CONFIGS / "templates").glob("*.yaml"))
ENGINES = sorted((CONFIGS / "engines").glob("*.yaml"))
HOTPOTQA = str(CONFIGS / "train" / "qwen3_8b_hotpotqa.yaml")
LAUNCHERS = {
    "single_gpu": ("single", 1, 1),
    "ddp": ("ddp", 8, 1),
    "fsdp2": ("fsdp", 8, 1),
    "deepspeed_zero3": ("zero3", 8, 1),
    "multi_node": ("fsdp", 16, 2),
    "multi_node_ddp": ("ddp", 16, 2),
}


def stage_of(path: Path) -> str:
    return path.stem.split("_")[0] if path.stem.startswith(("sft", "async")) else "grpo"


@pytest.fixture(autouse=True)
def _other_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configs must find each other from any folder."""
    monkeypatch.chdir(tmp_path)


def test_configs_are_all_tested():
    launchers = [CONFIGS / "accelerate" / f"{name}.yaml" for name in LAUNCHERS]
    tested = [*launchers, *TRAIN, *EVAL, *TEMPLATES, *ENGINES]
    assert sorted(CONFIGS.rglob("*.yaml")) == sorted(tested)
    assert all(load_templates(str(path)).entry for path in TEMPLATES)
    notice = load_templates("advice").capacity_notice
    assert "Delete what" in notice, "appendix C of arXiv 2601.08323 encourages it"


@pytest.mark.slow
@pytest.mark.parametrize("path", TRAIN, ids=attrgetter("stem"))
def test_dry_run_of_recipe_passes(path, tmp_path, capsys):
    out, stage = tmp_path / "plan.json", stage_of(path)
    assert main([stage, "--config", str(path), "--dry_run", "--dry_run_json", str(out)]) == 0
    if stage == "sft":
        assert "all settings are valid" in capsys.readouterr().out
        return
    plan = json.loads(out.read_text())
    assert plan["memory"]["fits"]
    assert plan["hours"] > 0


@pytest.mark.parametrize("path", EVAL, ids=attrgetter("stem"))
def test_eval_config_is_read(path):
    if path.stem in ("paper", "smollm2"):
        words = ["--config", str(path), "--policy=p", "--data=d", "--output_dir=o"]
        found, paper = parse_arguments(words).to_flat(), paper_tables()["settings"]
        assert path.stem != "paper" or {name: found[name] for name in paper} == paper
    elif path.stem != "paper_tables":
        suite = load_suite(path)
        suite = suite.with_policies({row.policy: row.policy for row in suite.rows})
        runs, errors = expand(suite, ["--policy=p"], Path("out"))
        assert runs
        assert not errors


@pytest.mark.parametrize("path", TRAIN, ids=attrgetter("stem"))
def test_recipe_leaves_room_for_thoughts(path):
    settings = load_yaml(path, "train")
    if "Qwen3" in settings["model_name_or_path"]:
        quiet = settings.get("chat_template_kwargs") == {"enable_thinking": False}
        assert quiet or settings["max_completion_length"] >= 4096


@pytest.mark.parametrize("path", ENGINES, ids=attrgetter("stem"))
def test_episodes_of_engine_recipe_are_those_of_our_own(path):
    values = load_yaml(path, "engines")
    theirs = set(values) - {"skyrl", "verl"}
    run = make_run({name: values[name] for name in theirs}, stored_settings(None)).to_flat()
    own = settings_of("--config", HOTPOTQA)
    assert {name: run[name] for name in theirs} == {name: own[name] for name in theirs}


def settings_of(*flags: str) -> dict[str, Any]:
    found = parse("grpo", [*flags, "--use_cpu"])
    run = found.run
    configs = (found.args, run.memory, run.embedder, run.environment, found.model)
    return {item.name: getattr(config, item.name) for config in configs for item in fields(config)}


def test_recipe_of_the_paper_has_its_settings_and_takes_the_flags_of_the_docs():
    """arXiv 2601.08323, section 4.1; on the 8 processes of its launcher."""
    ablated = ["--capacity", "20", "--embedder", "random", "--disabled_actions", "read", "delete"]
    found = settings_of("--config", HOTPOTQA, *ablated)
    paper = {"num_generations": 16, "learning_rate": 1e-6, "beta": 0.001, "scale_rewards": "none"}
    paper |= {"epsilon": 0.2, "epsilon_high": 0.28, "temperature": 1.0, "retrieve_k": 6}
    paper |= {"chunk_tokens": 4000, "reward": "em", "layout": "prefix", "steps_per_generation": 1}
    paper |= {"capacity": 20, "embedder": "random", "disabled_actions": ["read", "delete"]}
    assert {name: found[name] for name in paper} == paper
    assert 8 * found["per_device_train_batch_size"] == 16 * found["num_generations"]
    web, table = settings_of("--config", "memagent_qwen3_8b_web"), paper_tables()["tables"]
    (row,) = [row for row in table["table1_web"]["rows"] if row["name"] == "MemAgent"]
    row_settings = {"dialect": "paper", "max_calls": 40, **row["settings"]}
    assert {name: web[name] for name in row_settings} == row_settings


@pytest.mark.parametrize("name", LAUNCHERS)
def test_accelerate_reads_launcher(name):
    kind, processes, machines = LAUNCHERS[name]
    path = CONFIGS / "accelerate" / f"{name}.yaml"
    config = load_config_from_file(str(path))
    assert (config.num_processes, config.num_machines) == (processes, machines)
    assert config.mixed_precision == "bf16"
    # The trainer checkpoints activations.
    assert not (config.fsdp_config or {}).get("fsdp_activation_checkpointing")
    launch = read_launch(str(path), None)
    assert (launch.name, launch.processes) == (kind, processes)


@pytest.mark.parametrize(("name", "nodes"), [("colocated", 2), ("servers", 3)])
def test_slurm_example_launches_valid_commands(tmp_path, name, nodes):
    for command in ("scontrol", "atommem", "ip", "srun", "vllm", "accelerate", "curl"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        shutil.copy(Path(__file__).with_name("slurm_stand_in.sh"), tmp_path / "bin" / command)
    variables = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HERE": str(tmp_path)}
    variables |= {"LAUNCHERS": str(CONFIGS / "accelerate"), "CARD": "ib0"}
    variables |= {"SLURM_JOB_NODELIST": "[a-c]", "SLURM_NNODES": str(nodes)}
    script = CONFIGS.parent / "examples" / "slurm" / f"{name}.sbatch"
    subprocess.run(["bash", str(script), "--max_steps", "5"], env=variables, check=True, timeout=60)
    words = (tmp_path / "accelerate").read_text().splitlines()
    launch = launch_command_parser().parse_args(words[1:])
    assert (launch.machine_rank, launch.num_machines, launch.main_process_ip) == (1, 2, "a")
    assert launch.num_processes == 16
    assert read_launch(launch.config_file, launch.num_processes).nodes == 2
    _, stage, *flags = launch.training_script_args
    flags.remove("--resume")
    args = parse(stage, [*flags, "--use_cpu"]).args
    assert args.per_device_train_batch_size == 16
    if name == "servers":
        assert len(args.vllm_server_urls) == 8
        assert (tmp_path / "vllm").read_text().startswith("10.0.0.7 serve Qwen/Qwen3-8B --port 80")


def test_examples_in_the_chatml_templates_parse():
    templates = str(CONFIGS / "templates" / "chatml_examples.yaml")
    system = prompt_builder(templates=templates).system
    turns = [turn.partition("\n") for turn in system.split("<|im_start|>")]
    parsed = [
        get_dialect("paper").grammar().parse(text) for role, _, text in turns if role == "assistant"
    ]
    kinds = [[str(action.kind) for action in one.actions] for one in parsed]
    assert kinds == [["create", "scratchpad", "read"], ["answer"]]
    assert all(not one.problems for one in parsed)

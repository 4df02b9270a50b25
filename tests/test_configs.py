"""Every YAML that the project ships is parsed by the command that takes it, and every recipe is run dry."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file

from atommem.dialects import get_dialect, load_templates
from atommem.eval.eval_cli import main as evaluate
from atommem.eval.eval_config import parse_arguments
from atommem.train.dry_run.shapes import read_launch
from atommem.train.settings import parse
from atommem.train.train_cli import main

ROOT = Path(__file__).parent.parent
ACCELERATE = sorted((ROOT / "configs" / "accelerate").glob("*.yaml"))
TRAIN = sorted((ROOT / "configs" / "train").glob("*.yaml"))
EVAL = [ROOT / "configs" / "eval" / name for name in ("paper.yaml", "smollm2.yaml")]
PUBLISHED = ROOT / "configs" / "eval" / "paper_tables.yaml"  # tests/eval/test_published.py
SUITES = sorted(
    path for path in (ROOT / "configs" / "eval").glob("*.yaml") if path not in (*EVAL, PUBLISHED)
)
TEMPLATES = sorted((ROOT / "configs" / "templates").glob("*.yaml"))
# Recipes of the paper's experiments: these fields, and where each data set lies, are all that they may differ in.
PAPER = [
    path for path in TRAIN if "qwen3_8b" in path.read_text() and "use_peft" not in path.read_text()
]
OTHERS = ("environment: web", "questions_shown")
PAPER = [path for path in PAPER if not any(word in path.read_text() for word in OTHERS)]
OWN = {
    "data",
    "output_dir",
    "capacity",
    "disabled_actions",
    "embedder",
    "dialect",
    "templates",
    "max_reads",
    "at_once",
}


def stage_of(path: Path) -> str:
    return path.stem.split("_")[0] if path.stem.startswith(("sft", "async")) else "grpo"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configs name each other so that they are found from any folder."""
    monkeypatch.chdir(tmp_path)


def test_no_yaml_is_left_out() -> None:
    assert TRAIN
    shipped = sorted((ROOT / "configs").rglob("*.yaml"))
    assert shipped == sorted([*ACCELERATE, *TRAIN, *EVAL, PUBLISHED, *SUITES, *TEMPLATES])
    assert all(load_templates(str(path)).system for path in TEMPLATES)
    assert [path.stem for path in ACCELERATE] == [
        "ddp",
        "deepspeed_zero3",
        "fsdp2",
        "multi_node",
        "single_gpu",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("path", TRAIN, ids=lambda path: path.stem)
def test_a_dry_run_passes(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With nothing but the file: no data, no weights, no network."""
    out = tmp_path / "plan.json"
    assert (
        main([stage_of(path), "--config", str(path), "--dry_run", "--dry_run_json", str(out)]) == 0
    )
    if stage_of(path) == "sft":
        assert "all settings are valid" in capsys.readouterr().out
        return
    plan = json.loads(out.read_text())
    assert plan["memory"]["fits"]
    assert plan["hours"] > 0
    given = yaml.safe_load(path.read_text())
    assert {name for name, item in plan["settings"].items() if item["source"] == "file"} == set(
        given
    )
    assert "peak" in capsys.readouterr().out


@pytest.mark.parametrize("path", [*TRAIN, *EVAL], ids=lambda path: path.stem)
def test_configs_are_read_by_a_real_run_too(path: Path) -> None:
    if path in EVAL:
        flags = ["--config", str(path), "--policy", "p", "--data", "d", "--out", "o"]
        memory = parse_arguments(flags).run.memory
    else:
        found = parse(stage_of(path), ["--config", str(path), "--use_cpu"])
        memory = found.run.memory
        assert found.args.data
        given = yaml.safe_load(path.read_text())
        if "Qwen3" in given["model_name_or_path"]:  # it thinks only where its thoughts fit
            quiet = given.get("chat_template_kwargs") == {"enable_thinking": False}
            assert quiet or given["max_completion_length"] >= 4096
    assert (
        get_dialect(memory.dialect, memory.templates).grammar(phases=("reading", "answering")).specs
    )


def settings_of(path: Path) -> dict[str, Any]:
    found = parse("grpo", ["--config", str(path), "--use_cpu"])
    run = found.run
    configs = (found.args, run.memory, run.embedder, run.environment, found.model)
    return {item.name: getattr(config, item.name) for config in configs for item in fields(config)}


def test_recipes_of_the_paper_differ_in_nothing_but_what_they_are_about() -> None:
    full = settings_of(ROOT / "configs" / "train" / "qwen3_8b_hotpotqa.yaml")
    assert (full["learning_rate"], full["epsilon"], full["epsilon_high"], full["beta"]) == (
        1e-6,
        0.2,
        0.28,
        0.001,
    )
    assert (full["num_generations"], full["per_device_train_batch_size"] * 8 // 16) == (16, 16)
    assert (full["chunk_tokens"], full["retrieve_k"], full["temperature"]) == (4000, 6, 1.0)
    # Qwen3 thinks unless it is told not to: its thoughts have to fit.
    thinking = [
        full[name]
        for name in ("chat_template_kwargs", "max_completion_length", "scratchpad_tokens")
    ]
    assert thinking == [None, 4096, 2048]
    assert {path.stem for path in PAPER} >= {
        *(f"qwen3_8b_{name}" for name in ("hotpotqa", "2wiki", "musique", "mixed")),
        *(
            "capacity20",
            "no_update",
            "no_delete",
            "scratchpad_only",
            "storage_only",
            "memagent_qwen3_8b",
        ),
    }
    for path in PAPER:
        other = settings_of(path)
        assert {name for name, value in other.items() if value != full[name]} <= OWN, path
        text = path.read_text()
        assert "--docs 200 --questions 1-10" in text
        assert f"--config {path.stem}" in text


@pytest.mark.parametrize(
    ("name", "kind", "processes", "machines"),
    [
        ("single_gpu", "single", 1, 1),
        ("ddp", "ddp", 8, 1),
        ("fsdp2", "fsdp", 8, 1),
        ("deepspeed_zero3", "zero3", 8, 1),
        ("multi_node", "fsdp", 16, 2),
    ],
)
def test_accelerate_reads_the_launchers(
    name: str, kind: str, processes: int, machines: int
) -> None:
    path = ROOT / "configs" / "accelerate" / f"{name}.yaml"
    config = load_config_from_file(str(path))
    assert (config.num_processes, config.num_machines, config.mixed_precision) == (
        processes,
        machines,
        "bf16",
    )
    # Activations are checkpointed in one place: by the trainer.
    assert not (config.fsdp_config or {}).get("fsdp_activation_checkpointing")
    launch = read_launch(str(path), None)
    assert (launch.name, launch.processes) == (kind, processes)
    assert f"--config_file $(atommem configs {name})" in path.read_text()


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_suites_are_listed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(["--suite", str(path), "--list", "--benchmarks", str(ROOT)]) == 0
    assert ", seed 0" in capsys.readouterr().out
    assert f"--suite {path.stem}" in path.read_text()

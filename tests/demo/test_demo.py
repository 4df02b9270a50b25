"""`atommem demo`: its command line, its settings file, and a quick run from beginning to end."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from atommem import cli
from atommem.config import CONFIG_FILE
from atommem.demo import run
from atommem.demo.demo_cli import main
from atommem.demo.progress import Progress
from atommem.demo.recipe import BOUNDED, FULL, INJECTED, LIMITED, MIXED, WEB
from atommem.envs.task_files import load_tasks
from atommem.errors import ConfigError
from atommem.policy.local import LocalPolicy
from atommem.trace import read_trace
from scripts.draw_episode import draw


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--updates", "0"], "updates is 0"),
        (["--processes", "3"], "processes is 3"),  # which do not share a batch evenly
        (["--out", "file"], "which is a file"),
    ],
)
def test_wrong_values_are_refused_before_anything_is_written(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("kept")
    with pytest.raises(ConfigError, match=said):
        main(options)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "kept")]


RECIPES = {
    "": FULL,
    "limited": LIMITED,
    "bounded": BOUNDED,
    "web": WEB,
    "injected": INJECTED,
    "blind": MIXED,
}


@pytest.mark.slow
@pytest.mark.parametrize("option", RECIPES)
def test_a_quick_run_writes_everything_and_replaces_an_earlier_one(
    option: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe, options = RECIPES[option], [f"--{option}"] * bool(option)
    out = tmp_path / "demo"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    # An earlier demo, with an evaluation that must not be continued: its policy is gone.
    (out / "eval" / "before" / "traces").mkdir(parents=True)
    (out / "eval" / "before" / "run.json").write_text("{}")
    (out / "summary.json").write_text("{}")
    assert main(["--quick", "--out", str(out), "--seed", "1", *options]) == 0
    printed = capfd.readouterr().out
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["seed"], summary["n"], len(load_tasks(out / "heldout.parquet"))) == (1, 8, 8)
    assert (out / "training.png").read_bytes().startswith(b"\x89PNG")
    for name in ("summary.json", "training.png", "grpo", "cold_start", "heldout.parquet", "eval"):
        assert str(out / name) in printed
    for stage in ("cold_start", "grpo"):
        saved = json.loads((out / stage / CONFIG_FILE).read_text())
        assert (saved["templates"], saved["embedder"], saved["max_tokens"]) == (
            "compact",
            "hashing",
            12,
        )
        assert (saved["capacity"], saved["retention"]) == (recipe.capacity, "reject")
        LocalPolicy.from_pretrained(out / stage)
        card, update = (out / stage / "README.md").read_text(), {"cold_start": 10, "grpo": 2}[stage]
        scores = rf"Held-out tasks, after update {update}:.*eval_em \| \S+ \(95%: .*eval_n \| 8 "
        assert re.search(scores, card, re.DOTALL)
    for name in ("before", "after", *recipe.ablations):
        traces = sorted((out / "eval" / name / "traces").iterdir())
        assert len(traces) == 8
        assert read_trace(traces[0]).complete
    draw(read_trace(traces[0]), tmp_path / "episode.svg")
    assert (tmp_path / "episode.svg").read_text().rstrip().endswith("</svg>")
    assert updates_of(out) == [1, 2]
    assert (out / "notes.txt").read_text() == "mine"


def updates_of(out: Path) -> list[int]:
    """The updates of GRPO that its log has."""
    entries = [
        json.loads(line) for line in (out / "grpo" / "metrics.jsonl").read_text().splitlines()
    ]
    return [entry["step"] for entry in entries if "reward" in entry]


class CtrlC(TrainerCallback):
    """Presses it when the first update is done."""

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        signal.raise_signal(signal.SIGINT)


def comparable(out: Path) -> dict[str, Any]:
    found = json.loads((out / "summary.json").read_text())
    return {name: value for name, value in found.items() if not name.startswith("seconds")}


@pytest.mark.slow
def test_a_demo_that_is_interrupted_in_two_stages_ends_in_one_line_and_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "demo"
    use_console, stages = run.use_console, [""]

    def shown(trainer: Any, columns: Any) -> None:
        use_console(trainer, columns)
        if stages[0] in {base.__name__ for base in type(trainer).__mro__}:
            trainer.add_callback(CtrlC())

    def told(stage: str, status: int, out: Path = out) -> tuple[str, str, dict[str, int]]:
        """What a demo prints that is interrupted in this stage, and when its models were saved."""
        stages[0] = stage
        assert cli.main(["demo", "--quick", "--out", str(out)]) == status
        return *capfd.readouterr(), {
            path.parent.name: path.stat().st_mtime_ns for path in out.glob("*/*.safetensors")
        }

    monkeypatch.setattr(run, "use_console", shown)
    told("", 0, whole)
    _, error, first = told("SFTTrainer", 130)
    assert error.endswith("\natommem demo: interrupted\n")
    printed, error, second = told("MemoryGRPOTrainer", 130)
    assert re.search(r"taken up from an interrupted run: .*pretrained$", printed, re.MULTILINE)
    assert "of an interrupted run" not in printed.partition("GRPO:")[2]
    assert error.endswith(
        "\nSIGINT: saving a checkpoint, then stopping (again to exit at once)\n\natommem demo: interrupted\n"
    )
    printed, _, third = told("", 0)
    assert re.search(r"taken up from an interrupted run: .*cold_start$", printed, re.MULTILINE)
    assert "of an interrupted run" in printed.partition("GRPO:")[2]
    assert first["pretrained"] == second["pretrained"] == third["pretrained"]
    assert second["cold_start"] == third["cold_start"]
    assert comparable(out) == comparable(whole)
    assert (out / "grpo" / "model.safetensors").read_bytes() == (
        whole / "grpo" / "model.safetensors"
    ).read_bytes()
    assert updates_of(out) == [1, 2]
    assert not list((out / "grpo").glob("checkpoint-*"))
    assert not (out / "progress.json").exists()


def test_of_another_seed_nothing_is_taken_up(tmp_path: Path) -> None:
    Progress(tmp_path, FULL, 0).add("pretrained", seconds=1.0)
    assert Progress(tmp_path, FULL, 0).done == {"pretrained": {"seconds": 1.0}}
    assert not Progress(tmp_path, FULL, 1).done
    assert not Progress(tmp_path, LIMITED, 0).done


def test_nothing_of_somebody_elses_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "eval").mkdir()
    with pytest.raises(ConfigError, match="holds eval of no demo"):
        main(["--out", str(tmp_path)])
    assert (tmp_path / "eval").is_dir()

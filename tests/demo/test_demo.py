"""`atommem demo`: a quick run from start to end, an interrupted one, its summary and claims."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from transformers import TrainerCallback

from atommem import cli
from atommem.demo import run
from atommem.demo.demo_cli import main
from atommem.demo.recipe import FULL, LIMITED, WEB, Recipe
from atommem.demo.results import check_bars, print_outcome, summarize
from atommem.demo.run import Progress
from atommem.envs.scoring.records import EvalResult
from atommem.episode import episode_sums
from atommem.errors import ConfigError
from atommem.policy.local import LocalPolicy
from atommem.trace import read_trace
from tests.eval.toys import made, ones


def test_demo_in_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "eval").mkdir()
    with pytest.raises(ConfigError, match="eval"):
        main(["--out", str(tmp_path)])
    assert (tmp_path / "eval").is_dir()


def updates_of(out: Path) -> list[int]:
    lines = (out / "grpo" / "metrics.jsonl").read_text().splitlines()
    return [entry["step"] for entry in map(json.loads, lines) if "reward" in entry]


@pytest.mark.slow
def test_demo_of_the_web_evaluates_its_ablations(tmp_path: Path) -> None:
    assert main(["--quick", "--out", str(tmp_path), "--seed", "1", "--web"]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["seed"], summary["n"]) == (1, 8)
    for name in ("before", "after", *WEB.ablations):
        assert len(list((tmp_path / "eval" / name / "traces").iterdir())) == 8


class CtrlC(TrainerCallback):
    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_demo_interrupted_in_two_stages_ends_as_an_uninterrupted_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "demo"
    # An earlier demo, whose evaluation must not be continued.
    (whole / "eval" / "before" / "traces").mkdir(parents=True)
    (whole / "summary.json").write_text("{}")
    (whole / "notes.txt").write_text("mine")
    use_console, stage = run.use_console, ""

    def interrupting(trainer: Any, columns: Any) -> None:
        use_console(trainer, columns)
        if stage in {base.__name__ for base in type(trainer).__mro__}:
            trainer.add_callback(CtrlC())

    monkeypatch.setattr(run, "use_console", interrupting)
    printed: list[str] = []
    for folder, stage, status in (  # noqa: B007  # read by `interrupting`
        (whole, "", 0),
        (out, "SFTTrainer", 130),
        (out, "MemoryGRPOTrainer", 130),
        (out, "", 0),
    ):
        assert cli.main(["demo", "--quick", "--out", str(folder)]) == status
        captured = capfd.readouterr()
        printed.append(captured.out)
        assert captured.err.endswith("\natommem demo: interrupted\n") == (status == 130)
    for name in ("summary.json", "training.png", "grpo", "cold_start", "heldout.parquet", "eval"):
        assert str(whole / name) in printed[0]
        assert (whole / name).exists()
    LocalPolicy.from_pretrained(whole / "grpo")
    assert read_trace(next((whole / "eval" / "after" / "traces").iterdir())).complete
    assert (whole / "notes.txt").read_text() == "mine"
    assert "resumed from an interrupted run: pretrained\n" in printed[2]
    assert "resumed from an interrupted run: pretrained, cold_start\n" in printed[3]
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (whole, out)]
    first, second = (
        {name: value for name, value in one.items() if not name.startswith("seconds")}
        for one in summaries
    )
    assert first == second
    weights = [(folder / "grpo" / "model.safetensors").read_bytes() for folder in (whole, out)]
    assert weights[0] == weights[1]
    assert updates_of(out) == [1, 2]
    assert not list((out / "grpo").glob("checkpoint-*"))
    assert not (out / "progress.json").exists()


def test_progress_of_another_seed_or_recipe_is_ignored(tmp_path: Path) -> None:
    Progress(tmp_path, FULL, 0).save("pretrained", seconds=1.0)
    assert Progress(tmp_path, FULL, 0).done == {"pretrained": {"seconds": 1.0}}
    assert not Progress(tmp_path, FULL, 1).done
    assert not Progress(tmp_path, LIMITED, 0).done


def results(recipe: Recipe, *right: int) -> dict[str, EvalResult]:
    """Make evaluations with `right` of 200 tasks correct."""
    sums = {**episode_sums([]), "episodes": 1.0, "steps": 5.0, "actions/create": 2.0}
    names = ("before", "after", *recipe.ablations)
    return {
        name: EvalResult(
            tuple(replace(record, sums=sums) for record in made("toy", ones(count, 200)).records)
        )
        for name, count in zip(names, right, strict=True)
    }


SECONDS = {"pretrain": 30.0, "sft": 60.5, "grpo": 150.0, "eval_before": 3.0}


def test_summarize_two_evaluations_has_the_promised_fields() -> None:
    summary = summarize(results(FULL, 60, 190, 4, 20, 90), SECONDS, 270.04, seed=3)
    promised = {
        **{"em_before": 0.3, "em_after": 0.95, "n": 200, "seed": 3, "better": 130, "worse": 0},
        **{"p_value": pytest.approx(0.5**130), "em_store_off": 0.02, "em_update_off": 0.45},
        **{"seconds_total": 270.0, "seconds_sft": 90.5, "seconds_grpo": 150.0},
    }
    assert {name: summary.get(name) for name in promised} == promised
    assert summary["actions_after"]["create"] == 0.4


@pytest.mark.parametrize(
    ("recipe", "right", "failing"),
    [
        (FULL, (60, 190, 4, 20, 90), []),
        (FULL, (60, 61, 4, 20, 40), [1, 2, 3]),
        (WEB, (90, 170, 100, 20, 24), [5]),  # without tools a policy can only guess
    ],
)
def test_check_bars_names_claims_that_do_not_hold(
    recipe: Recipe, right: tuple[int, ...], failing: list[int]
) -> None:
    found = results(recipe, *right)
    summary = summarize(found, SECONDS, 1.0, seed=0)
    holds = [holds for _, holds in check_bars(summary, recipe.bars)]
    assert [number for number, one in enumerate(holds) if not one] == failing
    console = Console(width=80)
    with console.capture() as capture:
        print_outcome(summary, recipe.bars, console)
    assert capture.get().count("  NO  ") == len(failing)

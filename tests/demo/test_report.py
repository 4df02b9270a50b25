"""The demo's summary, table, plot and claims, from made-up evaluations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from atommem.demo.recipe import FULL, LIMITED, WEB, Recipe
from atommem.demo.results import check_bars, print_outcome, results_table, summarize, write_summary
from atommem.envs.scoring.records import EvalResult
from atommem.episode_stats import episode_sums
from tests.eval.toys import made, ones


def evaluation(right: int, n: int = 200) -> EvalResult:
    """The first `right` of `n` tasks are right."""
    sums = {**episode_sums([]), "episodes": 1.0, "steps": 5.0, "actions/create": 2.0}
    return EvalResult(tuple(replace(record, sums=sums) for record in made("toy", ones(right, n)).records))


def results(before: int, after: int, *off: int, recipe: Recipe | None = None) -> dict[str, EvalResult]:
    """Those of a demo, with store, scratchpad, update and, with a limited store, delete off."""
    names = (recipe or (LIMITED if len(off) == 4 else FULL)).ablations
    counts = {"before": before, "after": after, **dict(zip(names, off, strict=True))}
    return {name: evaluation(right) for name, right in counts.items()}


SECONDS = {"pretrain": 30.0, "sft": 60.5, "grpo": 150.0, "eval_before": 3.0}


def test_the_summary_has_the_fields_that_are_promised(tmp_path: Path) -> None:
    summary = summarize(results(60, 190, 4, 20, 90), SECONDS, 270.04, seed=3)
    promised = {
        **{"em_before": 0.3, "em_after": 0.95, "n": 200, "p_value": pytest.approx(0.5**130), "seed": 3},
        **{"em_store_off": 0.02, "em_scratchpad_off": 0.1, "em_update_off": 0.45, "better": 130, "worse": 0},
        **{"seconds_total": 270.0, "seconds_sft": 90.5, "seconds_grpo": 150.0},
    }
    assert {name: summary.get(name) for name in promised} == promised
    assert summary["actions_after"]["create"] == 0.4
    assert json.loads(write_summary(summary, tmp_path).read_text()) == summary


@pytest.mark.parametrize(
    ("counts", "holding"),
    [
        ((60, 190, 4, 20, 90), [True, True, True, True, True]),
        ((101, 190, 4, 20, 90), [False, True, True, True, True]),
        ((60, 179, 4, 20, 90), [True, False, True, True, True]),
        ((60, 61, 4, 20, 40), [True, False, False, False, True]),
        ((60, 190, 131, 20, 90), [True, True, True, False, True]),
        ((60, 190, 4, 20, 171), [True, True, True, True, False]),
        ((60, 190, 4, 20, 90, 130), [True, True, True, True, True, True]),
        ((60, 190, 4, 20, 90, 171), [True, True, True, True, True, False]),
    ],
)
def test_claims_that_do_not_hold_are_said_not_to_hold(counts: tuple[int, ...], holding: list[bool]) -> None:
    summary = summarize(results(*counts), SECONDS, 1.0, seed=0)
    bars = (LIMITED if len(counts) == 6 else FULL).bars
    assert [holds for _, holds in check_bars(summary, bars)] == holding
    console = Console(width=100)
    with console.capture() as capture:
        print_outcome(summary, bars, console)
    assert capture.get().count("  NO  ") == holding.count(False)


@pytest.mark.parametrize(("tools_off", "holds"), [(20, True), (24, False)])
def test_without_tools_a_policy_can_only_guess(tools_off: int, holds: bool) -> None:
    summary = summarize(results(90, 170, 100, 20, tools_off, recipe=WEB), SECONDS, 1.0, seed=0)
    assert [held for _, held in check_bars(summary, WEB.bars)] == [True] * 5 + [holds]


@pytest.mark.parametrize("off", [(4, 20, 90), (4, 20, 90, 130)], ids=["no limit", "limited"])
def test_the_table_fits_a_terminal(off: tuple[int, ...]) -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(results_table(results(60, 190, *off)))
    printed = capture.get()
    assert "after GRPO" in printed
    assert ("delete off" in printed) == (len(off) == 4)
    assert "0.950" in printed
    assert "0.910-0.973" in printed  # Wilson's interval of 190 of 200
    assert all(len(line) <= 80 for line in printed.splitlines())

"""The demo's summary, table, plot and claims, from made-up evaluations."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console

from atommem.demo.recipe import FULL, LIMITED, WEB, Recipe
from atommem.demo.results import check_bars, print_outcome, results_table, summarize
from atommem.envs.scoring.records import EvalResult
from atommem.episode_stats import episode_sums
from tests.eval.toys import made, ones


def evaluation(right: int, n: int = 200) -> EvalResult:
    """The first `right` of `n` tasks are right."""
    sums = {**episode_sums([]), "episodes": 1.0, "steps": 5.0, "actions/create": 2.0}
    return EvalResult(
        tuple(replace(record, sums=sums) for record in made("toy", ones(right, n)).records)
    )


def results(recipe: Recipe, *right: int) -> dict[str, EvalResult]:
    """Those of a demo: before and after, then what its recipe switches off."""
    return dict(zip(("before", "after", *recipe.ablations), map(evaluation, right), strict=True))


SECONDS = {"pretrain": 30.0, "sft": 60.5, "grpo": 150.0, "eval_before": 3.0}


def test_the_summary_has_the_fields_that_are_promised() -> None:
    summary = summarize(results(FULL, 60, 190, 4, 20, 90), SECONDS, 270.04, seed=3)
    promised = {
        **{
            "em_before": 0.3,
            "em_after": 0.95,
            "n": 200,
            "p_value": pytest.approx(0.5**130),
            "seed": 3,
        },
        **{
            "em_store_off": 0.02,
            "em_scratchpad_off": 0.1,
            "em_update_off": 0.45,
            "better": 130,
            "worse": 0,
        },
        **{"seconds_total": 270.0, "seconds_sft": 90.5, "seconds_grpo": 150.0},
    }
    assert {name: summary.get(name) for name in promised} == promised
    assert summary["actions_after"]["create"] == 0.4
    assert json.loads(json.dumps(summary)) == summary


@pytest.mark.parametrize(
    ("recipe", "right", "failing"),
    [
        (FULL, (60, 190, 4, 20, 90), []),
        (FULL, (101, 190, 4, 20, 90), [0]),
        (FULL, (60, 179, 4, 20, 90), [1]),
        (FULL, (60, 61, 4, 20, 40), [1, 2, 3]),
        (FULL, (60, 190, 131, 20, 90), [3]),
        (FULL, (60, 190, 4, 20, 171), [4]),
        (LIMITED, (60, 190, 4, 20, 90, 130), []),
        (LIMITED, (60, 190, 4, 20, 90, 171), [5]),
        (WEB, (90, 170, 100, 20, 20), []),
        (WEB, (90, 170, 100, 20, 24), [5]),  # without tools a policy can only guess
    ],
)
def test_claims_that_do_not_hold_are_said_not_to_hold(
    recipe: Recipe, right: tuple[int, ...], failing: list[int]
) -> None:
    summary = summarize(results(recipe, *right), SECONDS, 1.0, seed=0)
    claims = check_bars(summary, recipe.bars)
    assert len(claims) == 5 + (recipe is not FULL)
    assert [number for number, (_, holds) in enumerate(claims) if not holds] == failing
    console = Console(width=100)
    with console.capture() as capture:
        print_outcome(summary, recipe.bars, console)
    assert capture.get().count("  NO  ") == len(failing)


@pytest.mark.parametrize(("recipe", "right"), [(FULL, (4, 20, 90)), (LIMITED, (4, 20, 90, 130))])
def test_the_table_fits_a_terminal(recipe: Recipe, right: tuple[int, ...]) -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(results_table(results(recipe, 60, 190, *right)))
    printed = capture.get()
    assert "after GRPO" in printed
    assert ("delete off" in printed) == (recipe is LIMITED)
    assert "0.950" in printed
    assert "0.910-0.973" in printed  # Wilson's interval of 190 of 200
    assert all(len(line) <= 80 for line in printed.splitlines())

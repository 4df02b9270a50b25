"""What an evaluation may spend: what counts, when it stops, how it continues, and what the command says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atommem.envs.scoring.records import EpisodeRecord
from atommem.envs.task_files import save_tasks
from atommem.errors import BudgetSpentError, ConfigError
from atommem.eval import eval_cli
from atommem.eval.budget import Budget, Usage
from atommem.eval.runner import evaluate
from tests.eval.toys import ToyPolicy, evaluated, make_runner, make_task

TASKS = [make_task(name) for name in "abcd"]


async def cost_of_one() -> Usage:
    """Every episode of `TASKS` is asked and answers alike."""
    record = (await evaluated(TASKS[:1]))[0].records[0]
    return Usage(record.prompt_tokens, record.completion_tokens)


def lines(out: Path) -> list[str]:
    return [json.loads(line)["task_id"] for line in (out / "episodes.jsonl").read_text().splitlines()]


async def test_a_spent_budget_stops_in_order_and_a_larger_one_continues(tmp_path: Path) -> None:
    one = (await cost_of_one()).total
    seen: list[EpisodeRecord] = []
    budget = Budget(tokens=2 * one)
    with pytest.raises(BudgetSpentError, match=rf"{2 * one:,} of {2 * one:,} tokens.*2 of 4 episodes have not run"):
        await evaluated(TASKS, tmp_path, budget=budget, on_record=seen.append)
    assert lines(tmp_path) == ["a", "b"] == [record.task_id for record in seen]
    assert not (tmp_path / "summary.json").exists()
    # What is in the folder is spent: nothing more runs.
    with pytest.raises(BudgetSpentError):
        await evaluated(TASKS, tmp_path, budget=Budget(tokens=2 * one))
    assert lines(tmp_path) == ["a", "b"]
    result, _ = await evaluated(TASKS, tmp_path, budget=Budget(tokens=4 * one), on_record=seen.append)
    assert (result.resumed, len(result.records)) == (2, 4)
    assert [record.task_id for record in seen] == ["a", "b", "a", "b", "c", "d"]
    # All had run when it was spent: that is no error, then or later.
    await evaluated(TASKS, tmp_path, budget=Budget(tokens=1))


async def test_episodes_in_flight_end_and_money_is_counted_by_both_prices(tmp_path: Path) -> None:
    one = await cost_of_one()
    with pytest.raises(BudgetSpentError):
        await evaluated(TASKS, tmp_path / "tokens", runner={"max_in_flight": 3}, budget=Budget(tokens=1))
    assert sorted(lines(tmp_path / "tokens")) == ["a", "b", "c"]
    budget = Budget(money=3 * (one.prompt * 2 + one.completion * 5) / 1e6, prompt_price=2.0, completion_price=5.0)
    with pytest.raises(BudgetSpentError, match="in money"):
        await evaluated(TASKS, tmp_path / "money", budget=budget)
    assert len(lines(tmp_path / "money")) == 3
    assert budget.cost == pytest.approx(budget.money)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokens": 0}, "budget_tokens is 0"),
        ({"money": 0.0, "prompt_price": 1.0}, "budget_money is 0"),
        ({"money": 5.0}, "no price is known"),
        ({"completion_price": -1.0}, "completion_price is -1"),
        ({"money": float("nan"), "prompt_price": 1.0}, "budget_money is nan"),
    ],
)
def test_limits_that_cannot_be_meant(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Budget(**settings)  # type: ignore[arg-type]


async def test_failed_attempts_are_spent_too(tmp_path: Path) -> None:
    runner, policy = make_runner()
    policy.until["a"] = lambda: len(policy.asked) < 3 or not policy.out_of_reach.add("a")  # the last of three
    (failed,) = (await evaluate(TASKS[:1], runner, tmp_path, progress=False)).records
    assert failed.failed
    assert failed.prompt_tokens > 0
    budget = Budget()
    again = await evaluate(TASKS[:1], make_runner()[0], tmp_path, progress=False, budget=budget)
    assert budget.used.prompt == failed.prompt_tokens + again.records[0].prompt_tokens


def test_the_command_ends_with_status_4_and_continues(
    tmp_path: Path, policy: ToyPolicy, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tasks(TASKS, tmp_path / "tasks.jsonl")
    command = ["--policy", "toy", "--data", str(tmp_path / "tasks.jsonl"), "--out", str(tmp_path / "out")]
    command += ["--embedder", "hashing", "--chunking", "documents", "--max_in_flight", "1"]
    assert eval_cli.main([*command, "--budget_tokens", "1"]) == 4
    message = capsys.readouterr().err
    assert "the budget is spent" in message
    assert "3 of 4 episodes have not run" in message
    assert "the same command with a larger --budget_tokens" in message
    money = ["--budget_money", "0.5", "--prompt_price", "1", "--completion_price", "2"]
    assert eval_cli.main([*command, *money]) == 0
    with pytest.raises(ConfigError, match="no price is known"):
        eval_cli.main([*command, *money[:2]])

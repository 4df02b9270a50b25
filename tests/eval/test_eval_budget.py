"""What an evaluation may spend: what counts, when it stops, how it continues, and what the command says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from atommem.envs.scoring.records import EpisodeRecord
from atommem.envs.task import Question, Task
from atommem.envs.task_files import save_tasks
from atommem.errors import BudgetSpentError, ConfigError
from atommem.eval import eval_cli, workbench
from atommem.eval.budget import Budget, Usage
from atommem.eval.runner import evaluate
from atommem.policy.contract import Completion, Sampling
from tests.envs.web.net.test_cassette import ENGINE, MADE
from tests.envs.web.test_environment import ANSWER, call
from tests.eval.toys import ToyPolicy, evaluated, make_runner, make_task
from tests.fakes import ListPolicy, WordTokenizer

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
    seen.clear()
    result, _ = await evaluated(TASKS, tmp_path, budget=Budget(tokens=4 * one), on_record=seen.append)
    assert (result.resumed, len(result.records)) == (2, 4)
    assert [record.task_id for record in seen] == ["a", "b", "c", "d"]
    # All had run when it was spent: that is no error, then or later.
    await evaluated(TASKS, tmp_path, budget=Budget(tokens=1))


async def test_episodes_in_flight_end_and_are_recorded(tmp_path: Path) -> None:
    with pytest.raises(BudgetSpentError):
        await evaluated(TASKS, tmp_path, runner={"max_in_flight": 3}, budget=Budget(tokens=1))
    assert sorted(lines(tmp_path)) == ["a", "b", "c"]


async def test_money_is_counted_by_both_prices(tmp_path: Path) -> None:
    one = await cost_of_one()
    budget = Budget(money=3 * (one.prompt * 2 + one.completion * 5) / 1e6, prompt_price=2.0, completion_price=5.0)
    with pytest.raises(BudgetSpentError, match="in money"):
        await evaluated(TASKS, tmp_path, budget=budget)
    assert len(lines(tmp_path)) == 3
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


def test_the_command_ends_with_status_4_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workbench, "open_policy", lambda config: ToyPolicy(WordTokenizer()))
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


async def test_failed_attempts_are_spent_too(tmp_path: Path) -> None:
    runner, policy = make_runner()
    complete = policy.complete

    async def fails_at_the_end(prompt_ids: list[int], sampling: object) -> object:
        if len(policy.asked) == 2:
            policy.out_of_reach = {"a"}
        return await complete(prompt_ids, sampling)  # type: ignore[arg-type]

    policy.complete = fails_at_the_end  # type: ignore[method-assign,assignment]
    result = await evaluate(TASKS[:1], runner, tmp_path, progress=False)
    failed = result.records[0].prompt_tokens
    assert result.failed == 1
    assert failed > 0
    budget = Budget()
    again = await evaluate(TASKS[:1], make_runner()[0], tmp_path, progress=False, budget=budget)
    assert budget.used.prompt == failed + again.records[0].prompt_tokens


class SearchingPolicy(ListPolicy):
    """Searches for the name of the task first, and then answers."""

    def __init__(self) -> None:
        super().__init__(WordTokenizer(), [])

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        prompt = self.tokenizer.decode(prompt_ids)
        name = re.findall(r"Who is \w\?", prompt)[-1]
        self.texts = [call("search", query=name) if "calls left: 40" in prompt else ANSWER]
        return await super().complete(prompt_ids, sampling)


def test_a_budget_of_calls_ends_the_command_with_status_4_and_a_larger_one_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workbench, "open_policy", lambda config: SearchingPolicy())
    tasks = [Task(name, (Question(f"Who is {name}?", ("Oakrest",)),)) for name in "abc"]
    save_tasks(tasks, tmp_path / "tasks.jsonl")
    command = ["--policy", "toy", "--data", str(tmp_path / "tasks.jsonl"), "--out", str(tmp_path / "out")]
    command += ["--environment", "web", "--tools", ENGINE, "--cassette", str(tmp_path / "c.db")]
    command += ["--embedder", "hashing", "--max_in_flight", "1"]
    MADE.clear()
    assert eval_cli.main([*command, "--call_budget", "2"]) == 4
    assert "call_budget is spent: 2 calls" in capsys.readouterr().err
    assert MADE == ["Who is a?", "Who is b?"]
    assert eval_cli.main([*command, "--call_budget", "9"]) == 0
    assert MADE == ["Who is a?", "Who is b?", "Who is c?"]

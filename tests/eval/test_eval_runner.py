"""Running, recording, continuing: an evaluation loses nothing that it has finished, repeats none of it, and spends
no more than it may.
"""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path
from typing import Any

import pytest

from atommem.config import MemoryConfig
from atommem.envs.scoring.records import EpisodeRecord
from atommem.envs.scoring.statistics import wilson_interval
from atommem.envs.task import Task
from atommem.errors import BudgetSpentError, ConfigError, DataError, PolicyError
from atommem.eval.budget import Budget, Usage
from atommem.eval.output import OutputFolder, file_stem
from atommem.eval.runner import evaluate, tasks_digest
from atommem.policy.contract import Sampling
from atommem.trace import read_trace
from tests.eval.toys import GONE, evaluated, make_runner, make_task

TASKS = [make_task("a"), make_task("b", right=False), make_task("c"), make_task("d", questions=3)]


def lines(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]


async def test_scores_and_counts_in_memory() -> None:
    result, asked = await evaluated(TASKS)
    # 6 questions, 5 of them right; 4 episodes of 2 chunks and 1, 1, 1, 3 answers.
    assert result.em == pytest.approx(5 / 6)
    means = result.summary()["means"]
    assert (means["steps"], means["actions/answer"], means["store_size"]) == (14 / 4, 6 / 14, 2)
    assert [record.task_id for record in result.records] == ["a", "b", "c", "d"]
    wrong = result.records[1].questions[0]
    assert (wrong.answer, wrong.golds, wrong.metrics["em"]) == ("b-0", ("something else",), 0.0)
    assert len(asked) == 14
    # Failed episodes are beside the scores, not in them.
    result, _ = await evaluated(TASKS, gone="bd")
    summary = result.summary()
    assert (result.failed, result.failed_fraction) == (2, 0.5)
    assert (summary["metrics"]["em"]["mean"], summary["metrics"]["em"]["n"]) == (1.0, 2)
    assert (summary["metrics"]["em"]["low"], summary["metrics"]["em"]["high"]) == wilson_interval(
        2, 2
    )
    assert summary["errors"] == {"server gone": 2}
    nothing, _ = await evaluated(TASKS[:1], gone="a")
    assert math.isnan(nothing.em)
    assert nothing.summary()["metrics"] == {}


async def test_folder_holds_records_traces_and_summary(tmp_path: Path) -> None:
    for _ in range(2):  # the second time read from the folder
        result, _ = await evaluated(TASKS, tmp_path, samples_per_task=2, wrong="abcd")
        assert (result.em, result.summary()["means"]["reward"]) == (0.0, 0.0), (
            "all wrong is a score"
        )
    assert len(lines(tmp_path)) == 8
    on_disk: list[int] = []
    await evaluated(
        TASKS,
        tmp_path / "new",
        on_record=lambda record: on_disk.append(len(lines(tmp_path / "new"))),
    )
    assert on_disk == [1, 2, 3, 4], "SIGKILL loses no episode that has ended"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["metrics"]["em"]["mean"] == result.em
    assert summary["run"]["memory"]["dialect"] == "paper"
    assert len(list((tmp_path / "traces").iterdir())) == 8
    trace = read_trace(tmp_path / "traces" / "d.1.jsonl")
    assert trace.complete
    assert trace.task["questions"][2]["golds"] == ["d-2"]
    assert (trace.episode.sample, len(trace.episode.steps)) == (1, 5)
    assert trace.config["sampling"]["temperature"] == 0.0


async def test_failed_episodes_are_retried(tmp_path: Path) -> None:
    await evaluated(TASKS, tmp_path, gone="b")
    with pytest.raises(PolicyError):
        await evaluated(TASKS, tmp_path, gone="b", error=PolicyError("refused"))
    assert not (tmp_path / "summary.json").exists(), "a rerun drops a summary that it makes wrong"
    assert not read_trace(tmp_path / "traces" / "b.0.jsonl").episode.steps
    result, asked = await evaluated(TASKS, tmp_path)
    assert (set(asked), result.failed) == ({"b"}, 0)
    assert len(lines(tmp_path)) == 5  # the failure stays on record
    assert len(read_trace(tmp_path / "traces" / "b.0.jsonl").episode.steps) == 3
    assert json.loads((tmp_path / "summary.json").read_text())["failed"] == 0


async def test_a_cut_last_line_is_run_again_and_damage_elsewhere_is_named(tmp_path: Path) -> None:
    first, _ = await evaluated(TASKS, tmp_path)
    path = tmp_path / "episodes.jsonl"
    content = path.read_text()
    for cut in (200, 1):
        path.write_text(content[:-cut])
        again, asked = await evaluated(TASKS, tmp_path)
        assert (set(asked), again.em, len(lines(tmp_path))) == ({"d"}, first.em, 4)
    for damaged in ("{}", "garbage", "[]", '{"questions": 3}'):
        kept = content.splitlines(keepends=True)
        path.write_text("".join([kept[0], damaged + "\n", *kept[2:]]))
        with pytest.raises(DataError, match=r"episodes\.jsonl, line 2"):
            await evaluated(TASKS, tmp_path)


X = {"policy": {"path": "x"}}


OTHERS: list[tuple[dict[str, Any], str]] = [
    (
        {"runner": {"sampling": Sampling(1.0, seed=0)}},
        r"sampling\.temperature is 0\.0 there and 1\.0 now",
    ),
    (
        {"runner": {"memory": MemoryConfig(layout="paper")}},
        r"memory\.layout is 'prefix' there and 'paper' now",
    ),
    (
        {"runner": {"memory": MemoryConfig(disabled_actions=["read"])}},
        r"disabled_actions is \[\] there",
    ),
    ({"runner": {"memory": MemoryConfig(templates="compact")}}, "templates_sha256"),
    ({"samples_per_task": 2}, "samples_per_task is 1 there and 2 now"),
    ({"settings": {"policy": {"path": "y"}}}, r"policy\.path is 'x' there and 'y' now"),
    ({"settings": {}}, "policy is .* there and not set now"),
    (
        {"tasks": TASKS[:3]},
        r"tasks\.count is 4 there and 3 now; tasks\.sha256 is \w{8}\.\.\. there",
    ),
    ({"tasks": [*TASKS[:3], make_task("d", questions=3, right=False)]}, r"tasks\.sha256"),
]


async def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    await evaluated(TASKS, tmp_path, settings=X)
    for changes, message in OTHERS:
        with pytest.raises(ConfigError, match=message):
            await evaluated(**{"tasks": TASKS, "out": tmp_path, "settings": X, **changes})
    # How many run at the same time changes no score.
    await evaluated(TASKS, tmp_path, settings=X, runner={"max_in_flight": 9})


async def test_foreign_and_busy_folders_and_bad_arguments_are_refused(tmp_path: Path) -> None:
    (tmp_path / "episodes.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"episodes\.jsonl but no run\.json"):
        await evaluated(TASKS, tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ConfigError, match=r"run\.json is not valid JSON"):
        await evaluated(TASKS, tmp_path)
    new = tmp_path / "new"
    with (
        OutputFolder(new, {"a": 1}),
        pytest.raises(ConfigError, match="is running in"),
        OutputFolder(new, {"a": 1}),
    ):
        pass
    with OutputFolder(new, {"a": 2}) as folder:  # without an episode it belongs to nothing
        assert folder.finished == {}
    with pytest.raises(DataError, match="two tasks have the id 'a'"):
        await evaluated([TASKS[0], TASKS[0]])
    with pytest.raises(ConfigError, match="samples_per_task is 0"):
        await evaluated(TASKS, samples_per_task=0)


def contents(out: Path) -> dict[str, list[str]]:
    """The lines of every file of an evaluation, in one order, without what a clock measured."""
    files = (path for path in out.rglob("*") if path.is_file())
    return {
        file.name: sorted(re.sub(r'"seconds": [\d.e-]+', "", file.read_text()).splitlines())
        for file in files
    }


async def test_the_order_in_which_episodes_end_changes_nothing_but_the_order_of_lines(
    tmp_path: Path,
) -> None:
    tasks = [make_task(f"t{index}", questions=1 + index % 2) for index in range(5)]
    runner, policy = make_runner()
    await evaluate(
        tasks, runner, progress=False
    )  # this tokenizer hands out its ids as words come up
    policy.until = {
        task.id: lambda: random.random() < 0.2 for task in tasks
    }  # after a random while
    found = []
    for runner.max_in_flight in (1, 4, 5):
        out = tmp_path / str(runner.max_in_flight)
        await evaluate(tasks, runner, out, samples_per_task=2, progress=False)
        found.append(contents(out))
    assert found[0] == found[1] == found[2]


def test_file_stems_are_safe_and_distinct() -> None:
    assert file_stem("hotpot-5a7.x_1") == "hotpot-5a7.x_1"
    stems = [
        file_stem(name) for name in ("a/b", "a_b", "a:b", "../../etc", "x" * 300, "x" * 301, "é")
    ]
    assert len(set(stems)) == len(stems)
    assert all("/" not in stem and len(stem) < 120 for stem in stems)


def test_digest_sees_everything_that_is_read_or_scored() -> None:
    base = make_task("a")
    variants = [
        make_task("b"),
        make_task("a", right=False),
        make_task("a", questions=2),
        Task("a", base.questions, base.documents[:1]),
        Task("a", base.questions, base.documents, context="text"),
    ]
    digests = {tasks_digest([task]) for task in [base, *variants]}
    assert len(digests) == 6
    assert tasks_digest([base]) == tasks_digest([make_task("a")])


# Budgets

ALIKE = [make_task(name) for name in "abcd"]


async def cost_of_one() -> Usage:
    """Every episode of `ALIKE` is asked and answers alike."""
    record = (await evaluated(ALIKE[:1]))[0].records[0]
    return Usage(record.prompt_tokens, record.completion_tokens)


def ended(out: Path) -> list[object]:
    return [line["task_id"] for line in lines(out)]


async def test_a_spent_budget_stops_in_order_and_a_larger_one_continues(tmp_path: Path) -> None:
    one = (await cost_of_one()).total
    seen: list[EpisodeRecord] = []
    budget = Budget(tokens=2 * one)
    with pytest.raises(
        BudgetSpentError, match=rf"{2 * one:,} of {2 * one:,} tokens.*2 of 4 episodes have not run"
    ):
        await evaluated(ALIKE, tmp_path, budget=budget, on_record=seen.append)
    assert ended(tmp_path) == ["a", "b"] == [record.task_id for record in seen]
    assert not (tmp_path / "summary.json").exists()
    # What is in the folder is spent: nothing more runs.
    with pytest.raises(BudgetSpentError):
        await evaluated(ALIKE, tmp_path, budget=Budget(tokens=2 * one))
    assert ended(tmp_path) == ["a", "b"]
    result, _ = await evaluated(
        ALIKE, tmp_path, budget=Budget(tokens=4 * one), on_record=seen.append
    )
    assert (result.resumed, len(result.records)) == (2, 4)
    assert [record.task_id for record in seen] == ["a", "b", "a", "b", "c", "d"]
    # All had run when it was spent: that is no error, then or later.
    await evaluated(ALIKE, tmp_path, budget=Budget(tokens=1))


async def test_episodes_in_flight_end_and_money_is_counted_by_both_prices(tmp_path: Path) -> None:
    one = await cost_of_one()
    with pytest.raises(BudgetSpentError):
        await evaluated(
            ALIKE, tmp_path / "tokens", runner={"max_in_flight": 3}, budget=Budget(tokens=1)
        )
    assert sorted(ended(tmp_path / "tokens")) == ["a", "b", "c"]
    budget = Budget(
        money=3 * (one.prompt * 2 + one.completion * 5) / 1e6,
        prompt_price=2.0,
        completion_price=5.0,
    )
    with pytest.raises(BudgetSpentError, match="in money"):
        await evaluated(ALIKE, tmp_path / "money", budget=budget)
    assert len(ended(tmp_path / "money")) == 3
    assert budget.cost == pytest.approx(budget.money)


def test_limits_that_cannot_be_meant() -> None:
    for settings, message in (
        ({"tokens": 0}, "budget_tokens is 0"),
        ({"money": 0.0, "prompt_price": 1.0}, "budget_money is 0"),
        ({"money": 5.0}, "no price is known"),
        ({"completion_price": -1.0}, "completion_price is -1"),
        ({"money": float("nan"), "prompt_price": 1.0}, "budget_money is nan"),
    ):
        with pytest.raises(ConfigError, match=message):
            Budget(**settings)  # type: ignore[arg-type]


async def test_failed_attempts_are_spent_too(tmp_path: Path) -> None:
    runner, policy = make_runner()
    # The last of its three requests fails.
    policy.until["a"] = lambda: len(policy.asked) < 3 or policy.errors.setdefault("a", GONE) is GONE
    (failed,) = (await evaluate(ALIKE[:1], runner, tmp_path, progress=False)).records
    assert failed.failed
    assert failed.prompt_tokens > 0
    budget = Budget()
    again = await evaluate(ALIKE[:1], make_runner()[0], tmp_path, progress=False, budget=budget)
    assert budget.used.prompt == failed.prompt_tokens + again.records[0].prompt_tokens

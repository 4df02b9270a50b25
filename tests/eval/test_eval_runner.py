"""Running, recording, continuing: an evaluation loses nothing that it has finished and repeats none of it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from atommem.config import MemoryConfig
from atommem.envs.scoring.statistics import wilson_interval
from atommem.envs.task import Task
from atommem.errors import ConfigError, DataError, PolicyError
from atommem.eval.output import OutputFolder, file_stem
from atommem.eval.runner import evaluate, tasks_digest
from atommem.policy.contract import Sampling
from atommem.trace import read_trace
from tests.eval.toys import make_runner, make_task

TASKS = [make_task("a"), make_task("b", right=False), make_task("c"), make_task("d", questions=3)]


def lines(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]


async def test_scores_and_counts_in_memory() -> None:
    runner, policy = make_runner()
    result = await evaluate(TASKS, runner, progress=False)
    # 6 questions, 5 of them right; 4 episodes of 2 chunks and 1, 1, 1, 3 answers.
    assert result.em == pytest.approx(5 / 6)
    summary = result.summary()
    assert (summary["episodes"], summary["failed"]) == (4, 0)
    assert (summary["metrics"]["em"]["n"], summary["metrics"]["em"]["clusters"]) == (6, 4)
    assert summary["means"]["steps"] == (4 * 2 + 6) / 4
    assert summary["means"]["actions/create"] == 8 / 14
    assert summary["means"]["actions/answer"] == 6 / 14
    assert summary["means"]["actions/delete"] == 0.0
    assert summary["means"]["store_size"] == 2.0
    assert summary["means"]["stop/answered"] == 1.0
    assert "by_source" not in summary
    assert [record.task_id for record in result.records] == ["a", "b", "c", "d"]
    wrong = result.records[1].questions[0]
    assert (wrong.answer, wrong.golds, wrong.metrics["em"]) == ("b-0", ("something else",), 0.0)
    assert len(policy.asked) == 14


async def test_failed_episodes_are_beside_the_scores_not_in_them() -> None:
    runner, policy = make_runner()
    policy.out_of_reach = {"b", "d"}
    result = await evaluate(TASKS, runner, progress=False)
    summary = result.summary()
    assert (result.failed, result.failed_fraction) == (2, 0.5)
    assert (summary["metrics"]["em"]["mean"], summary["metrics"]["em"]["n"]) == (1.0, 2)
    assert (summary["metrics"]["em"]["low"], summary["metrics"]["em"]["high"]) == wilson_interval(2, 2)
    assert summary["errors"] == {"server gone": 2}
    assert summary["means"]["stop/failed"] == 0.5


async def test_all_failed_is_no_score() -> None:
    runner, policy = make_runner()
    policy.out_of_reach = {"a"}
    result = await evaluate(TASKS[:1], runner, progress=False)
    assert math.isnan(result.em)
    assert result.summary()["metrics"] == {}


async def test_folder_holds_records_traces_and_summary(tmp_path: Path) -> None:
    result = await evaluate(TASKS, make_runner()[0], tmp_path, samples_per_task=2, progress=False)
    assert len(lines(tmp_path)) == 8
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["metrics"]["em"]["mean"] == result.em
    assert summary["run"]["memory"]["dialect"] == "paper"
    assert len(list((tmp_path / "traces").iterdir())) == 8
    trace = read_trace(tmp_path / "traces" / "d.1.jsonl")
    assert trace.complete
    assert trace.task["questions"][2] == {
        "text": "Please say-d-2 now",
        "golds": ["d-2"],
        "id": "q2",
        "category": "",
        "attributes": {},
    }
    assert trace.episode.sample == 1
    assert len(trace.episode.steps) == 5
    assert trace.config["sampling"]["temperature"] == 0.0


async def test_failed_episodes_are_retried(tmp_path: Path) -> None:
    runner, policy = make_runner()
    policy.out_of_reach = {"b"}
    await evaluate(TASKS, runner, tmp_path, progress=False)
    assert not read_trace(tmp_path / "traces" / "b.0.jsonl").episode.steps
    runner, policy = make_runner()
    result = await evaluate(TASKS, runner, tmp_path, progress=False)
    assert set(policy.asked) == {"b"}
    assert result.failed == 0
    assert len(lines(tmp_path)) == 5  # the failure stays on record
    assert len(read_trace(tmp_path / "traces" / "b.0.jsonl").episode.steps) == 3
    assert json.loads((tmp_path / "summary.json").read_text())["failed"] == 0


@pytest.mark.parametrize("ending", ["half", "no newline"])
async def test_a_cut_last_line_is_run_again(tmp_path: Path, ending: str) -> None:
    first = await evaluate(TASKS, make_runner()[0], tmp_path, progress=False)
    path = tmp_path / "episodes.jsonl"
    content = path.read_text()
    path.write_text(content[:-200] if ending == "half" else content[:-1])
    runner, policy = make_runner()
    again = await evaluate(TASKS, runner, tmp_path, progress=False)
    assert set(policy.asked) == {"d"}
    assert again.em == first.em
    assert len(lines(tmp_path)) == 4


@pytest.mark.parametrize("line", ["{}", "garbage", "[]", '{"questions": 3}'])
async def test_damage_elsewhere_is_named(tmp_path: Path, line: str) -> None:
    await evaluate(TASKS, make_runner()[0], tmp_path, progress=False)
    path = tmp_path / "episodes.jsonl"
    kept = path.read_text().splitlines()
    kept[1] = line
    path.write_text("\n".join(kept) + "\n")
    with pytest.raises(DataError, match=r"episodes\.jsonl, line 2"):
        await evaluate(TASKS, make_runner()[0], tmp_path, progress=False)


async def test_a_rerun_drops_a_summary_that_it_makes_wrong(tmp_path: Path) -> None:
    runner, policy = make_runner()
    policy.out_of_reach = {"d"}
    await evaluate(TASKS, runner, tmp_path, progress=False)
    runner, policy = make_runner()
    policy.refuse = "d"
    with pytest.raises(PolicyError):
        await evaluate(TASKS, runner, tmp_path, progress=False)
    assert not (tmp_path / "summary.json").exists()


async def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    await evaluate(TASKS, make_runner()[0], tmp_path, progress=False, settings={"policy": {"path": "x"}})

    async def refused(pattern: str, tasks: list[Task] = TASKS, **options: object) -> None:
        settings = options.pop("settings", {"policy": {"path": "x"}})
        samples = options.pop("samples_per_task", 1)
        with pytest.raises(ConfigError, match=pattern):
            await evaluate(
                tasks,
                make_runner(**options)[0],
                tmp_path,
                samples_per_task=samples,  # type: ignore[arg-type]
                settings=settings,  # type: ignore[arg-type]
                progress=False,
            )

    await refused(r"sampling\.temperature is 0\.0 there and 1\.0 now", sampling=Sampling(1.0, seed=0))
    await refused(r"memory\.layout is 'prefix' there and 'paper' now", memory=MemoryConfig(layout="paper"))
    await refused(
        r"memory\.disabled_actions is \[\] there and \['read'\] now", memory=MemoryConfig(disabled_actions=["read"])
    )
    await refused(r"templates_sha256", memory=MemoryConfig(templates="compact"))
    await refused(r"samples_per_task is 1 there and 2 now", samples_per_task=2)
    await refused(r"policy\.path is 'x' there and 'y' now", settings={"policy": {"path": "y"}})
    await refused(r"policy is .* there and not set now", settings={})
    await refused(r"tasks\.count is 4 there and 3 now; tasks\.sha256 is \w{8}\.\.\. there", tasks=TASKS[:3])
    changed = [*TASKS[:3], make_task("d", questions=3, right=False)]
    await refused(r"tasks\.sha256", tasks=changed)
    # How many run at the same time changes no score.
    await evaluate(TASKS, make_runner(max_in_flight=9)[0], tmp_path, settings={"policy": {"path": "x"}}, progress=False)


async def test_a_folder_without_an_episode_belongs_to_nothing(tmp_path: Path) -> None:
    with OutputFolder(tmp_path, {"a": 1}):
        pass
    with OutputFolder(tmp_path, {"a": 2}):
        pass
    assert json.loads((tmp_path / "run.json").read_text()) == {"a": 2}


async def test_foreign_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "episodes.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"episodes\.jsonl but no run\.json"):
        await evaluate(TASKS, make_runner()[0], tmp_path, progress=False)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ConfigError, match=r"run\.json is not valid JSON"):
        await evaluate(TASKS, make_runner()[0], tmp_path, progress=False)


async def test_two_evaluations_never_share_a_folder(tmp_path: Path) -> None:
    with (
        OutputFolder(tmp_path, {"a": 1}),
        pytest.raises(ConfigError, match="is running in"),
        OutputFolder(tmp_path, {"a": 1}),
    ):
        pass
    with OutputFolder(tmp_path, {"a": 1}) as folder:
        assert folder.finished == {}


async def test_bad_arguments() -> None:
    with pytest.raises(DataError, match="two tasks have the id 'a'"):
        await evaluate([TASKS[0], TASKS[0]], make_runner()[0], progress=False)
    with pytest.raises(ConfigError, match="samples_per_task is 0"):
        await evaluate(TASKS, make_runner()[0], samples_per_task=0, progress=False)


def test_file_stems_are_safe_and_distinct() -> None:
    assert file_stem("hotpot-5a7.x_1") == "hotpot-5a7.x_1"
    stems = [file_stem(name) for name in ("a/b", "a_b", "a:b", "../../etc", "x" * 300, "x" * 301, "é")]
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

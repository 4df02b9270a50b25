"""Running, recording and continuing an evaluation, and budgets."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from atommem.config import MemoryConfig
from atommem.envs.scoring.statistics import wilson_interval
from atommem.errors import ConfigError, DataError, PolicyError
from atommem.eval.output import OutputFolder, file_stem
from tests.eval.toys import evaluated, make_task

TASKS = [make_task("a"), make_task("b", right=False), make_task("c"), make_task("d", questions=3)]


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]


@pytest.mark.slow
async def test_evaluate_scores_questions_and_leaves_failed_episodes_out() -> None:
    result, asked = await evaluated(TASKS)
    assert result.em == pytest.approx(5 / 6)
    assert len(asked) == 14
    result, _ = await evaluated(TASKS, gone="bd")
    summary = result.summary()
    assert (result.failed, len(result.records)) == (2, 4)
    em = summary["metrics"]["em"]
    assert (em["mean"], em["n"], (em["low"], em["high"])) == (1.0, 2, wilson_interval(2, 2))
    assert summary["errors"] == {"server gone": 2}


@pytest.mark.slow
async def test_evaluate_retries_failed_episodes_only(tmp_path: Path) -> None:
    await evaluated(TASKS, tmp_path, gone="b")
    with pytest.raises(PolicyError):
        await evaluated(TASKS, tmp_path, gone="b", error=PolicyError("refused"))
    assert not (tmp_path / "summary.json").exists()
    result, asked = await evaluated(TASKS, tmp_path)
    assert (set(asked), result.failed) == ({"b"}, 0)
    assert len(lines(tmp_path)) == 5  # the failure stays on record
    assert json.loads((tmp_path / "summary.json").read_text())["failed"] == 0


@pytest.mark.slow
async def test_output_folder_drops_a_torn_line_and_names_damage(tmp_path: Path) -> None:
    first, _ = await evaluated(TASKS, tmp_path)
    path = tmp_path / "episodes.jsonl"
    content = path.read_text()
    for cut in (200, 1):
        path.write_text(content[:-cut])
        again, asked = await evaluated(TASKS, tmp_path)
        assert (set(asked), again.em, len(lines(tmp_path))) == ({"d"}, first.em, 4)
    kept = content.splitlines(keepends=True)
    path.write_text("".join([kept[0], '{"questions": 3}\n', *kept[2:]]))
    with pytest.raises(DataError, match=r"episodes\.jsonl, line 2"):
        await evaluated(TASKS, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"runner": {"memory": MemoryConfig(templates="compact")}}, "templates_sha256"),
        ({"tasks": TASKS[:3]}, r"tasks\.count is 4 there and 3 now; tasks\.sha256 is "),
    ],
)
async def test_output_folder_refuses_other_settings_by_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    settings = {"policy": {"path": "x"}}
    await evaluated(TASKS, tmp_path, settings=settings)
    with pytest.raises(ConfigError, match=message):
        await evaluated(**{"tasks": TASKS, "out": tmp_path, "settings": settings, **changes})
    await evaluated(TASKS, tmp_path, settings=settings, runner={"max_in_flight": 9})


async def test_output_folder_refuses_foreign_and_busy_folders(tmp_path: Path) -> None:
    (tmp_path / "episodes.jsonl").write_text("{}\n")
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ConfigError, match=r"run\.json: .*Give another output folder"):
        await evaluated(TASKS, tmp_path)
    new = tmp_path / "new"
    with closing(OutputFolder(new, {"a": 1})), pytest.raises(ConfigError, match="another run"):
        OutputFolder(new, {"a": 1})


def test_file_stem_is_safe_and_distinct() -> None:
    assert file_stem("hotpot-5a7.x_1") == "hotpot-5a7.x_1"
    names = ("a/b", "a_b", "a:b", "../../etc", "x" * 300, "x" * 301, "é")
    stems = [file_stem(name) for name in names]
    assert len(set(stems)) == len(stems)
    assert all("/" not in stem and len(stem) < 120 for stem in stems)

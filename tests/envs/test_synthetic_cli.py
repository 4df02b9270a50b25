"""`atommem data synthetic`: what it writes reads back as the tasks that it generated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.envs.task_files import load_tasks
from tests.fakes import command

main = command("data")


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_the_file_holds_the_generated_tasks(tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / f"tasks{suffix}"
    knobs = ["--prose", "compact", "--hops", "1-3", "--questions", "2", "--corrections", "0.8", "--errata"]
    assert main(["synthetic", "--n", "7", "--seed", "3", "--out", str(out), *knobs]) == 0
    config = WorldConfig(prose="compact", hops=(1, 3), questions=(2, 2), corrections=0.8, errata=True)
    assert load_tasks(out) == list(generate(config, 7, seed=3))
    provenance = json.loads((tmp_path / f"{out.name}.json").read_text())
    assert provenance["world"]["corrections"] == 0.8
    assert provenance["seed"] == 3
    assert str(out) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n", "0", "--out", "x.parquet"], "n is 0"),
        (["--n", "1", "--out", "x.parquet", "--hops", "9"], "hops is 9-9"),
    ],
)
def test_wrong_values_are_named(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["synthetic", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_range_that_is_none_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["synthetic", "--n", "1", "--out", "x.parquet", "--hops", "one"])
    assert "'one' is not a number or a range" in capsys.readouterr().err

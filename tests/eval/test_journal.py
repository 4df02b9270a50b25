"""Long computations that are killed go on from what they had found."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from atommem.cli import main
from atommem.errors import ConfigError
from atommem.eval.journal import Journal, resumable
from tests.envs.benchmark_rows import write_lines


def kept(folder: Path) -> list[str]:
    return [line for file in folder.glob("kept/*.jsonl") for line in file.read_text().splitlines()]


def without_times(text: str) -> str:
    return re.sub(r'("found": "|seconds": |seconds, whole\S*: *)[\d.]+"?', "", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "other"),
    [
        ("reproduce regagent --seeds 0 --tasks 60 --json", ""),
        ("reproduce streams --tasks 40", "--seed 1"),
        ("retention table rows.jsonl --embedder hashing --capacities 20", "--equal words"),
    ],
)
def test_what_is_interrupted_goes_on(
    words: str,
    other: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        {
            "stream": stream,
            "text": f"in {i} Ann moved to town {i * 7 % 91} with {stream}",
            "needed": i % 5 == 0,
        }
        for stream in ("dog", "cat")
        for i in range(150)
    ]
    write_lines(tmp_path / "rows.jsonl", rows)
    command = [*words.split(), "--cache", "kept"]
    status = main(command)
    wanted = capsys.readouterr().out
    assert not kept(tmp_path), "what is done is not kept"
    add = Journal.add

    def interrupted(journal: Journal, name: str, value: Any) -> Any:
        if (
            len(kept(tmp_path)) == 3
        ):  # on disk as soon as they are there: SIGKILL would leave as much
            raise KeyboardInterrupt
        return add(journal, name, value)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", interrupted)
        assert main(command) == 130
    (file,) = tmp_path.glob("kept/*.jsonl")
    with file.open("a") as torn:
        torn.write('["half a li')
    capsys.readouterr()
    if other:
        main([*command, *other.split()])
        assert "taken up" not in capsys.readouterr().err, "other settings"
    assert main(command) == status
    found, said = capsys.readouterr()
    assert "3 results of a run that was interrupted are taken up" in said
    assert without_times(found) == without_times(wanted)
    assert not kept(tmp_path)


def test_only_what_is_not_a_fault_of_code_is_kept(tmp_path: Path) -> None:
    told: list[str] = []
    for error, there in (
        (ConfigError("no"), True),
        (KeyboardInterrupt(), True),
        (ValueError("a bug"), False),
    ):
        with suppress(type(error)), resumable(tmp_path, "it", {"a": 1}, told.append) as journal:
            assert journal.add("one", (1, 2)) == [1, 2]
            raise error
        assert bool(list(tmp_path.iterdir())) == there
    assert any("the same command goes on" in line for line in told)
    with resumable(tmp_path / "new", "it", {}, print) as journal:
        assert journal.get("one") is None
    assert not (tmp_path / "new").exists(), "nothing is written without a result"


def test_a_changed_file_is_another_computation(tmp_path: Path) -> None:
    data = tmp_path / "weights.json"
    settings = {"rules": [f"linear(weights={data})"]}
    for text, known in (("1", None), ("1", 5), ("22", None)):
        if not data.exists() or data.read_text() != text:
            data.write_text(text)
        with suppress(KeyboardInterrupt), resumable(tmp_path, "it", settings, print) as journal:
            assert journal.get("one") == known
            journal.add("one", 5)
            raise KeyboardInterrupt

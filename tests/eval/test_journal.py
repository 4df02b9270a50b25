"""Long computations that are killed go on from what they had found."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from atommem.errors import ConfigError
from atommem.eval.journal import Journal, resumable

ROOT = Path(__file__).parents[2]
RUN = "import sys; from atommem.cli import main; sys.exit(main(sys.argv[1:]))"


def start(words: list[str], folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN, *words, "--cache", "kept"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True, env=environment)


def kept(folder: Path) -> list[str]:
    return [line for file in folder.glob("kept/*.jsonl") for line in file.read_text().splitlines()]


def without_times(text: str) -> str:
    return re.sub(r'("found": "|seconds": |seconds, whole\S*: *)[\d.]+"?', "", text)


@pytest.mark.parametrize(
    ("words", "other", "how"),
    [
        (["reproduce", "regagent", "--seeds", "0", "--tasks", "200", "--json"], [], signal.SIGKILL),
        (["reproduce", "streams", "--tasks", "40"], ["--seed", "1"], signal.SIGINT),
        (
            ["retention", "table", "rows.jsonl", "--embedder", "hashing", "--capacities", "20"],
            ["--equal", "words"],
            signal.SIGINT,
        ),
    ],
)
def test_what_is_killed_goes_on(words: list[str], other: list[str], how: int, tmp_path: Path) -> None:
    rows = [
        {"stream": stream, "text": f"in {i} Ann moved to town {i * 7 % 91} with {stream}", "needed": i % 5 == 0}
        for stream in ("dog", "cat")
        for i in range(150)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    whole = start(words, tmp_path)
    wanted, _ = whole.communicate(timeout=600)
    assert not kept(tmp_path), "what is done is not kept"
    run = start(words, tmp_path)
    while len(kept(tmp_path)) < 3:
        assert run.poll() is None, "too fast to be interrupted"
        time.sleep(0.01)
    run.send_signal(how)
    run.communicate(timeout=60)
    assert run.returncode in (130, -how)
    before = kept(tmp_path)
    (file,) = tmp_path.glob("kept/*.jsonl")
    with file.open("a") as torn:
        torn.write('["half a li')
    if other:
        assert "taken up" not in start([*words, *other], tmp_path).communicate(timeout=600)[1], "other settings"
    again = start(words, tmp_path)
    found, said = again.communicate(timeout=600)
    assert again.returncode == whole.returncode
    assert f"{len(before)} results of a run that was interrupted are taken up" in said
    assert without_times(found) == without_times(wanted)
    assert not kept(tmp_path)


def test_only_what_is_not_a_fault_of_code_is_kept(tmp_path: Path) -> None:
    told: list[str] = []
    for error, there in ((ConfigError("no"), True), (KeyboardInterrupt(), True), (ValueError("a bug"), False)):
        with suppress(type(error)), resumable(tmp_path, "it", {"a": 1}, told.append) as journal:
            assert journal.add("one", (1, 2)) == [1, 2]
            raise error
        assert bool(list(tmp_path.iterdir())) == there
    assert any("the same command goes on" in line for line in told)


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


def test_nothing_is_written_without_a_result(tmp_path: Path) -> None:
    with resumable(tmp_path / "new", "it", {}, print) as journal:
        assert journal.get("one") is None
    assert not (tmp_path / "new").exists()
    assert Journal().add("one", 1) == 1

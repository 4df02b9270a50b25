"""The command line of the experiments, stored vectors, and resuming."""

from __future__ import annotations

import json
import re
import runpy
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.errors import ConfigError
from papers import experiment, inputs
from papers.experiment import Journal, Report, resumable
from papers.inputs import StoredVectors, embed_all


def unit_vectors(seed: int, n: int, dim: int = 8) -> Any:
    """Random unit vectors, (n, dim) float32; for the tests of the papers."""
    vectors = np.random.default_rng(seed).normal(size=(n, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def run_toy(*flags: str) -> int:
    """Run an experiment whose check wants ``--size 1``."""

    def run(arguments: Any, journal: Journal) -> Report:
        report = Report("toy", "nowhere")
        report.table("Sizes", ["name", "size"], [["a [b]", 0.25], ["c", None]])
        report.check("size", arguments.size == 1, arguments.size, 1)
        return report

    def add_flags(parser: Any) -> None:
        parser.add_argument("--size", type=int, default=1)

    return experiment.main("toy", "A toy.", add_flags, run, flags)


def test_main_prints_tables_and_a_verdict_and_writes_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ["--cache", str(tmp_path)]
    assert run_toy("--check", "--out", str(tmp_path), *flags) == 0
    out = capsys.readouterr().out
    assert "| a [b] | 0.250 |" in out
    verdict = {"paper": "toy", "holds": True, "checks": 1, "failed": {}}
    assert json.loads(out.splitlines()[-1]) == verdict
    assert json.loads((tmp_path / "toy.json").read_text())["tables"][0]["rows"][1] == ["c", None]
    assert "| a [b] | 0.250 |" in (tmp_path / "toy.md").read_text()
    assert run_toy("--size", "3", *flags) == 0
    assert run_toy("--check", "--size", "3", *flags) == 1
    assert '"failed": {"size": "3, wanted 1"}' in capsys.readouterr().out


def test_embed_all_stores_vectors_by_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make(config: Any) -> StoredVectors:
        made.append(config.embedder_model)
        return StoredVectors(["a", "b", "c"], unit_vectors(0, 3))

    monkeypatch.setattr(inputs, "make_embedder", make)
    for texts, count in ((["a", "b"], 1), (["a", "b"], 1), (["a", "c"], 2)):
        assert embed_all(texts, "m", tmp_path).shape == (2, 8)
        assert len(made) == count


def stored_lines(folder: Path) -> list[str]:
    return [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]


def run_command(words: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    name, *flags = words.split()
    monkeypatch.setattr(sys, "argv", [name, *flags, "--cache", str(cache)])
    with pytest.raises(SystemExit) as status:
        runpy.run_module(f"papers.{name}", run_name="__main__")
    return status.value.code


@pytest.mark.slow
def test_interrupted_command_resumes_with_the_same_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "regagent --seeds 0 --tasks 60 --json"
    cache = tmp_path / "cache"
    status = run_command(words, cache, monkeypatch)
    expected = capsys.readouterr().out
    assert not stored_lines(cache)
    add = Journal.add

    def interrupt(journal: Journal, name: str, value: Any) -> Any:
        if len(stored_lines(cache)) == 3:
            raise KeyboardInterrupt
        return add(journal, name, value)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", interrupt)
        assert run_command(words, cache, patch) == 130
    (file,) = cache.glob("*.jsonl")
    with file.open("a") as torn:
        torn.write('["half a li')
    capsys.readouterr()
    assert run_command(words, cache, monkeypatch) == status
    out, err = capsys.readouterr()
    assert "resuming with 3 results" in err
    times = r'("found": "|seconds": |seconds, whole\S*: *)[\d.]+"?'
    assert re.sub(times, "", out) == re.sub(times, "", expected)
    assert not stored_lines(cache)


def test_resumable_keeps_results_after_user_errors_only(tmp_path: Path) -> None:
    for error, stored in ((ConfigError("no"), 1), (KeyboardInterrupt(), 1), (ValueError(), 0)):
        with suppress(type(error)), resumable(tmp_path, "it", {"a": 1}) as journal:
            assert journal.add("one", (1, 2)) == [1, 2]
            raise error
        assert len(list(tmp_path.iterdir())) == stored


def test_resumable_ignores_results_of_changed_files(tmp_path: Path) -> None:
    data = tmp_path / "rows.json"
    for text, stored in (("1", False), ("1", True), ("22", False)):
        if not data.exists() or data.read_text() != text:
            data.write_text(text)
        with suppress(KeyboardInterrupt), resumable(tmp_path, "it", {"data": data}) as journal:
            assert ("one" in journal) == stored
            journal.add("one", 5)
            raise KeyboardInterrupt

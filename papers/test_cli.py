"""The command line of the experiments, stored vectors, and resuming."""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atommem.errors import ConfigError
from papers import cli
from papers.inputs import embed_all
from papers.journal import Journal, resumable
from papers.report import Report, Table
from papers.retention import __main__ as retention
from tests.envs.benchmark_rows import write_lines
from tests.fakes import WordEmbedder


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install an experiment called ``toy`` whose check wants ``--size 1``."""

    def run(arguments: Any, progress: Any, journal: Journal) -> Report:
        progress("at work")
        report = Report("toy", "nowhere")
        report.tables.append(Table("Sizes", ["name", "size"], [["a [b]", 0.25], ["c", None]]))
        report.check("size", arguments.size == 1, arguments.size, 1)
        return report

    def add_flags(parser: Any) -> None:
        parser.add_argument("--size", type=int, default=1)

    module = SimpleNamespace(__doc__="A toy.", add_flags=add_flags, run=run)
    monkeypatch.setitem(sys.modules, "papers.toy.experiment", module)  # type: ignore[arg-type]


@pytest.mark.usefixtures("toy")
def test_main_prints_tables_and_a_verdict_and_writes_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ["--cache", str(tmp_path)]
    assert cli.main("toy", ["--check", "--out", str(tmp_path), *flags]) == 0
    out, err = capsys.readouterr()
    assert "| a [b] | 0.250 |" in out
    verdict = {"paper": "toy", "holds": True, "checks": 1, "failed": {}}
    assert json.loads(out.splitlines()[-1]) == verdict
    assert err == "at work\n"
    assert json.loads((tmp_path / "toy.json").read_text())["tables"][0]["rows"][1] == ["c", None]
    assert "| a [b] | 0.250 |" in (tmp_path / "toy.md").read_text()
    assert cli.main("toy", ["--size", "3", *flags]) == 0
    assert cli.main("toy", ["--check", "--size", "3", *flags]) == 1
    assert '"failed": {"size": "3, wanted 1"}' in capsys.readouterr().out


def test_main_reports_missing_data_on_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main("memobank", ["--data", str(tmp_path), "--cache", str(tmp_path)]) == 2
    assert "Agent-on-the-Fly/Memento" in capsys.readouterr().err


def test_embed_all_stores_vectors_by_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from atommem.embedding import models

    class Model(WordEmbedder):
        made = 0

        def __init__(self, model: str) -> None:
            super().__init__()
            Model.made += 1

    monkeypatch.setattr(models, "SentenceTransformerEmbedder", Model)
    for texts, made in ((["a", "b"], 1), (["a", "b"], 1), (["a", "c"], 2)):
        assert embed_all(texts, "m", tmp_path).shape == (2, Model.dim)
        assert Model.made == made


def stored_lines(folder: Path) -> list[str]:
    return [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]


def run_command(words: str, cache: Path) -> int:
    name, *flags = [*words.split(), "--cache", str(cache)]
    if name == "retention":
        return cli.run_safely(name, lambda: retention.main(flags))
    return cli.main(name, flags)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "regagent --seeds 0 --tasks 60 --json",
        "streams --tasks 40",
        "retention table rows.jsonl --embedder hashing --capacities 20",
    ],
)
def test_interrupted_command_resumes_with_the_same_output(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        {"stream": name, "text": f"in {i} Ann moved to {i * 7 % 91}", "needed": i % 5 == 0}
        for name in ("dog", "cat")
        for i in range(150)
    ]
    write_lines(tmp_path / "rows.jsonl", rows)
    cache = tmp_path / "cache"
    status = run_command(words, cache)
    expected = capsys.readouterr().out
    assert not stored_lines(cache)
    add = Journal.add

    def interrupt(journal: Journal, name: str, value: Any) -> Any:
        if len(stored_lines(cache)) == 3:
            raise KeyboardInterrupt
        return add(journal, name, value)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", interrupt)
        assert run_command(words, cache) == 130
    (file,) = cache.glob("*.jsonl")
    with file.open("a") as torn:
        torn.write('["half a li')
    capsys.readouterr()
    assert run_command(words, cache) == status
    out, err = capsys.readouterr()
    assert "resuming with 3 results" in err
    times = r'("found": "|seconds": |seconds, whole\S*: *)[\d.]+"?'
    assert re.sub(times, "", out) == re.sub(times, "", expected)
    assert not stored_lines(cache)


def test_resumable_keeps_results_after_user_errors_only(tmp_path: Path) -> None:
    for error, stored in ((ConfigError("no"), 1), (KeyboardInterrupt(), 1), (ValueError(), 0)):
        with suppress(type(error)), resumable(tmp_path, "it", {"a": 1}, print) as journal:
            assert journal.add("one", (1, 2)) == [1, 2]
            raise error
        assert len(list(tmp_path.iterdir())) == stored


def test_resumable_ignores_results_of_changed_files(tmp_path: Path) -> None:
    data = tmp_path / "weights.json"
    settings = {"rules": [f"linear(weights={data})"]}
    for text, stored in (("1", None), ("1", 5), ("22", None)):
        if not data.exists() or data.read_text() != text:
            data.write_text(text)
        with suppress(KeyboardInterrupt), resumable(tmp_path, "it", settings, print) as journal:
            assert journal.get("one") == stored
            journal.add("one", 5)
            raise KeyboardInterrupt

"""`atommem reproduce`: what it prints, writes and exits with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atommem import cli
from atommem.errors import DataError
from atommem.eval.reproduce import reproduce_cli
from atommem.eval.reproduce.sheet import Grid, Sheet
from atommem.eval.reproduce.user_files import embed_all
from tests.fakes import WordEmbedder


class Experiment:
    """Stands for an experiment's module."""

    holds = True

    @classmethod
    def add_flags(cls, parser: Any) -> None:
        parser.add_argument("--size", type=int, default=1)

    @classmethod
    def run(cls, arguments: Any, tell: Any, journal: Any) -> Sheet:
        tell("at work")
        sheet = Sheet("toy", "nowhere")
        sheet.tables.append(Grid("Sizes", ["name", "size"], [["a [b]", 0.25], ["c", None]]))
        sheet.check("size", cls.holds, arguments.size, 1)
        sheet.notes.append("it is a toy")
        return sheet


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reproduce_cli.EXPERIMENTS, "toy", "a toy")
    monkeypatch.setattr(reproduce_cli, "import_module", lambda name: Experiment)
    monkeypatch.setattr(Experiment, "holds", True)


def test_tables_checks_and_a_last_line_of_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert reproduce_cli.main(["toy", "--check", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "0.250" in out
    assert "a [b]" in out
    assert json.loads(out.splitlines()[-1]) == {
        "reproduce": "toy",
        "holds": True,
        "checks": 1,
        "failed": {},
    }
    assert err == "at work\n"
    assert json.loads((tmp_path / "toy.json").read_text())["tables"][0]["rows"][1] == ["c", None]
    assert "| a [b] | 0.250 |" in (tmp_path / "toy.md").read_text()


def test_only_check_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Experiment, "holds", False)
    assert reproduce_cli.main(["toy", "--json", "--size", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["holds"], found["checks"][0]["found"]) == (False, "3")
    assert reproduce_cli.main(["toy", "--check"]) == 1
    assert '"failed": {"size": "1, wanted 1"}' in capsys.readouterr().out


def test_a_wrong_folder_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    with pytest.raises(DataError, match="Agent-on-the-Fly/Memento"):
        reproduce_cli.main(["memobank", "--data", str(tmp_path)])
    assert "reproduce" in cli._SUMMARIES


def test_vectors_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from atommem.embedding import sentence_transformer

    class Model(WordEmbedder):
        made = 0

        def __init__(self, model: str) -> None:
            super().__init__()
            Model.made += 1

    monkeypatch.setattr(sentence_transformer, "SentenceTransformerEmbedder", Model)
    for texts, made in ((["a", "b"], 1), (["a", "b"], 1), (["a", "c"], 2)):
        assert embed_all(texts, "m", tmp_path).shape == (2, Model.dim)
        assert Model.made == made

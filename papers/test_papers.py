"""The command line of the experiments, stored vectors, resuming, and the experience bank."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.embedding.embedder import HashingEmbedder
from atommem.errors import ConfigError
from atommem.memory.log import Outcome
from atommem.memory.rules import StoreState
from atommem.policy.contract import Completion
from papers import experiment, inputs
from papers.banks import LINEAR, TraceRetain
from papers.experience import Bank, Experience, Verdict
from papers.experiment import Journal, Report, resumable
from papers.inputs import StoredVectors, embed_all


def unit_vectors(seed: int, n: int, dim: int = 8) -> Any:
    """Random unit vectors, (n, dim) float32; for the tests of the papers."""
    vectors = np.random.default_rng(seed).normal(size=(n, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


class ChatServer:
    """A chat server whose replies a function makes of the last message; keeps these."""

    def __init__(self, reply: Callable[[str], str]) -> None:
        self.reply, self.prompts = reply, list[str]()

    async def complete_chat(self, messages: list[dict[str, str]], sampling: Any) -> Completion:
        self.prompts.append(messages[-1]["content"])
        return Completion([], [], self.reply(self.prompts[-1]), "stop")

    async def model_name(self) -> str:
        return "m"

    async def close(self) -> None: ...


@pytest.mark.parametrize("paper", ["amac", "memobank", "traceretain", "experience_following"])
def test_readme_has_one_row_for_every_part_of_the_paper(paper: str) -> None:
    text = (Path(__file__).parent / paper / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*?) \| .+ \|.*\|$", text.split("## Every part")[1], re.MULTILINE)
    parts = import_module(f"papers.{paper}.test_{paper}").PARTS
    assert sorted(rows[2:]) == sorted(parts)


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
    assert run_toy("--check", "--output_dir", str(tmp_path), *flags) == 0
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
    words = "regagent --seeds 0 --tasks 60"
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
    times = r"(seconds, whole\S*: *)[\d.]+"
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


TASKS = [
    (f"{verb} the {thing}", float(len(thing) % 2))
    for verb in ("put", "heat", "cut")
    for thing in ("egg", "plum")
]


def make_bank(**settings: Any) -> Bank:
    return Bank(HashingEmbedder(64), **settings)


async def play(bank: Bank, tasks: list[tuple[str, float]]) -> list[Any]:
    log: list[Any] = []
    for query, outcome in tasks:
        await bank.retrieve(query, 2)
        log += await bank.end(Experience(query, f"did {query}", outcome, {"steps": 7}))
    return log


async def test_bank_end_updates_shown_records_and_adds_one() -> None:
    bank = make_bank()
    await bank.fill([Experience("put the egg", "did it before", 1.0)])
    found = await bank.retrieve("put the egg", 3)
    assert [(record.text, round(score, 3)) for record, score in found] == [("put the egg", 1.0)]
    operations = await bank.end(Experience("put the plum", "did put", 0.0, {"steps": 7}))
    kinds = [operation.kind for operation in operations]
    assert kinds == ["observe", "create", "outcome", "retrieve"]
    first, second = bank.records()
    assert (first.created, first.shown, first.last_shown, first.uses) == (0, 1, 1, 1)
    assert (first.mean_outcome, second.created, second.outcome) == (0.0, 1, 0.0)
    assert second.details == {"execution": "did put", "steps": 7}
    assert bank.task == 2


@pytest.mark.parametrize("newest", [False, True])
async def test_bank_retrieve_orders_equal_records_by_age(newest: bool) -> None:
    bank = make_bank(newest_first=newest)
    await bank.fill(Experience("put the egg", str(i)) for i in range(5))
    found = await bank.retrieve("put the egg", 2)
    assert [record.id for record, _ in found] == ([5, 4] if newest else [1, 2])

    def similarity(query: str, store: StoreState) -> Any:
        entries = [store.entries[i] for i in store.ids.tolist()]
        return [-abs(int(query) - int((entry.details or {})["execution"])) for entry in entries]

    found = await bank.retrieve("3", 2, similarity)
    executions = [(record.details or {})["execution"] for record, _ in found]
    assert executions == ["3", "4" if newest else "2"]


@pytest.mark.parametrize(
    "retention", ["fifo", "memobank(least_positive=1)", "combined(period=3, n=1)", "traceretain"]
)
async def test_bank_stays_within_capacity_and_repeats(retention: str) -> None:
    settings: dict[str, Any] = {"capacity": 3, "retention": retention, "admission": "memobank"}
    logs = []
    for _ in range(2):
        bank = make_bank(**settings)
        logs.append(await play(bank, TASKS * 3))
        assert len(bank) <= 3
    assert logs[0] == logs[1]


class CheckedTraceRetain(TraceRetain):
    """Compares its scores with the features computed record by record."""

    compared: list[int] = []  # noqa: RUF012

    def scores(self, store: StoreState) -> Any:
        found, now = super().scores(store), max(1, store.step)
        cosines = store.vectors @ store.vectors.T
        for place, record in enumerate(store.entries[i] for i in store.ids.tolist()):
            others = np.delete(cosines[place], place)
            last = record.created if record.last_shown is None else record.last_shown
            features = {
                "success": record.outcome or 0.0,
                "age": (store.step - record.created) / now,
                "gap": (store.step - last) / now,
                "frequency": np.log1p(record.shown) / np.log1p(now),
                "specificity": 1 - others.mean(),
                "redundancy": max(0.0, others.max()),
                "efficiency": 1 - (record.details or {})["steps"] / 50,
                "utility": 0.5 if record.mean_outcome is None else record.mean_outcome,
                "confidence": record.uses / (record.uses + 3),
                "last_similarity": record.last_similarity or 0.0,
                "mean_similarity": record.mean_similarity or 0.0,
            }
            expected = sum(LINEAR[name] * features[name] for name in LINEAR)
            assert found[place] == pytest.approx(expected, abs=2e-5)
        self.compared.append(len(found))
        return found


async def test_traceretain_scores_equal_the_weighted_features() -> None:
    await play(make_bank(capacity=6, retention=f"{__name__}:CheckedTraceRetain"), TASKS * 5)
    assert len(CheckedTraceRetain.compared) == 24


@pytest.mark.parametrize("outcome", [1.0, None])
async def test_bank_counts_use_without_an_outcome(outcome: float | None) -> None:
    bank = make_bank(retention="periodic(period=2)")
    await bank.fill([Experience("put the egg", ""), Experience("cut the plum", "")])
    await bank.retrieve("put the egg", 1)
    await bank.end(Experience("put the egg", "", outcome, {"steps": "many"}))
    await bank.end(Experience("heat the pear", "", outcome))
    assert [record.id for record in bank.records()] == [1, 3, 4]


async def test_verdict_decides_whether_a_task_is_added() -> None:
    bank = make_bank()
    for added in (True, False):
        operations = await bank.end(Experience("q", "e"), Verdict(added, None, "too long"))
    assert (operations[-1].outcome, operations[-1].reason) == (Outcome.REJECTED, "too long")
    assert len(bank) == 1

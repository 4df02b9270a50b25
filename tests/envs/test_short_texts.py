"""Texts for small models: strangers' texts, short tasks of real rows, and their notes."""

from pathlib import Path

import pytest

from atommem.envs.task_files import load_tasks
from tests.envs.benchmark_rows import sample, write_json, write_lines
from tests.fakes import load_script

_ROW = sample("film")
STRANGERS = Path(__file__).parents[1] / "strangers.jsonl"


class Words:
    def encode(self, text: str, **_: object) -> list[int]:
        return [0] * len(text.split())


def test_strangers_texts_are_sixty_and_contain_an_accepted_answer() -> None:
    tasks = load_tasks(STRANGERS)
    assert len({task.questions[0].text for task in tasks}) == 60
    for task in tasks:
        text = " ".join(document.text for document in task.documents).lower()
        assert any(answer.lower() in text for answer in task.questions[0].answers)
        assert any(document.gold for document in task.documents)


@pytest.mark.slow  # it imports transformers
def test_short_rows_writes_rows_and_single_hops_with_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    main = load_script("short_rows").main
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda name: Words())
    for name in ("hotpotqa", "2wikimultihopqa", "musique"):
        (tmp_path / name).mkdir()
    write_json(tmp_path / "hotpotqa" / "hotpot_train_v1.1.json", [])
    write_json(tmp_path / "2wikimultihopqa" / "train.json", [_ROW])
    write_lines(tmp_path / "musique" / "musique_ans_v1.0_train.jsonl", [{"answerable": False}])
    out = tmp_path / "out.jsonl"
    arguments = ["--split", "train", "--tokenizer", "-"]
    arguments += ["--documents", "2-3", "--most_tokens", "15"]
    assert main([str(tmp_path), str(out), *arguments]) == 0
    tasks = {task.questions[0].text: task for task in load_tasks(out)}
    hops = {"Who directed The Long Ferry?", "When was Ada Crane born?"}
    assert {*tasks} == {_ROW["question"], *hops}
    task = tasks["When was Ada Crane born?"]
    assert task.questions[0].answers == ("3 May 1901",)
    (note,) = task.metadata["notes"]
    assert note["text"] == "Ada Crane was born on 3 May 1901 in Cork."
    assert sum(note["sentence"] in document.text for document in task.documents) == 1
    both = tasks[str(_ROW["question"])]
    assert {note["text"] for note in both.metadata["notes"]} == {
        "The Long Ferry is a film by Ada Crane.",
        "Ada Crane was born on 3 May 1901 in Cork.",
    }
    assert both.metadata["query"] == "The Long Ferry"

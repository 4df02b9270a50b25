"""Generated and short texts: told facts, ledgers, RULER, strangers' texts, and their notes."""

import asyncio
import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from atommem.dialects import get_dialect
from atommem.envs.data_cli import main
from atommem.envs.question_answering import score_answers
from atommem.envs.scoring.metrics import all_of_scores, score_question
from atommem.envs.synthetic import ledger, ruler
from atommem.envs.synthetic.ledger import LedgerConfig
from atommem.envs.synthetic.ruler import FAMILIES, RulerConfig
from atommem.envs.synthetic.told import RELATIONS, ToldConfig, generate
from atommem.envs.synthetic.writing import SPLITS
from atommem.envs.task import Task
from atommem.envs.task_files import load_tasks
from atommem.episode import Episode
from atommem.errors import ConfigError, DataError
from tests.envs.benchmark_rows import sample, write_json, write_lines
from tests.envs.test_synthetic import run_expert
from tests.fakes import WordTokenizer, load_script, longdoc

ROOT = Path(__file__).parents[2]


def tasks_of(split: str, count: int, **settings: object) -> list[Task]:
    config = ToldConfig(**{"levels": (1, 4), **settings})  # type: ignore[arg-type]
    return list(generate(config, count, 5, split))


def read(tasks: list[Task]) -> list[Episode]:
    expert = load_script("gold_demonstrations").NotesExpert(get_dialect("paper"))
    factory = longdoc(WordTokenizer(), chunking="documents", max_reads=0)
    episodes = []
    for task in tasks:
        expert.start(task)
        episodes += run_expert(expert, factory, [task], templates="compact")
    return episodes


@pytest.mark.parametrize("split", ["train", "test"])
def test_reader_without_faults_answers_every_told_question(split):
    tasks = tasks_of(split, 25)
    episodes = read(tasks)
    assert {episode.reward for episode in episodes} == {1.0}
    used = {note["kind"] for task in tasks for note in task.metadata["notes"]}
    assert used == {"create", "update", "delete"}
    for task, episode in zip(tasks, episodes, strict=True):
        assert not any(step.problems for step in episode.steps)
        # At most one note of a paragraph, beside the first step's search.
        for step in episode.steps:
            assert sum(action.kind != "read" for action in step.actions) <= 1
        gold = " ".join(document.text for document in task.documents if document.gold)
        assert task.questions[0].answers[0] in gold


def test_everyday_texts_share_nothing_and_their_notes_are_faultless():
    names = ("scripts/everyday_texts", "scripts/everyday_heldout", "tests/strangers")
    shown, held_out, strangers = (load_tasks(ROOT / f"{name}.jsonl") for name in names)
    texts = [
        document.text for task in (*shown, *held_out, *strangers) for document in task.documents
    ]
    assert len({*texts}) == len(texts)
    assert (len(shown), len(held_out)) == (460, 60)
    assert {episode.reward for episode in read([*shown, *held_out])} == {1.0}


def test_told_splits_share_no_name_and_test_has_wordings_of_its_own():
    train, test = tasks_of("train", 300), tasks_of("test", 300)
    people = re.compile(r"[A-Z][a-z]+")
    parts = [
        {part for task in tasks for part in people.findall(task.metadata["query"])}
        for tasks in (train, test)
    ]
    assert all(parts)
    assert not parts[0] & parts[1]
    assert not any(task.questions[0].metadata["unseen"] for task in train)
    unseen = sum(task.questions[0].metadata["unseen"] for task in test) / len(test)
    assert 0.3 < unseen < 0.9
    last = RELATIONS["opening"]["say"].split("|")[-1].split("<")[0].format(s="").strip()
    assert not any(last in document.text for task in train for document in task.documents)


def test_told_levels_set_paragraphs_hops_and_corrections():
    for level, most in ((1, 2), (2, 4), (3, 6), (4, 12)):
        tasks = tasks_of("train", 60, levels=(level, level))
        assert max(len(task.documents) for task in tasks) == most
        details = [task.questions[0].metadata for task in tasks]
        assert (max(detail["hops"] for detail in details) == 2) == (level > 2)
        assert any(detail["corrected"] for detail in details) == (level > 1)
    assert tasks_of("train", 3) == tasks_of("train", 9)[:3]
    with pytest.raises(ConfigError, match="levels"):
        ToldConfig(levels=(1, 5))


def test_data_build_writes_told_tasks_and_their_origin(tmp_path):
    out = tmp_path / "told.parquet"
    words = ["--split", "test", "--n", "3", "--seed", "5", "--levels", "1-4", "--out", str(out)]
    assert main(["build", "--benchmark", "told", *words]) == 0
    assert load_tasks(out) == tasks_of("test", 3)
    origin = json.loads((tmp_path / "told.parquet.json").read_text())
    assert (origin["source"], origin["split"]) == ("told", "test")
    assert origin["texts"]["levels"] == [1, 4]


def ledgers(split: str, count: int, **settings: object) -> list[Task]:
    config = LedgerConfig(**{"questions": (1, 2), **settings})  # type: ignore[arg-type]
    return list(ledger.generate(config, count, 5, split))


def booked(text: str, name: str, verb: str, unit: str) -> list[int]:
    """Read an account from its text, by rules of this test."""
    entries: list[int] = []
    for sentence in re.split(r"(?<=[.!?:]) ", text):
        amounts = [int(found) for found in re.findall(rf"(\d+) {unit}", sentence)]
        if not amounts or not re.search(rf"\b{name}\b.* {verb} |that {name} {verb}", sentence):
            continue
        changes = len(amounts) == 2 or re.search(rf"the last {amounts[0]} ", sentence, re.I)
        if changes:
            assert entries.pop() == amounts[0]
        if len(amounts) == 2 or not changes:
            entries.append(amounts[-1])
    return entries


def account(note: str) -> tuple[str, ...]:
    pattern = r"(.+) has (?:most recently )?(\w+) (?:\d+ )?(\w+)(?: \d+ times| in all)?\."
    found = re.fullmatch(pattern, note)
    assert found
    return found.groups()


@pytest.mark.parametrize(
    ("split", "count"),
    [("train", 8), *(pytest.param(split, 200, marks=pytest.mark.slow) for split in SPLITS)],
)
def test_ledger_answers_follow_from_the_text_and_a_reader_gives_them(split, count):
    tasks = ledgers(split, count, corrections=0.5)
    asked = set()
    for task in tasks:
        text = " ".join(document.text for document in task.documents)
        for question in task.questions:
            what = question.metadata["type"]
            asked.add(what)
            found = {account(note["text"]) for note in task.metadata["notes"]}
            which = next(a for a in found if a[0] in question.text and a[1] in question.text)
            entries = booked(text, *which)
            value = {"count": len(entries), "sum": sum(entries), "latest": entries[-1]}[what]
            assert question.answers == (str(value),)
    assert asked == {"count", "sum", "latest"}
    episodes = read(tasks)
    assert {episode.reward for episode in episodes} == {1.0}
    assert not any(step.problems for episode in episodes for step in episode.steps)
    used = {note["kind"] for task in tasks for note in task.metadata["notes"]}
    assert used == {"create", "update"}


def string_match_all(prediction: str, references: list[str]) -> float:
    """As in NVIDIA/RULER, scripts/eval/synthetic/constants.py (Apache-2.0), of one row."""
    found = sum(1.0 if r.lower() in prediction.lower() else 0.0 for r in references)
    return found / len(references)


@pytest.fixture
def prose(tmp_path: Path) -> Path:
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(4, 8))) for _ in range(400)]
    sentences = (" ".join(rng.sample(words, 9)).capitalize() + "." for _ in range(80))
    (tmp_path / "prose.txt").write_text(" ".join(sentences))
    return tmp_path / "prose.txt"


def ruler_tasks(family: str, prose: Path, count: int = 5) -> list[Task]:
    return list(ruler.generate(RulerConfig(family, str(prose), 400), count, 1, "train"))


@pytest.mark.parametrize("family", FAMILIES)
def test_ruler_values_follow_from_the_text(family, prose):
    for task in ruler_tasks(family, prose):
        (question,) = task.questions
        text = " ".join(document.text for document in task.documents)
        counts = Counter(text.split())
        if family == "variable_tracking":
            value = question.text.split("value ")[1].split()[0]
            known = {value}
            for name, given in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", text):
                known |= {name} if given in known else set()
            assert {*question.answers} == known - {value}
            assert len(question.answers) == 5
        elif family.endswith("_words"):
            most = {word for word, _ in counts.most_common(len(question.answers))}
            assert {*question.answers} == most
        else:
            asked = re.findall(r"\w+", question.text.split(" for ")[1].split(" mentioned")[0])
            needles = re.findall(r"numbers for (\w+) is: (\d+)\.", text)
            assert {*question.answers} == {value for name, value in needles if name in asked}
        assert any(document.gold for document in task.documents)
        answer = ", ".join([*question.answers[:2], "other"])
        recall = score_question(question, answer, task.source)["sub_em"]
        assert recall == string_match_all(answer, [*question.answers])


def test_all_of_recall_equals_the_official_scorer_and_lists_do_not_pay():
    rng = random.Random(3)
    for _ in range(300):
        values = [str(rng.randint(1000, 9999)) for _ in range(rng.randint(1, 5))]
        others = [str(rng.randint(1000, 9999)) for _ in range(4)]
        given = rng.sample([*values, *others], rng.randint(0, 5))
        answer = rng.choice([", ", " and ", "\n", " "]).join(given)
        scores = all_of_scores(answer, values)
        assert scores["sub_em"] == string_match_all(answer, values)
        # A guess beside an answer never raises what a reward may be.
        more = all_of_scores(f"{answer}, {rng.randint(10_000, 99_999)}", values)
        assert more["em"] <= scores["em"]
        assert more["net_recall"] <= scores["net_recall"]
    assert all_of_scores("1234 and 5678.", ["5678", "1234"])["em"] == 1.0
    assert all_of_scores(None, ["5678"]) == dict.fromkeys(("em", "f1", "sub_em", "net_recall"), 0.0)


def test_official_ruler_rows_ask_for_all_outputs(tmp_path):
    text = "Some text. There are 12 and 34.\nWhat are all the numbers?"
    row = {"index": 0, "input": text, "outputs": ["12", "34"], "length": 9}
    (task,) = load_tasks(write_lines(tmp_path / "validation.jsonl", [row]))
    assert task.questions[0].text == "What are all the numbers?"
    assert task.context == "Some text. There are 12 and 34."
    score = asyncio.run(score_answers(task, ["34, 12, 99"], "net_recall"))
    assert (score.reward, score.metrics["sub_em"]) == (0.5, 1.0)


def test_ruler_needs_prose(tmp_path):
    (tmp_path / "short.txt").write_text("Too short.")
    for name in ("short.txt", "missing.txt"):
        with pytest.raises(DataError, match="prose"):
            ruler_tasks("niah_single", tmp_path / name)


_ROW = sample("film")


@pytest.mark.slow  # it imports transformers
def test_short_rows_writes_rows_and_single_hops_with_notes(tmp_path, monkeypatch):
    import transformers

    main = load_script("short_rows").main
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda name: WordTokenizer())
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

"""`atommem eval` on a (random) model folder, servers over HTTP, a corpus searched and judged, others' files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from atommem.cli import main as atommem_main
from atommem.envs.scoring.breakdowns import breakdowns
from atommem.envs.task import Document, Question, Task
from atommem.envs.task_files import load_tasks, save_tasks
from atommem.envs.web.corpus import Corpus, Page, build_corpus
from atommem.eval import context
from atommem.eval.methods import make_method
from atommem.eval.output import parse_records
from atommem.eval.reporting.evaluations import read_evaluation
from atommem.eval.reporting.report_cli import write_report
from atommem.eval.runner import evaluate
from atommem.eval.summary import breakdown_table
from atommem.trace import read_trace
from tests.envs.benchmark_rows import write_json, write_lines, write_parquet
from tests.envs.test_benchmarks_memagent import eval_row, train_row
from tests.envs.test_locomo import conversation
from tests.envs.web.test_environment import ANSWER as FOUND
from tests.envs.web.test_environment import call
from tests.eval.methods.toys import make_setup
from tests.eval.toys import make_runner, make_task
from tests.loopback import make_checkpoint, serving

ANSWER = "<final_answer>\\boxed{a-0}</final_answer>"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    save_tasks([make_task("a"), make_task("b")], path)
    return path


def test_model_folder(checkpoint: Path, data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The same seed: the same records, whatever ran beside an episode; batches of one request make that certain."""
    command = [
        "eval",
        "--policy",
        str(checkpoint),
        "--data",
        str(data),
        "--max_tokens",
        "6",
        "--max_batch_tokens",
        "1",
    ]
    found = []
    for in_flight in ("1", "7"):
        out = data.parent / in_flight
        assert (
            atommem_main(
                [
                    *command,
                    "--out",
                    str(out),
                    "--max_in_flight",
                    in_flight,
                    "--samples_per_task",
                    "2",
                ]
            )
            == 0
        )
        summary = json.loads((out / "summary.json").read_text())
        assert (summary["episodes"], summary["failed"]) == (4, 0)
        assert summary["run"]["memory"]["templates"] == "compact"
        steps = [
            step
            for path in sorted((out / "traces").iterdir())
            for step in read_trace(path).episode.steps
        ]
        assert len(steps) == 4 * 3  # two documents, one question without extra reads
        assert all(1 <= len(step.token_ids) <= 6 for step in steps)
        found.append([(step.text, step.token_ids, step.operations) for step in steps])
    assert found[0] == found[1]
    assert len({text for text, *_ in found[0]}) > 6, "samples of a task differ"
    assert (
        atommem_main(
            [*command, "--out", str(out), "--samples_per_task", "2", "--temperature", "0.1"]
        )
        == 2
    )
    assert "sampling.temperature is 0.7 there and 0.1 now" in capfd.readouterr().err


@pytest.mark.parametrize("method", ["atommem", "full_context", "generative_agents"])
def test_a_chat_server(data: Path, method: str) -> None:
    """Methods ask with messages; calls and tokens are the server's own."""
    out = data.parent / "out"

    def script(text: str) -> str:
        assert "<|" not in text
        return "\\boxed{a-0}" if method != "atommem" else ANSWER

    with serving(script) as url:
        command = ["eval", "--policy", url, "--api", "chat", "--data", str(data), "--out", str(out)]
        settings = ["--embedder", "hashing", "--chunking", "documents", "--method", method]
        assert atommem_main([*command, *settings]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["metrics"]["em"]["mean"] == 0.5
    assert summary["run"]["policy"] == {"model": "tiny", "tokenizer": None, "api": "chat"}
    steps = read_trace(out / "traces" / "a.0.jsonl").episode.steps
    assert {(step.prompt_tokens, step.completion_tokens) for step in steps} == {(7, 5)}
    assert summary["means"]["tokens/completion"] == 5 * len(steps)


def test_questions_are_asked_of_a_corpus_and_judged(checkpoint: Path, tmp_path: Path) -> None:
    pytest.importorskip("tantivy")
    build_corpus(
        [Page("Ann lives in Oakrest.", "Ann"), Page("Bob lives in Fenford.", "Bob")],
        tmp_path / "corpus",
    )
    tasks = [
        Task(name, (Question(f"Where does {name} live?", ("the town of Oakrest",)),))
        for name in ("Ann", "Bob")
    ]
    save_tasks(tasks, tmp_path / "tasks.jsonl")

    def script(text: str) -> str:
        if "Answer to judge" in text:
            return "CORRECT"
        return FOUND if "lives in" in text else call("search", query="lives")

    with serving(script, AutoTokenizer.from_pretrained(checkpoint)) as url:
        flags = [
            "--policy",
            url,
            "--tokenizer",
            str(checkpoint),
            "--data",
            str(tmp_path / "tasks.jsonl"),
        ]
        flags += ["--out", str(tmp_path / "out"), "--environment", "web", "--tools", "corpus"]
        flags += [
            "--corpus",
            str(tmp_path / "corpus"),
            "--embedder",
            "hashing",
            "--dialect",
            "paper",
        ]
        flags += [
            "--templates",
            "full",
            "--reward",
            "judge",
            "--judge_url",
            url,
            "--judge_model",
            "tiny",
        ]
        flags += ["--max_tokens", "256"]
        assert atommem_main(["eval", *flags]) == 0
        assert atommem_main(["eval", *flags]) == 0, "all there"
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["metrics"]["judge"]["mean"] == 1.0
    assert summary["run"]["environment"]["corpus"] == Corpus(tmp_path / "corpus").version
    assert summary["services"]["judge"]["asked"] == 2
    assert summary["run"]["policy"] == {"model": "tiny", "tokenizer": str(checkpoint)}
    # What no flag says is as the checkpoint was trained, though a server does not tell.
    assert summary["run"]["memory"]["scratchpad_tokens"] == 32
    trace = read_trace(tmp_path / "out" / "traces" / "Ann.0.jsonl")
    assert [step.observation.origin for step in trace.episode.steps] == [
        None,
        "search lives | Ann | Bob",
    ]


# Files of other projects are evaluated as they are: MemAgent's, the multi-question parquet, LoCoMo's.

REPLIES = {"Where does Bran live?": "in Port", "Who is a potter?": "Bran"}


def replies_to(prompt: str) -> str:
    """Replies to the questions in the prompt, in their order."""
    asked = sorted((question for question in REPLIES if question in prompt), key=prompt.rfind)
    return "".join(
        f"<final_answer>\\boxed{{{REPLIES[question]}}}</final_answer>" for question in asked
    )


@pytest.mark.parametrize("method", ["atommem", "memagent", "rag"])
@pytest.mark.parametrize("name", ["eval_200.json", "test.parquet"])
def test_the_command_takes_memagents_files_unchanged(
    tmp_path: Path,
    name: str,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, golds = tmp_path / name, [["Port", "in Port"], ["Orla"]]
    rows = [eval_row(input=asked, answers=gold) for asked, gold in zip(REPLIES, golds, strict=True)]
    data = (
        write_json(path, rows)
        if path.suffix == ".json"
        else write_parquet(path, [train_row([*REPLIES], golds)])
    )
    before = data.read_bytes()
    _, policy = make_setup(replies_to)
    monkeypatch.setattr(context, "open_policy", lambda config: policy)
    out = tmp_path / "out"
    command = ["--policy", "toy", "--data", str(data), "--out", str(out), "--method", method]
    assert (
        atommem_main(
            ["eval", *command, "--embedder", "hashing", "--max_reads", "0", "--max_in_flight", "2"]
        )
        == 0
    )
    summary = json.loads((out / "summary.json").read_text())
    em = summary["metrics"]["em"]
    assert (em["mean"], em["n"], summary["metrics"]["sub_em"]["mean"]) == (0.5, 2, 0.5)
    assert "sub-EM" in capsys.readouterr().out
    traces = [read_trace(path) for path in sorted((out / "traces").iterdir())]
    assert [trace.complete for trace in traces] == [True] * (2 if path.suffix == ".json" else 1)
    assert [answer for trace in traces for answer in trace.episode.answers] == ["in Port", "Bran"]
    assert data.read_bytes() == before


async def test_locomo_reports_its_categories_apart(tmp_path: Path) -> None:
    tasks = load_tasks(write_json(tmp_path / "locomo10.json", [conversation()]))
    setup, _ = make_setup(lambda prompt: "\\boxed{The kiln is not mentioned}" * 5)
    result = await evaluate(tasks, make_method("rag", setup), progress=False)
    rows = [row for row in breakdowns(result.records, ["em"]) if row["by"] == "category"]
    found = {row["value"]: row["mean"] for row in rows}
    assert found == {
        "adversarial": 1,
        "multi_hop": 0,
        "open_domain": 0,
        "single_hop": 0,
        "temporal": 0,
    }
    assert "  adversarial" in breakdown_table(rows).columns[0].cells


# Half a surrogate pair, which JSON can escape and UTF-8 cannot hold, ends nothing wherever it stands.

HALF = "\ud83d"
GOOD = "\ufffd"


def test_task_files_are_cleaned_as_they_are_read(tmp_path: Path) -> None:
    asked = {"text": f"Who {HALF}?", "answers": [HALF, "\U0001f600"], "metadata": {HALF: [HALF]}}
    row = {
        "id": f"t{HALF}",
        "questions": [asked],
        "documents": [{"title": HALF, "text": f"One {HALF} two."}],
    }
    question = Question(f"Who {GOOD}?", (GOOD, "\U0001f600"), metadata={GOOD: [GOOD]})
    expected = Task(f"t{GOOD}", (question,), (Document(GOOD, f"One {GOOD} two."),))
    path = write_lines(tmp_path / "tasks.jsonl", [row])
    assert load_tasks(path) == [expected]
    for name in ("again.jsonl", "again.parquet"):
        save_tasks(load_tasks(path), tmp_path / name)
        assert load_tasks(tmp_path / name) == [expected]


async def test_an_episode_full_of_them_is_run_recorded_traced_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], undrawn: None
) -> None:
    runner, policy = make_runner()

    def answer(prompt: str) -> str:
        return policy._answer(prompt).replace("seen", f"seen {HALF}").replace("{", f"{{{HALF}")

    policy.script = answer
    question, document = (
        Question(f"{HALF} say-x-0", (HALF,)),
        Document(f"A {HALF}", f"document. {HALF}"),
    )
    out = tmp_path / "eval"
    task = Task(f"t{HALF}", (question,), (document,), source=f"toy {HALF}")
    result = await evaluate([task], runner, out, progress=False)
    assert result.failed == 0
    (record,) = parse_records(
        (out / "episodes.jsonl").read_bytes(), out / "episodes.jsonl"
    ).values()
    assert record == result.records[0]
    (path,) = (out / "traces").iterdir()
    assert "seen \ufffd" in read_trace(path).episode.steps[0].text
    write_report([read_evaluation(out)], tmp_path / "report", title=f"with {HALF}")
    assert (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert atommem_main(["trace", str(path)]) == 0
    assert b"seen" in capsys.readouterr().out.encode()

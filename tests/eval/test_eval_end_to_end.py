"""`atommem eval` on a random model, with servers over HTTP, on a corpus, and on others' files."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from atommem.cli import main as atommem_main
from atommem.envs.task import Document, Question, Task
from atommem.envs.task_files import save_tasks
from atommem.envs.web.corpus import Corpus, Page, build_corpus
from atommem.eval import eval_config
from atommem.eval.output import parse_records
from atommem.eval.reporting.evaluations import read_evaluation
from atommem.eval.reporting.report_cli import write_report
from atommem.eval.runner import evaluate
from atommem.trace import read_trace
from tests.envs.benchmark_rows import write_json, write_parquet
from tests.eval.toys import make_runner, make_setup, make_task
from tests.loopback import make_checkpoint, serving


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def eval_command(policy: Path | str, data: Path, out: Path, *flags: str) -> list[str]:
    return ["eval", "--policy", str(policy), "--data", str(data), "--out", str(out), *flags]


def summary_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return found


def test_eval_of_a_model_gives_the_same_records_with_any_concurrency(
    checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, found = tmp_path / "tasks.jsonl", []
    save_tasks([make_task("a"), make_task("b")], data)
    # Batches of one request: results do not depend on the requests of a batch in the last bit.
    flags = ["--max_tokens", "6", "--max_batch_tokens", "1", "--samples_per_task", "2"]
    for in_flight in ("1", "7"):
        out = tmp_path / in_flight
        command = eval_command(checkpoint, data, out, *flags)
        assert atommem_main([*command, "--max_in_flight", in_flight]) == 0
        summary = summary_of(out)
        assert (summary["episodes"], summary["failed"]) == (4, 0)
        assert summary["run"]["memory"]["templates"] == "compact"
        traces = [read_trace(path) for path in sorted((out / "traces").iterdir())]
        steps = [step for trace in traces for step in trace.episode.steps]
        assert len(steps) == 4 * 3  # two documents, one question without extra reads
        found.append([(step.text, step.token_ids, step.operations) for step in steps])
    assert found[0] == found[1]
    assert len({text for text, *_ in found[0]}) > 6, "samples of a task differ"
    assert atommem_main([*command, "--temperature", "0.1"]) == 2
    assert "sampling.temperature is 0.7 there and 0.1 now" in capfd.readouterr().err


@pytest.mark.parametrize("method", ["atommem", "full_context"])
def test_eval_with_a_chat_server_counts_the_server_s_tokens(tmp_path: Path, method: str) -> None:
    data, out = tmp_path / "tasks.jsonl", tmp_path / "out"
    save_tasks([make_task("a"), make_task("b")], data)
    answer = "\\boxed{a-0}" if method != "atommem" else "<final_answer>\\boxed{a-0}</final_answer>"
    with serving(lambda text: answer) as url:
        flags = ["--api", "chat", "--embedder", "hashing", "--chunking", "documents"]
        assert atommem_main(eval_command(url, data, out, *flags, "--method", method)) == 0
    summary = summary_of(out)
    assert summary["metrics"]["em"]["mean"] == 0.5
    assert summary["run"]["policy"] == {"model": "tiny", "tokenizer": None, "api": "chat"}
    steps = read_trace(out / "traces" / "a.0.jsonl").episode.steps
    assert {(step.prompt_tokens, step.completion_tokens) for step in steps} == {(7, 5)}


def test_eval_on_a_corpus_searches_and_is_judged(checkpoint: Path, tmp_path: Path) -> None:
    pytest.importorskip("tantivy")
    pages = [Page("Ann lives in Oakrest.", "Ann"), Page("Bob lives in Fenford.", "Bob")]
    corpus, data, out = tmp_path / "corpus", tmp_path / "tasks.jsonl", tmp_path / "out"
    build_corpus(pages, corpus)
    questions = [(name, Question(f"Where does {name} live?", ("x",))) for name in ("Ann", "Bob")]
    save_tasks([Task(name, (question,)) for name, question in questions], data)

    def script(text: str) -> str:
        if "Answer to judge" in text:
            return "CORRECT"
        if "lives in" in text:
            return "<final_answer>\\boxed{Oakrest}</final_answer>"
        return '<tool_call>{"name": "search", "arguments": {"query": "lives"}}</tool_call>'

    with serving(script, AutoTokenizer.from_pretrained(checkpoint)) as url:
        flags = f"--tokenizer {checkpoint} --environment web --tools corpus --corpus {corpus} "
        flags += "--embedder hashing --dialect paper --templates full --max_tokens 256 "
        flags += f"--reward judge --judge_url {url} --judge_model tiny"
        assert atommem_main(eval_command(url, data, out, *flags.split())) == 0
    summary = summary_of(out)
    assert summary["metrics"]["judge"]["mean"] == 1.0
    assert summary["services"]["judge"]["asked"] == 2
    assert summary["run"]["environment"]["corpus"] == Corpus(corpus).pages.digest()
    # The server does not know the settings of training; the tokenizer's folder does.
    assert summary["run"]["memory"]["scratchpad_tokens"] == 32
    steps = read_trace(out / "traces" / "Ann.0.jsonl").episode.steps
    assert [step.observation.origin for step in steps] == [None, "search lives | Ann | Bob"]


REPLIES = {"Where does Bran live?": "in Port", "Who is a potter?": "Bran"}


def replies_to(prompt: str) -> str:
    """Replies to the questions in the prompt, in their order."""
    asked = sorted((question for question in REPLIES if question in prompt), key=prompt.rfind)
    answers = (REPLIES[question] for question in asked)
    return "".join(f"<final_answer>\\boxed{{{answer}}}</final_answer>" for answer in answers)


@pytest.mark.parametrize("method", ["atommem", "memagent"])
@pytest.mark.parametrize("name", ["eval_200.json", "test.parquet"])
def test_eval_takes_memagent_s_files_unchanged(
    tmp_path: Path, name: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, golds = tmp_path / name, [["Port", "in Port"], ["Orla"]]
    context = "Document 1:\nBran lives in Port.\n\nDocument 2:\nBran is a potter."
    row: dict[str, Any] = {"context": context, "num_docs": 2, "index": 7}
    if path.suffix == ".json":
        pairs = zip(REPLIES, golds, strict=True)
        write_json(path, [row | {"input": asked, "answers": gold} for asked, gold in pairs])
    else:
        row["prompt"] = [{"role": "user", "content": [*REPLIES]}]
        row["reward_model"] = {"style": "rule", "ground_truth": golds}
        extra = {"index": 7, "question": [*REPLIES], "num_docs": 2}
        write_parquet(path, [row | {"data_source": "hotpotqa", "extra_info": extra}])
    _, policy = make_setup(replies_to)
    monkeypatch.setattr(eval_config, "open_policy", lambda config: policy)
    flags = ["--method", method, "--embedder", "hashing", "--max_reads", "0"]
    assert atommem_main(eval_command("toy", path, tmp_path / "out", *flags)) == 0
    metrics = summary_of(tmp_path / "out")["metrics"]
    found = (metrics["em"]["mean"], metrics["em"]["n"], metrics["sub_em"]["mean"])
    assert found == (0.5, 2, 0.5)


async def test_episode_with_half_surrogates_is_recorded_traced_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], undrawn: None
) -> None:
    half = "\ud83d"  # JSON can escape it, UTF-8 cannot hold it
    runner, policy = make_runner()
    script = policy.script
    policy.script = lambda prompt: str(script(prompt)).replace("seen", f"seen {half}")
    question, document = Question(f"{half} say-x-0", (half,)), Document(half, f"document. {half}")
    out = tmp_path / "eval"
    task = Task(f"t{half}", (question,), (document,), source=f"toy {half}")
    result = await evaluate([task], runner, out, progress=False)
    assert result.failed == 0
    records = parse_records((out / "episodes.jsonl").read_bytes(), out / "episodes.jsonl")
    assert tuple(records.values()) == result.records
    (path,) = (out / "traces").iterdir()
    assert "seen \ufffd" in read_trace(path).episode.steps[0].text
    write_report([read_evaluation(out)], tmp_path / "report", title=f"with {half}")
    assert (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert atommem_main(["trace", str(path)]) == 0
    assert b"seen" in capsys.readouterr().out.encode()


def without_times(value: Any) -> Any:
    """Without seconds and log-probabilities, whose last bits depend on the batch."""
    if isinstance(value, dict):
        left_out = ("seconds", "logprobs")
        return {key: without_times(item) for key, item in value.items() if key not in left_out}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def outcome(out: Path) -> dict[str, list[Any]]:
    """All records (sorted) and traces."""
    found = {}
    for path in sorted(out.rglob("*.jsonl")):
        lines = [without_times(json.loads(line)) for line in path.read_text().splitlines()]
        in_order = path.parent != out
        found[str(path.relative_to(out))] = lines if in_order else sorted(lines, key=json.dumps)
    return found


@pytest.mark.slow
def test_eval_after_a_kill_ends_as_one_left_alone(checkpoint: Path, tmp_path: Path) -> None:
    data, records = tmp_path / "tasks.jsonl", tmp_path / "killed" / "episodes.jsonl"
    save_tasks([make_task(f"t{number}", questions=2) for number in range(6)], data)

    def start(out: str) -> subprocess.Popen[bytes]:
        flags = "--samples_per_task 2 --max_in_flight 2 --max_batch_tokens 1 --max_tokens 4"
        command = eval_command(checkpoint, data, tmp_path / out, *flags.split())
        return subprocess.Popen(
            [sys.executable, "-m", "atommem.cli", *command], stdout=subprocess.DEVNULL
        )

    assert start("whole").wait(300) == 0
    process = start("killed")
    while not records.exists() or len(records.read_text().splitlines()) < 4:
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    assert process.wait() != 0, "it ended before it was killed"
    assert start("killed").wait(300) == 0
    assert len(records.read_text().splitlines()) == 12
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")

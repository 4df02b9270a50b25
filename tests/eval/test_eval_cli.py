"""`atommem eval`: settings, records, exit statuses; on models, servers, a corpus; continued."""

import json
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from atommem import cli
from atommem.config import MemoryConfig
from atommem.envs.scoring.statistics import wilson_interval
from atommem.envs.task import Question, Task
from atommem.envs.task_files import save_tasks
from atommem.envs.web.corpus.corpus import Corpus, build_corpus
from atommem.envs.web.corpus.pages import Page
from atommem.errors import ConfigError, DataError, PolicyError, PromptTooLongError
from atommem.eval.eval_config import parse_arguments
from atommem.eval.runner import OutputFolder, file_stem
from atommem.policy.opening import policy_identity
from atommem.trace import read_trace
from tests.eval.toys import GONE, evaluated, make_task
from tests.loopback import make_checkpoint, serving


@pytest.mark.slow
def test_eval_exits_with_3_if_too_many_episodes_have_no_score(tmp_path, policy, capsys):
    data = tmp_path / "tasks.jsonl"
    save_tasks([make_task(name) for name in "abcd"], data)
    flags = ["--embedder", "hashing", "--chunking", "documents", "--max_inflight_tasks", "1"]
    command = eval_command("owner/toy", data, tmp_path / "out", *flags)
    policy.errors = {"c": GONE}
    assert cli.main(command) == 3
    assert "1 of 4 episodes failed" in capsys.readouterr().err
    assert cli.main([*command, "--max_failed_fraction", "0.25"]) == 0
    policy.errors = {"c": PromptTooLongError("300 tokens")}
    assert cli.main(command) == 3
    policy.errors = {}
    assert cli.main(command) == 3, "an overflow is not tried again"
    assert "1 of 4 episodes overflowed" in capsys.readouterr().err


async def test_policy_identity_changes_with_the_weights(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    choice = parse_arguments(["--policy", str(tmp_path), "--data", "d", "--output_dir", "o"]).policy
    found = []
    for last in (b"x", b"x", b"y"):
        (tmp_path / "model.safetensors").write_bytes(bytes(5 << 20) + last)
        found.append(await policy_identity(choice, None))
    assert found[0] == found[1] != found[2]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def eval_command(policy: Path | str, data: Path, out: Path, *flags: str) -> list[str]:
    return ["eval", "--policy", str(policy), "--data", str(data), "--output_dir", str(out), *flags]


def summary_of(out: Path) -> Any:
    return json.loads((out / "summary.json").read_text())


def test_eval_with_a_chat_server_counts_the_server_s_tokens(tmp_path):
    data, out = tmp_path / "tasks.jsonl", tmp_path / "out"
    save_tasks([make_task("a"), make_task("b")], data)
    with serving(lambda text: "<final_answer>\\boxed{a-0}</final_answer>") as url:
        flags = ["--api", "chat", "--embedder", "hashing", "--chunking", "documents"]
        assert cli.main(eval_command(url, data, out, *flags)) == 0
    summary = summary_of(out)
    assert summary["metrics"]["em"]["mean"] == 0.5
    assert summary["run"]["policy"] == {"model": "tiny", "tokenizer": None, "api": "chat"}
    steps = read_trace(out / "traces" / "a.0.jsonl").episode.steps
    assert {(step.prompt_tokens, step.completion_tokens) for step in steps} == {(7, 5)}


@pytest.mark.slow
def test_eval_on_a_corpus_searches_and_is_judged(checkpoint, tmp_path):
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
        flags += "--embedder hashing --dialect paper --templates full --max_completion_length 256 "
        flags += f"--reward judge --judge_url {url} --judge_model tiny"
        assert cli.main(eval_command(url, data, out, *flags.split())) == 0
    summary = summary_of(out)
    assert summary["metrics"]["judge"]["mean"] == 1.0
    assert summary["services"]["judge"]["asked"] == 2
    assert summary["run"]["environment"]["corpus"] == Corpus(corpus).pages.digest()
    # The server does not know the settings of training; the tokenizer's folder does.
    assert summary["run"]["memory"]["scratchpad_tokens"] == 32
    steps = read_trace(out / "traces" / "Ann.0.jsonl").episode.steps
    assert [step.observation.origin for step in steps] == [None, "search lives | Ann | Bob"]


def without_times(value: Any) -> Any:
    """Without seconds and log-probabilities, whose last bits depend on the batch."""
    if isinstance(value, dict):
        left_out = ("seconds", "logprobs")
        return {key: without_times(item) for key, item in value.items() if key not in left_out}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def outcome(out: Path) -> dict[str, list[Any]]:
    found = {}
    for path in sorted(out.rglob("*.jsonl")):
        lines = [without_times(json.loads(line)) for line in path.read_text().splitlines()]
        in_order = path.parent != out
        found[str(path.relative_to(out))] = lines if in_order else sorted(lines, key=json.dumps)
    return found


@pytest.mark.slow
def test_eval_after_a_kill_ends_as_one_left_alone_with_any_concurrency(checkpoint, tmp_path):
    data, records = tmp_path / "tasks.jsonl", tmp_path / "killed" / "episodes.jsonl"
    save_tasks([make_task(f"t{number}", questions=2) for number in range(6)], data)

    def command(out: str, in_flight: int) -> list[str]:
        # Batches of one request: results do not depend on the requests of a batch in the last bit.
        flags = f"--num_generations 2 --max_inflight_tasks {in_flight} --max_batch_tokens 1"
        where = tmp_path / out
        return eval_command(checkpoint, data, where, *flags.split(), "--max_completion_length", "4")

    assert cli.main(command("whole", 1)) == 0
    killed = [sys.executable, "-m", "atommem.cli", *command("killed", 2)]
    process = subprocess.Popen(killed, stdout=subprocess.DEVNULL)
    while not records.exists() or len(records.read_text().splitlines()) < 4:
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    assert process.wait() != 0, "it ended before it was killed"
    assert cli.main(command("killed", 7)) == 0
    assert len(records.read_text().splitlines()) == 12
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


TASKS = [make_task("a"), make_task("b", right=False), make_task("c"), make_task("d", questions=3)]


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]


@pytest.mark.slow
async def test_evaluate_scores_questions_and_leaves_failed_episodes_out():
    result, asked = await evaluated(TASKS)
    assert result.em == pytest.approx(5 / 6)
    assert len(asked) == 14
    result, _ = await evaluated(TASKS, gone="bd")
    summary = result.summary()
    assert (result.failed, len(result.records)) == (2, 4)
    em = summary["metrics"]["em"]
    assert (em["mean"], em["n"], (em["low"], em["high"])) == (1.0, 2, wilson_interval(2, 2))
    assert summary["errors"] == {"server gone": 2}


@pytest.mark.slow
async def test_evaluate_retries_failed_episodes_only(tmp_path):
    await evaluated(TASKS, tmp_path, gone="b")
    with pytest.raises(PolicyError):
        await evaluated(TASKS, tmp_path, gone="b", error=PolicyError("refused"))
    assert not (tmp_path / "summary.json").exists()
    result, asked = await evaluated(TASKS, tmp_path)
    assert (set(asked), result.failed) == ({"b"}, 0)
    assert len(lines(tmp_path)) == 5  # the failure stays on record
    assert json.loads((tmp_path / "summary.json").read_text())["failed"] == 0


@pytest.mark.slow
async def test_output_folder_drops_a_torn_line_and_names_damage(tmp_path):
    first, _ = await evaluated(TASKS, tmp_path)
    path = tmp_path / "episodes.jsonl"
    content = path.read_text()
    for cut in (200, 1):
        path.write_text(content[:-cut])
        again, asked = await evaluated(TASKS, tmp_path)
        assert (set(asked), again.em, len(lines(tmp_path))) == ({"d"}, first.em, 4)
    kept = content.splitlines(keepends=True)
    path.write_text("".join([kept[0], '{"questions": 3}\n', *kept[2:]]))
    with pytest.raises(DataError, match=r"episodes\.jsonl, line 2"):
        await evaluated(TASKS, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"runner": {"memory": MemoryConfig(templates="compact")}}, "templates_sha256"),
        ({"tasks": TASKS[:3]}, r"tasks\.count is 4 there and 3 now; tasks\.sha256 is "),
    ],
)
async def test_output_folder_refuses_other_settings_by_name(tmp_path, changes, message):
    settings = {"policy": {"path": "x"}}
    await evaluated(TASKS, tmp_path, settings=settings)
    with pytest.raises(ConfigError, match=message):
        await evaluated(**{"tasks": TASKS, "out": tmp_path, "settings": settings, **changes})
    await evaluated(TASKS, tmp_path, settings=settings, runner={"max_in_flight": 9})


async def test_output_folder_refuses_foreign_and_busy_folders(tmp_path):
    (tmp_path / "episodes.jsonl").write_text("{}\n")
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ConfigError, match=r"run\.json: .*Give another output folder"):
        await evaluated(TASKS, tmp_path)
    new = tmp_path / "new"
    with closing(OutputFolder(new, {"a": 1})), pytest.raises(ConfigError, match="another run"):
        OutputFolder(new, {"a": 1})
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "summary.json").write_text("{}")
    with pytest.raises(ConfigError, match="would be lost"):
        OutputFolder(tmp_path / "demo", {})


def test_file_stem_is_safe_and_distinct():
    assert file_stem("hotpot-5a7.x_1") == "hotpot-5a7.x_1"
    names = ("a/b", "a_b", "a:b", "../../etc", "x" * 300, "x" * 301, "é")
    stems = [file_stem(name) for name in names]
    assert len(set(stems)) == len(stems)
    assert all("/" not in stem and len(stem) < 120 for stem in stems)

"""Reports, comparisons, audits of stores; the same answers under several judges and golds."""

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import vl_convert

from atommem.actions import Action
from atommem.api import Memory
from atommem.cli import main
from atommem.embedding.embedder import HashingEmbedder
from atommem.envs.scoring.judge import JudgeConfig, LLMJudge
from atommem.envs.scoring.records import summarize
from atommem.envs.scoring.statistics import holm
from atommem.errors import ConfigError, DataError
from atommem.eval import audit as audit_module
from atommem.eval import judging
from atommem.eval.audit import audit, read_store
from atommem.eval.reporting import results as reported
from atommem.eval.reporting.page import headlines, make_charts, render_page
from atommem.eval.reporting.report_cli import load_published, set_beside
from atommem.eval.reporting.results import Evaluation, best_rows, make_results
from atommem.eval.reporting.tables import make_tables
from atommem.rollout import Session
from atommem.servers.client import ServerClient
from atommem.trace import read_trace
from tests.envs.benchmark_rows import write_lines
from tests.eval.toys import evaluated, made, make_runner, make_task, ones
from tests.fake_chat import FakeChat, Reply
from tests.fakes import ScriptedPolicy, WordTokenizer

NAMES = "abcdefgh"


def markdown(*evaluations: Evaluation, **more: Any) -> str:
    return "\n".join(table.markdown() for table in make_tables(make_results(evaluations, **more)))


async def answered(out: Path, right: str, *, gone: str = "", names: str = NAMES) -> Path:
    """An evaluation that is right on the tasks `right` and fails on `gone`."""
    tasks = [make_task(name) for name in names]
    settings = {"embedder": {"model": out.name}}
    await evaluated(tasks, out, wrong=set(names) - set(right), gone=gone, settings=settings)
    return out


def test_comparisons_test_the_best_and_the_reference_with_holm():
    rows = [made(row, ones(right, 20)) for row, right in (("a", 18), ("b", 4), ("c", 10))]
    results = make_results(rows, reference="b")
    tests = [test for test in results["comparisons"] if test["metric"] == "em"]
    pairs = [(test["second"], test["first"]) for test in tests]
    assert pairs == [("a", "c"), ("a", "b"), ("c", "b")]
    assert [test["p_holm"] for test in tests] == holm([test["p_value"] for test in tests])
    assert best_rows(results, "em") == {"toy": "a"}
    assert headlines(results)[0].startswith("a (90.0) beats c (50.0) in EM on toy by 40.0 points")
    text = markdown(*rows, reference="b")
    assert "| a | **90.0** [" in text
    assert re.search(r"\| EM: a - c \| \+40\.0 \[", text)


def test_breakdown_shows_categories_of_at_least_five_questions():
    records = []
    for number, record in enumerate(made("a", ones(3, 9)).records):
        question = replace(record.questions[0], category="many" if number < 5 else "few")
        records.append(replace(record, questions=(question,)))
    text = markdown(replace(made("a", ones(3, 9)), records=tuple(records)))
    assert re.search(r"EM by category: toy\n\n\|  \| many \|\n", text)


def test_bounds_overflow_and_failures_are_marked_and_not_tested():
    oracle, best = made("oracle", ones(20, 20)), made("ours", ones(15, 20))
    endings = dict.fromkeys(range(2), "context_overflow")
    some = made("some", [{"em": float(n >= 2)} for n in range(20)], endings=endings)
    rows = (oracle, best, made("rag", ones(0, 20)), some)
    results = make_results(rows, reference="ours")
    assert {(t["first"], t["second"]) for t in results["comparisons"]} == {("rag", "ours")}
    assert best_rows(results, "em") == {"toy": "ours"}
    text = markdown(*rows)
    assert "| some | overflow, 100.0 in those that fit **2 of 20 episodes overflow** |" in text
    failed = made("a", ones(2, 4), endings={3: "failed"}, planned=6)
    text = markdown(failed, made("b", ones(1, 4)))
    assert re.search(r"\| a \| 66\.7 \[[^|]*, n 3 \*\*1 failed, 4 of 6 episodes\*\*", text)


def test_groups_of_seeds_are_one_row_with_their_spread():
    seeds = [made("a", ones(right, 10), seed=seed) for seed, right in enumerate((4, 6))]
    (em,) = [line for line in make_results(seeds)["scores"] if line["metric"] == "em"]
    assert (em["mean"], em["n"], em["between_seeds"]["seeds"]) == (0.5, 20, 2)
    assert "sd 14.1 over 2 seeds" in markdown(*seeds)
    with pytest.raises(ConfigError, match="with seed 0"):
        make_results([seeds[0], seeds[0]])


def test_lost_answers_are_counted_at_the_first_stage():
    # Right, entered, kept, retrieved: one row a stage, which occurs once more than the one before.
    rows = [(1, 1, 1, 1), (1, 0, 0, 0), (0, 1, 1, 1), (0, 1, 1, 0), (0, 1, 0, 0), (0, 0, 0, 0)]
    names = ("em", "fact_entered", "fact_kept", "fact_retrieved")
    scores = [dict(zip(names, row, strict=True)) for row in rows]
    evaluation = made("a", [score for count, score in enumerate(scores, 1) for _ in range(count)])
    given = evaluation.records
    records = tuple(replace(one, sums={**one.sums, "store_size": 1.0}) for one in given)
    (group,) = make_results([replace(evaluation, records=records)])["groups"]
    assert group["lost"] == {stage: count for count, stage in enumerate(reported.STAGES, 1)}


def test_letters_of_charts_have_ten_pixels_on_a_telephone():
    names, sets = ("after GRPO, scratchpad off", "full context"), ("one", "two")
    results = make_results([made(row, ones(1, 2), dataset=one) for one in sets for row in names])
    for steps, group in enumerate(results["groups"], start=1):
        group["means"]["steps"] = steps
    charts = make_charts(results)
    assert len(charts) == 3
    for chart in charts.values():
        drawing = vl_convert.vegalite_to_svg(chart.to_dict())
        assert 13 * 368 / float(re.findall(r'<svg[^>]* width="([\d.]+)"', drawing)[0]) > 10
        symbols = re.findall(r'role-legend-symbol.*?<path[^>]* d="([^"]+)"', drawing)
        assert len(symbols) == len({*symbols}) == 2 * ("per task" in drawing)


def test_page_escapes_data_and_loads_nothing():
    evil = "</title><script>alert(1)</script><img src=x>"
    results = make_results([made(evil, ones(1, 2))])
    page = render_page(evil, results, make_tables(results), {})
    assert "default-src 'none'" in page
    assert not re.search(r"<script|<img|(?:src|href)=[\"']?(?:https?:)?//", page)


@pytest.mark.slow
async def test_report_is_the_same_for_the_same_evaluations(tmp_path):
    await answered(tmp_path / "one", "abcde")
    await answered(tmp_path / "two", "abc", gone="h")
    (tmp_path / "one" / "summary.json").unlink()  # it holds a digest of the lines in their order
    out = tmp_path / "out"
    folders = [f"left={tmp_path / 'one'}", str(tmp_path / "two")]
    found = []
    for given in (folders, folders, [str(out)]):  # the last time from its own results.json
        assert main(["report", *given, "--output_dir", str(out), "--title", "<T>"]) == 0
        files = [path for path in out.rglob("*") if path.is_file()]
        found.append({path.name: path.read_bytes() for path in files})
        path = tmp_path / "one" / "episodes.jsonl"
        path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    assert found[1:] == found[:1] * 2
    assert json.loads(found[0]["results.json"])["evaluations"][0]["folder"] == "../one"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change"), [("run.json", ("1", "2")), ("episodes.jsonl", ("1.0", "0.0"))]
)
async def test_changed_file_of_an_evaluation_is_found(tmp_path, name, change, capsys):
    folder = await answered(tmp_path / "one", "abc")
    path = folder / name
    path.write_text(path.read_text().replace(*change, 1))
    assert main(["report", str(folder), "--output_dir", str(tmp_path / "out")]) == 2
    assert f"{name}: not what summary.json was made of" in capsys.readouterr().err


@pytest.mark.slow
async def test_compare_counts_wins_and_names_changed_tasks(tmp_path, capsys):
    first = await answered(tmp_path / "A", "abch", gone="f")
    second = await answered(tmp_path / "B", "abdefg", gone="h")
    out = tmp_path / "c.json"
    # Scored in both: a to e and g. Better: d, e, g; worse: c.
    assert main(["compare", str(first), str(second), "--out", str(out), "--show", "2"]) == 0
    found = json.loads(out.read_text())
    assert (found["wins"], found["losses"], found["ties"], found["left_out"]) == (3, 1, 2, 2)
    assert found["p_value"] == pytest.approx(2 * (1 / 16 + 0.5 * 4 / 16))
    assert found["difference"] == pytest.approx(2 / 6)
    assert [change["task_id"] for change in found["changed"]] == ["c", "d", "e", "g"]
    traces = found["changed"][1]["traces"]
    assert [read_trace(paths[0]).episode.reward for paths in traces] == [0.0, 1.0]
    printed = capsys.readouterr().out
    assert "settings that differ: embedder.model 'A', 'B'\nB: +0.333" in printed
    assert printed.index("Worse in B (1 of 1") < printed.index("Better in B (2 of 3")


@pytest.mark.slow
async def test_inspect_log_has_every_episode_and_our_own_scores(tmp_path, undrawn):
    first = await answered(tmp_path / "ours", "ad", gone="c", names="abcd")
    out = tmp_path / "out"
    assert main(["report", str(first), "--output_dir", str(out), "--export", "inspect"]) == 0
    (path,) = (out / "inspect").iterdir()
    log = json.loads(path.read_text())
    assert path.name.startswith(log["eval"]["created"][:10]), "Inspect finds logs by such names"
    mean = summarize(reported.read_evaluation(first).records)["metrics"]["em"]
    em = next(score for score in log["results"]["scores"] if score["name"] == "em")
    found = [em["metrics"][name]["value"] for name in ("mean", "ci_low", "ci_high")]
    assert (found, em["scored_samples"]) == ([mean[name] for name in ("mean", "low", "high")], 3)
    right, wrong, failed, _ = log["samples"]
    assert (right["scores"]["em"]["value"], wrong["scores"]["em"]["value"]) == (1.0, 0.0)
    assert failed["scores"] == {}
    assert "final_answer" in right["messages"][-1]["content"]


def test_set_beside_pairs_numbers_with_differences():
    hotpot: dict[str, Any] = {"dataset": "hotpotqa", "documents": 200}
    evaluations = [
        made("atommem", ones(8, 10), **hotpot),
        made("atommem", ones(5, 10), dataset="musique", documents=200),
        made("atommem", ones(7, 10), **hotpot, setting="chunk 2048, k 3"),
    ]
    results = make_results(evaluations)
    first, second = set_beside(load_published("table2"), results)["values"]
    assert (first["paper"], first["ours"], first["column"]) == (77.8, 80.0, "hotpotqa-200")
    assert first["low"] < 0 < first["high"]
    assert second["difference"] == pytest.approx(50 - 55.1)
    results["published"] = set_beside(load_published("table3"), results)
    text = "\n".join(table.markdown() for table in make_tables(results))
    assert "| C 2048 K 3 | 76.2 | 70.0, n 10 | -6.2 [" in text


TEXTS = [*["Ann lives in Brent"] * 2, "Bob likes tea", "Ann lives in Lorne now", "It rains"]


async def test_audit_finds_duplicates_and_evictions(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS])
    entries, rules = read_store(path), ("fifo", "reject")
    found = await audit(entries, HashingEmbedder(256), capacity=3, rules=rules)
    assert (found.entries, found.duplicates, found.never_shown) == (5, [[1, 2]], None)
    assert found.evicted["fifo"] == [1, 2]
    assert found.evicted["reject"] == [5, 4]


def test_read_store_sorts_by_time_and_keeps_users_apart(tmp_path):
    rows = [
        {"memory": "second", "created_at": "2026-01-01T09:00:00-08:00", "user_id": "ann"},
        {"memory": "first", "created_at": "2026-01-01T16:00:00Z", "user_id": "ann"},
        {"memory": "other", "created_at": "2026-01-01T16:00:00", "user_id": "bob"},
    ]
    path = write_lines(tmp_path / "a.jsonl", rows)
    with pytest.raises(DataError, match="several users: ann, bob"):
        read_store(path)
    assert [entry.text for entry in read_store(path, ["user=ann"])] == ["first", "second"]


def test_audit_reads_one_scope_of_a_saved_memory(tmp_path, capsys):
    tokenizer = WordTokenizer()
    policy = ScriptedPolicy(tokenizer, lambda prompt: "<create_memory>Ann sings</create_memory>")
    memory = Memory(policy, tokenizer=tokenizer, embedder="hashing")
    for scope in ({"user": "ann"}, {"user": "ann", "session": "7"}, {"user": "bob"}):
        memory.scope(**scope).read("Ann sings.")
    store = str(memory.save(tmp_path / "memory"))
    assert audit_module.main([store, "--capacity", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("left out: the 3 scopes")
    assert out.endswith("length evicts 0\n")
    assert audit_module.main([store, "--scope", "user=ann", "session=7"]) == 0
    assert "1 entries" in capsys.readouterr().out
    with pytest.raises(DataError, match="names 2 scopes"):
        audit_module.main([store, "--scope", "user=ann"])


async def test_read_store_reads_sessions_and_traces(tmp_path):
    session = Session(make_runner()[0].agent, "k")
    await session.memory.apply([Action("create", "bob hums"), Action("create", "ann sings")], 0)
    session.state().save(tmp_path / "s.jsonl")
    assert [entry.text for entry in read_store(tmp_path / "s.jsonl")] == ["bob hums", "ann sings"]
    await evaluated([make_task("a")], tmp_path)
    (path,) = (tmp_path / "traces").iterdir()
    assert [entry.text for entry in read_store(path)] == ["seen", "seen"]


# The same answers under several judge prompts, and under corrected gold answers ---


LETTERS = "abcdefghij"
PROMPT = "Q {question}\nG {golds}\nA {answer}\nCORRECT or INCORRECT?"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeChat:
    """A judge that is as generous as its prompt asks it to be, and unreadable for one."""

    def answer(body: dict[str, Any]) -> Reply:
        prompt = body["messages"][0]["content"]
        if prompt.startswith("Q "):
            return "well"
        return "CORRECT" if "same topic" in prompt else "INCORRECT"

    chat = FakeChat(answer=answer)

    def make_judge(config: JudgeConfig) -> LLMJudge:
        limits: dict[str, Any] = {"timeout": 5, "retries": 1, "max_in_flight": 8}
        client = ServerClient("http://j", service="judge", transport=chat.transport, **limits)
        return LLMJudge(client, config)

    monkeypatch.setattr(judging, "make_judge", make_judge)
    return chat


def evaluation(folder: Path, right: int, names: str = LETTERS) -> Path:
    asyncio.run(evaluated([make_task(name) for name in names], folder, wrong=set(names[right:])))
    return folder


def judge(folder: Path, *words: str) -> int:
    return main(["judge", str(folder), "--judge_url", "http://j", "--judge_model", "m", *words])


def test_judge_table_flags_scores_that_depend_on_the_prompt(tmp_path, server, capsys):
    folder = evaluation(tmp_path / "ours", 4)
    labels, out = tmp_path / "labels.jsonl", tmp_path / "judged.json"
    labels.write_text('{"id": "q0", "answer": "wrong", "right": false}\n')
    (odd := tmp_path / "odd.txt").write_text(PROMPT)
    prompts = ("--judge_prompt", "default", "mem0", str(odd))
    assert judge(folder, *prompts, "--labels", str(labels), "--out", str(out)) == 0
    numbers = json.loads(out.read_text())["numbers"]
    scores = {prompt: found["mean"] for prompt, found in numbers["scores"]["ours"].items()}
    assert scores == {"default": 0.4, "mem0": 1.0, str(odd): 0.4}
    assert numbers["spread"]["ours"] == pytest.approx(0.6)
    assert numbers["labels"]["default"] == {"agreement": 1.0, "n": 6, "wrong_accepted": 0.0}
    assert numbers["labels"]["mem0"] == {"agreement": 0.0, "n": 6, "wrong_accepted": 1.0}
    assert numbers["labels"][str(odd)] == {"agreement": 0.0, "n": 6, "wrong_accepted": 0.0}
    assert "**60.0 points**" in capsys.readouterr().out


def test_judge_prompt_without_readable_verdicts_is_left_out(tmp_path, server, capsys):
    names = [f"t{number}" for number in range(30)]
    tasks = [make_task(name, questions=2) for name in names]
    asyncio.run(evaluated(tasks, tmp_path / "ours", wrong={*names}))
    (odd := tmp_path / "odd.txt").write_text(PROMPT)
    assert judge(tmp_path / "ours", "--judge_prompt", str(odd), "default") == 0
    found = capsys.readouterr()
    assert "odd.txt left out" in found.err
    assert "default" in found.out
    assert judge(tmp_path / "ours", "--judge_prompt", str(odd)) == 2


def test_judge_that_dies_continues_where_it_stopped(tmp_path, server, capsys):
    folder, out = evaluation(tmp_path / "ours", 0, LETTERS[:6]), tmp_path / "judged.json"
    words = ("--judge_prompt", "default", "mem0", "--out", str(out))
    answer = server._answer
    server._answer = lambda body: 503 if len(server.bodies) > 8 else "INCORRECT"
    assert judge(folder, *words) == 2
    assert "the same command continues" in capsys.readouterr().err
    kept = out.with_suffix(".verdicts.jsonl").read_text().count("[")
    assert kept == 8
    with out.with_suffix(".verdicts.jsonl").open("ab") as file:
        file.write(b'["torn')
    server.bodies.clear()
    server._answer = answer
    assert judge(folder, *words) == 0
    assert len(server.bodies) == 12 - kept
    assert json.loads(out.read_text())["numbers"]["scores"]["ours"]["default"]["mean"] == 0.0
    server.bodies.clear()
    assert judge(folder, *words) == 0
    assert not server.bodies


def test_corrections_add_scores_beside_the_official_ones(tmp_path, capsys):
    folder = tmp_path / "ours"
    tasks = [make_task("a", questions=4), make_task("b", questions=1)]
    asyncio.run(evaluated(tasks, folder, wrong={"a"}))
    corrections = tmp_path / "corrections.json"
    corrections.write_text('{"q1": ["wrong", "false"], "q2": "drop", "gone": ["x"]}')
    words = ["report", str(folder), "--output_dir", str(tmp_path / "report")]
    assert main([*words, "--corrections", str(corrections)]) == 0
    assert "1 ids are of no question" in capsys.readouterr().err
    results = json.loads((tmp_path / "report" / "results.json").read_text())
    scores = {line["metric"]: (line["mean"], line["n"]) for line in results["scores"]}
    assert scores["em"] == (0.2, 5)
    assert scores["em_corrected"] == (0.5, 4)
    assert "| EM | EM corrected |" in (tmp_path / "report" / "tables.md").read_text()
    for text, message in (('{"x": ["y"]}', "no question"), ('{"q1": []}', "length >= 1")):
        corrections.write_text(text)
        assert main([*words, "--corrections", str(corrections)]) == 2
        assert message in capsys.readouterr().err

"""``atommem judge``: the same answers under several judge prompts, in one table."""

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, TextIO

from tqdm import tqdm

from atommem.arguments import Parser, make
from atommem.envs.benchmarks.rows import read_rows
from atommem.envs.scoring.judge import PRESETS, JudgeConfig, judge_prompt, make_judge
from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord, estimates
from atommem.envs.task import Question
from atommem.errors import ConfigError, JudgeError, OutageError, check_writable
from atommem.eval.reporting.report_cli import read_evaluations
from atommem.eval.reporting.tables import Table, format_estimate, mark
from atommem.files import write_json
from atommem.process import run_jobs

SPREAD = 0.1  # prompts that differ by more are flagged
Answer = tuple[str, str | None]  # the id of a question, and its answer
Labels = Mapping[Answer, bool]  # whether an answer is right
Rows = Mapping[str, Sequence[EpisodeRecord]]


def main(argv: Sequence[str]) -> int:
    parser = Parser("atommem judge", "Judge the same answers with several prompts, in one table.")
    folders = "Output folder of `atommem eval` with its row's name, or a folder with results.json."
    parser.add_argument("evaluations", nargs="+", metavar="[NAME=]FOLDER", help=folders)
    prompts = f"Of {', '.join(PRESETS)}, or files (default: all of these)."
    parser.add_argument("--judge_prompt", nargs="+", default=[*PRESETS], help=prompts)
    form = 'JSON Lines of {"id": question id, "answer": text, "right": true or false}.'
    parser.add_argument("--labels", type=Path, help=form)
    written = "Write all verdicts and numbers as JSON; a stopped command continues."
    parser.add_argument("--out", type=Path, help=written)
    parser.add_settings("judge", JudgeConfig, leave_out=["judge_prompt"])
    args = parser.parse_args(list(argv))
    check_writable("out", args.out, folder=False, inputs=[args.labels, *args.judge_prompt])
    config = make(JudgeConfig, args)
    if config.judge_url is None:
        raise ConfigError("judge_url is missing. Give judge_url and judge_model.")
    labels: Labels = {
        (row.text("id"), row.text("answer")): row.convert("right", row.get("right"), bool)
        for row in (read_rows(args.labels) if args.labels else ())
    }
    rows: dict[str, list[EpisodeRecord]] = {}
    for item in read_evaluations(args.evaluations):
        rows.setdefault(item.row, []).extend(item.records)
    log = Path(os.devnull) if args.out is None else args.out.with_suffix(".verdicts.jsonl")
    try:
        judged, unreadable = asyncio.run(judge_rows(rows, config, args.judge_prompt, log))
    except OutageError as error:
        raise OutageError(f"{error} With --out, the same command continues.") from error
    table, numbers = judge_table(judged, unreadable, labels)
    print(table.text(), table.note, sep="\n")
    if args.out is not None:
        everything = {row: [asdict(record) for record in found] for row, found in judged.items()}
        write_json(args.out, {"numbers": numbers, "records": everything})
    return 0


async def judge_rows(
    rows: Rows, config: JudgeConfig, prompts: Sequence[str], log: Path
) -> tuple[dict[str, list[EpisodeRecord]], dict[str, set[Answer]]]:
    """Judge all answers with every prompt, but for the readable verdicts that `log` has.

    The records get a score named like the prompt for each question with a gold answer; answers
    whose verdict is unreadable, by prompt, have 0. A prompt with too many of them is left out.
    """
    judged = {row: [*records] for row, records in rows.items()}
    unreadable: dict[str, set[Answer]] = {}
    verdicts = read_verdicts(log)
    with log.open("a", encoding="utf-8") as file:
        print(file=file)  # ends a line that a kill cut off
        for prompt in prompts:
            records = [record for found in judged.values() for record in found]
            try:
                asked = replace(config, judge_prompt=prompt)
                scored, unread = await _judge_records(records, asked, verdicts, file)
            except JudgeError as error:
                print(f"{prompt} left out: {error}", file=sys.stderr)
                continue
            done, unreadable[prompt] = iter(scored), unread
            judged = {row: list(islice(done, len(found))) for row, found in judged.items()}
    if not any(estimates(found, unreadable) for found in judged.values()):
        raise ConfigError("judge: no verdicts. Give another judge_model, or questions with golds.")
    return judged, unreadable


def read_verdicts(log: Path) -> dict[str, float]:
    """Return the scores of earlier verdicts by the digest of what was asked."""
    found = {}
    for line in log.read_text(encoding="utf-8").splitlines() if log.is_file() else ():
        with suppress(ValueError):  # a line that a kill cut off
            key, score = json.loads(line)
            found[key] = score
    return found


async def _judge_records(
    records: Sequence[EpisodeRecord], config: JudgeConfig, verdicts: dict[str, float], log: TextIO
) -> tuple[list[EpisodeRecord], set[Answer]]:
    """Judge all answers with one prompt; return the scored records, and unreadable answers."""
    judge, name, unread = make_judge(config), str(config.judge_prompt), set[Answer]()
    assert judge is not None
    asking = [config.judge_model, judge_prompt(config)]

    async def scored(question: QuestionRecord) -> QuestionRecord:
        if not question.golds:
            return question
        score = 0.0
        if question.answer and question.answer.strip():
            content = json.dumps([*asking, question.question, question.golds, question.answer])
            key = hashlib.sha256(content.encode()).hexdigest()
            if key not in verdicts:
                verdict = await judge(Question(question.question, question.golds), question.answer)
                if verdict.readable:
                    verdicts[key] = verdict.score
                    print(json.dumps([key, verdict.score]), file=log, flush=True)
                else:
                    unread.add((question.id, question.answer))
            score = verdicts.get(key, 0.0)
        return replace(question, metrics={**question.metrics, name: score})

    async def judged(record: EpisodeRecord, _: int) -> EpisodeRecord:
        questions = await asyncio.gather(*map(scored, record.questions))
        bar.update()
        return replace(record, questions=tuple(questions))

    jobs = [(record, record.sample) for record in records]
    with tqdm(total=len(jobs), desc=name, unit="episode", disable=None) as bar:
        try:
            return await run_jobs(judged, jobs), unread
        finally:
            await judge.close()


def judge_table(
    judged: Rows, unreadable: Mapping[str, set[Answer]], labels: Labels
) -> tuple[Table, dict[str, Any]]:
    """Return a table of prompts, and its numbers: ``scores``, ``spread`` and ``labels``."""
    numbers: dict[str, dict[str, Any]] = {"scores": {}, "spread": {}, "labels": {}}
    lines: dict[str, dict[str, str]] = {prompt: {} for prompt in (*unreadable, "spread")}
    for row, records in judged.items():
        found = estimates(records, unreadable)
        for prompt, estimate in found.items():
            lines[prompt][row] = format_estimate(estimate)
        means = [estimate["mean"] for estimate in found.values()] or [0.0]
        spread = max(means) - min(means)
        numbers["scores"][row], numbers["spread"][row] = found, spread
        lines["spread"][row] = mark(f"{100 * spread:.1f} points", spread > SPREAD)
    questions = [q for records in judged.values() for record in records for q in record.questions]
    for prompt, unread in unreadable.items():
        lines[prompt]["unreadable"] = f"{len(unread):,}"
        pairs = [
            (None if answer in unread else question.metrics[prompt] == 1, labels[answer])
            for question in questions
            if prompt in question.metrics and (answer := (question.id, question.answer)) in labels
        ]
        wrong = [verdict is True for verdict, right in pairs if not right]
        if pairs:
            agreement = fmean(verdict is right for verdict, right in pairs)
            numbers["labels"][prompt] = {"agreement": agreement, "n": len(pairs)}
            lines[prompt][f"agrees with {len(pairs):,} labels"] = f"{100 * agreement:.1f}"
        if wrong:
            numbers["labels"][prompt]["wrong_accepted"] = fmean(wrong)
            lines[prompt][f"accepts of {len(wrong):,} wrong"] = f"{100 * fmean(wrong):.1f}"
    return Table("judges", "Answers judged right", lines), numbers

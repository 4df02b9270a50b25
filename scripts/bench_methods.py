"""Bar: every method runs on real rows with a real model, leaves whole traces, and counts what the server counts.

    python scripts/bench_methods.py --benchmarks FOLDER [--model DIR] [--methods NAME ...] [--out DIR]

FOLDER holds hotpotqa/, 2wikimultihopqa/ and musique/ with the official dev files. From each of the three come `TASKS`
tasks of `DOCUMENTS` documents and `QUESTIONS` questions; ``atommem eval`` runs them with every method in turn, against
one vLLM server with SmolLM2-135M-Instruct that serves nothing else meanwhile. For every method:

- all episodes end, none failed;
- every trace is complete, ``atommem trace`` shows it, and it holds the calls and tokens that the episode's record has;
- the operations of a trace, applied again from an empty memory, give the store size of every step, and every entry that
  was shown reads as it stood in the store then;
- prompt tokens, sampled tokens and calls, summed over the traces and as ``summary.json`` has them, equal what the
  server's own metrics grew by: ``vllm:prompt_tokens_total``, ``vllm:generation_tokens_total`` and
  ``vllm:request_success_total``. They are compared exactly, and as many requests arrived at the server as there were
  calls (``http_requests_total``): none was sent twice.

Last, every request of one evaluation is refused, because prompt and completion do not fit the context window: neither
side may count a call or a token then, and every episode has to end as ``context_overflow``.

What the model writes is not judged here. Completions are short: the server runs on two cores.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import models
from quick import add_quick, command_line, flags, last_line
from vllm_process import ROOT, VllmServer

from atommem.envs.data_cli import main as data
from atommem.envs.scoring.records import EpisodeRecord
from atommem.envs.task_files import load_tasks, save_tasks
from atommem.eval.eval_cli import main as evaluate
from atommem.eval.methods import READERS
from atommem.eval.output import parse_records, trace_path
from atommem.memory.log import Contents
from atommem.trace import read_trace
from atommem.trace_view import main as show_trace

BENCHMARKS = ("hotpotqa", "2wikimultihopqa", "musique")
TASKS, DOCUMENTS, QUESTIONS = 2, 8, 2
CHUNK_TOKENS, MAX_TOKENS, MAX_READS = 600, 40, 1
NOTE_TOKENS = 120
"""Longest completion of the methods that reply in JSON: a shorter one ends before its object does."""
WINDOW = 8192
MODEL_NAME = "policy"
COUNTED = {
    "calls": "vllm:request_success_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "sampled_tokens": "vllm:generation_tokens_total",
}
"""What is counted here and there, and the server's name for it."""


def read_metrics(server: VllmServer) -> tuple[Counter[str], Counter[str]]:
    """What the server has counted, when nothing is running there: `COUNTED`, and completions asked for, by HTTP status
    class.
    """
    for _ in range(100):
        metrics = server.metrics()
        if not metrics["vllm:num_requests_running"] + metrics["vllm:num_requests_waiting"]:
            break
        time.sleep(0.1)
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as response:
        text = response.read().decode()
    requests: Counter[str] = Counter()
    for labels, value in re.findall(r"^http_requests_total\{([^}]*)\} (\S+)$", text, re.MULTILINE):
        if 'handler="/v1/completions"' in labels:
            status = re.search(r'status="(\w+)"', labels)
            requests[status[1] if status else "?"] += int(float(value))
    return Counter({name: int(metrics[counter]) for name, counter in COUNTED.items()}), requests


def build_tasks(benchmarks: Path, out: Path) -> Path:
    """One file with the tasks of all three benchmarks."""
    tasks = []
    for name in BENCHMARKS:
        path = out / f"{name}.parquet"
        rows = {"benchmark": name, "split": "dev", "input": benchmarks, "out": path}
        sizes = {"docs": DOCUMENTS, "questions": QUESTIONS, "n": TASKS, "seed": 7}
        with contextlib.redirect_stdout(io.StringIO()):
            status = data(["build", *flags({**rows, **sizes})])
        if status:
            sys.exit(status)
        tasks += load_tasks(path)
    path = out / "tasks.parquet"
    save_tasks(tasks, path)
    return path


def check_episode(
    folder: Path, record: EpisodeRecord, method: str, problems: list[str]
) -> Counter[str]:
    """What the trace of an episode counts; what is wrong with it is added to `problems`."""
    path = trace_path(folder, record)
    trace = read_trace(path)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    prompts = [line["prompt_tokens"] for line in lines if line["type"] == "step"]
    steps = trace.episode.steps
    sampled = sum(len(step.token_ids) for step in steps)
    counts = Counter(calls=len(steps), prompt_tokens=sum(prompts), sampled_tokens=sampled)
    where = f"{method} {record.task_id}"
    if not trace.complete:
        problems.append(f"{where}: the trace is cut off")
    of = (int(record.sums["steps"]), record.prompt_tokens, record.completion_tokens)
    recorded = Counter(dict(zip(COUNTED, of, strict=True)))
    if counts != recorded:
        problems.append(f"{where}: the trace counts {counts}, the record {recorded}")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        show_trace(["--no_pager", str(path)])
    if len(re.findall(r"[Ss]tep \d+", shown.getvalue())) < len(steps):
        problems.append(f"{where}: atommem trace does not show every step")
    contents = Contents()
    for step in steps:
        texts = {entry.id: entry.text for entry in contents.entries.values()}
        # The documents that RAG retrieves are in no memory: nothing wrote them.
        problems += [
            f"{where}, step {step.index}: entry {item.entry_id} was shown with another text than the memory had"
            for item in step.view.retrieved
            if method != "rag" and texts.get(item.entry_id) != item.text
        ]
        for operation in step.operations:
            contents.apply(operation)
        if len(contents.entries) != step.store_size:
            problems.append(
                f"{where}, step {step.index}: store_size {step.store_size} is not {len(contents.entries)}"
            )
    return counts


def run_method(
    server: VllmServer,
    tasks: Path,
    model: Path,
    method: str,
    out: Path,
    further: dict[str, int],
    endings: set[str],
) -> dict[str, Any]:
    """Evaluate `method` and compare; its figures, with ``problems``."""
    settings = {
        "policy": server.url,
        "model": MODEL_NAME,
        "tokenizer": model,
        "method": method,
        "data": tasks,
    }
    settings |= {
        "out": out,
        "embedder": "hashing",
        "max_reads": MAX_READS,
        "chunk_tokens": CHUNK_TOKENS,
    }
    settings |= {"max_tokens": MAX_TOKENS, "temperature": 0.7, **further}
    before, asked_before = read_metrics(server)
    started = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        status = evaluate(flags(settings))
    seconds = time.perf_counter() - started
    after, asked_after = read_metrics(server)
    problems = [] if status == 0 else [f"atommem eval ended with status {status}"]
    records = list(
        parse_records((out / "episodes.jsonl").read_bytes(), out / "episodes.jsonl").values()
    )
    problems += [
        f"{record.task_id} ended as {record.stop_reason}: {record.error or ''}"
        for record in records
        if record.stop_reason not in endings
    ]
    sources = Counter(record.source for record in records)
    if sorted(sources.values()) != [TASKS] * len(BENCHMARKS):
        problems.append(f"episodes of each benchmark: {dict(sources)}")
    counts = sum(
        (check_episode(out, record, method, problems) for record in records), Counter[str]()
    )
    grown = after - before
    if counts != grown:
        problems.append(f"the traces count {counts}, the server {grown}")
    means = json.loads((out / "summary.json").read_text())["means"]
    names = ("steps", "tokens/prompt", "tokens/completion")
    table = Counter(
        {key: round(means[name] * len(records)) for key, name in zip(COUNTED, names, strict=True)}
    )
    if table != grown:
        problems.append(f"summary.json counts {table}, the server {grown}")
    requests = asked_after - asked_before
    if requests["2xx"] != counts["calls"]:
        problems.append(f"{requests['2xx']} requests were answered for {counts['calls']} calls")
    return {
        "episodes": len(records),
        **{name: counts[name] for name in COUNTED},
        "refused": sum(requests.values()) - requests["2xx"],
        "entries": round(means["store_size"] * len(records)),
        "seconds": round(seconds, 1),
        "problems": problems,
    }


def run(
    server: VllmServer, tasks: Path, model: Path, methods: list[str], out: Path
) -> dict[str, dict[str, Any]]:
    """All methods in turn, then the refused requests."""
    figures: dict[str, dict[str, Any]] = {}
    print(
        f"{'method':<18} episodes calls prompt tokens sampled refused entries seconds", flush=True
    )
    ended = {"answered", "unanswered"}
    own = {
        "full_context": {"context_tokens": WINDOW},
        **{
            method: {"max_tokens": NOTE_TOKENS} for method in ("generative_agents", "a_mem", "mem0")
        },
    }
    # Completions as long as the window leave no room for a prompt; the client, which was given the model's name, does
    # not ask for the window and so finds out by being refused.
    too_long = {"context_tokens": 4 * WINDOW, "max_tokens": WINDOW, "max_failed_fraction": 1}
    cells = [(method, method, own.get(method, {}), ended) for method in methods]
    for name, method, further, endings in [
        *cells,
        ("(refused)", "full_context", too_long, {"context_overflow"}),
    ]:
        row = run_method(server, tasks, model, method, out / name.strip("()"), further, endings)
        figures[name] = row
        numbers = f"{row['episodes']:>8} {row['calls']:>5} {row['prompt_tokens']:>13} {row['sampled_tokens']:>7}"
        print(
            f"{name:<18} {numbers} {row['refused']:>7} {row['entries']:>7} {row['seconds']:>7}",
            flush=True,
        )
        for problem in row["problems"]:
            print(f"  {problem}")
    refused = figures["(refused)"]
    if (refused["calls"], refused["prompt_tokens"], refused["refused"]) != (
        0,
        0,
        refused["episodes"],
    ):
        refused["problems"].append(
            "an episode whose first request is refused counts no call, and sends it once"
        )
        print(f"  {refused['problems'][-1]}")
    return figures


def main(argv: list[str] | None = None) -> int:
    """Entry point; 0 if and only if everything holds."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--benchmarks", type=Path, default=ROOT.parent / "shared" / "data", metavar="FOLDER"
    )
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="unset: SmolLM2, of scripts/models.py"
    )
    parser.add_argument(
        "--methods", nargs="+", default=list(READERS), choices=READERS, metavar="NAME"
    )
    parser.add_argument("--out", type=Path, help="keep traces and the server's log here")
    add_quick(parser, methods=["full_context"])
    arguments = parser.parse_args(argv)
    model = arguments.model or models.smollm2()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        out = arguments.out or Path(scratch)
        out.mkdir(parents=True, exist_ok=True)
        tasks = build_tasks(arguments.benchmarks, out)
        of: dict[str, Any] = {
            "env": {"VLLM_CPU_KVCACHE_SPACE": "2"},
            "served_model_name": MODEL_NAME,
        }
        server = VllmServer(model, out / "server.log", "--max-model-len", str(WINDOW), **of)
        with server:
            up = time.perf_counter() - started
            print(f"the server was up after {up:.0f} s")
            figures = run(server, tasks, model, arguments.methods, out)
    holds = not any(row["problems"] for row in figures.values())
    return last_line(
        {"methods": figures, "seconds": round(time.perf_counter() - started), "holds": holds}
    )


if __name__ == "__main__":
    raise SystemExit(main())

"""Bar: 10,000 traces become a report in under 30 s, with at most 500 MB, whatever their number.

    python scripts/bench_report.py [--traces 10000] [--keep FOLDER]

Made-up evaluations are written as `atommem eval` writes them: a grid of chunk x k, capacities, baselines and bounds on
two streams. Their traces have `STEPS` steps that show some 1,500 characters each; those of a real run are several times
as long, and take that much longer to be read. Then `write_report` runs in a process of its own, on a quarter of the
tasks and on all of them. Memory is the highest resident set of that process: it grows by the records
(`episodes.jsonl`), which stay there, and not by the traces.
"""

from __future__ import annotations

import random
import resource
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peak_memory import peak_megabytes
from quick import add_quick, command_line, in_a_process, last_line

from atommem.actions import Action
from atommem.description import QuestionDescription, TaskDescription
from atommem.envs.scoring.records import record_of
from atommem.episode import Episode, Step
from atommem.eval.output import OutputFolder
from atommem.eval.reporting.evaluations import read_evaluation
from atommem.eval.reporting.report_cli import write_report
from atommem.memory.log import MemoryView, Operation, Retrieved
from atommem.observation import Observation, Piece, StopReason

STEPS, MOST_SECONDS, MOST_MEGABYTES = 10, 30.0, 500.0
Setting = tuple[str, dict[str, Any]]
GRID: list[Setting] = [
    ("AtomMem", {"chunk": chunk, "k": k}) for chunk in (1024, 4096, 16384) for k in (3, 6, 12)
]
CAPACITY: list[Setting] = [("AtomMem", {"capacity": capacity}) for capacity in (5, 20, "unlimited")]
ROWS = [
    *GRID,
    *CAPACITY,
    *((name, {}) for name in ("mem0", "rag", "full_context", "no_memory", "oracle")),
]
DOCUMENTS = (200, 800)


def make_episode(task: str, gold: str, rng: random.Random, skill: float) -> Episode:
    """An episode that reads, writes and answers; right with the probability `skill`."""
    right, kept = rng.random() < skill, rng.random() < 0.7
    steps: list[Step] = []
    entries: list[str] = []
    for index in range(STEPS):
        last = index == STEPS - 1
        fact = f"{task} is about {gold}." if kept and index == 2 else f"Note {index} of {task}."
        text = (
            f"<create_memory>{fact}</create_memory>"
            if not last
            else f"\\boxed{{{gold if right else 'elsewhere'}}}"
        )
        written = () if last else (Operation(index, "create", entry_id=index + 1, after=fact),)
        steps.append(
            Step(
                index=index,
                observation=Observation(
                    "answering" if last else "reading",
                    (Piece("question", {"question": f"What is {task} about?"}),),
                    ()
                    if last
                    else (
                        Piece(
                            "chunk", {"chunk": f"Part {index} of {task}. " + "A long text. " * 110}
                        ),
                    ),
                    label=f"chunk {index + 1}/{STEPS}",
                    question=0 if last else None,
                ),
                view=MemoryView(
                    retrieved=tuple(
                        Retrieved(n, n, old, 0.5) for n, old in enumerate(entries[:6], 1)
                    )
                ),
                prompt_ids=[],
                token_ids=[],
                logprobs=[],
                text=text,
                finish_reason="stop",
                actions=(Action("answer" if last else "create", text, start=0, end=len(text)),),
                problems=(),
                operations=written,
                store_size=len(entries) + (not last),
                prompt_tokens=rng.randrange(800, 1600),
                completion_tokens=rng.randrange(20, 200),
            )
        )
        entries.append(fact)
    answer = gold if right else "elsewhere"
    score = {"em": float(right), "f1": float(right)}
    return Episode(
        task, 0, steps, (answer,), float(right), score, (score,), stop_reason=StopReason.ANSWERED
    )


def write(folder: Path, traces: int) -> int:
    """All evaluations; how many traces they have."""
    tasks = max(1, traces // (len(ROWS) * len(DOCUMENTS)))
    for place, (name, parameters) in enumerate(ROWS):
        for documents in DOCUMENTS:
            rng = random.Random(f"{name} {parameters} {documents}")
            skill = {"no_memory": 0.1, "oracle": 0.95}.get(
                name, 0.3 + 0.03 * place - documents / 5000
            )
            manifest = {
                "tasks": {"count": tasks, "sha256": str(documents)},
                "samples_per_task": 1,
                "memory": {},
            }
            manifest |= {"method": {"name": name}}
            with OutputFolder(folder / f"{place}-{documents}", manifest) as out:
                for number in range(tasks):
                    gold = f"Town {number}"
                    question = QuestionDescription(
                        f"What is task-{number} about?", (gold,), f"q{number}"
                    )
                    task = TaskDescription(f"task-{number}", "made", (question,))
                    episode = make_episode(task.id, gold, rng, skill)
                    out.add(task, episode, record_of(task, episode))
    return tasks * len(ROWS) * len(DOCUMENTS)


def report(folder: Path, out: Path) -> Mapping[str, Any]:
    """Write the report; seconds, those of the processor (start included), and the highest resident set in MB."""
    began = time.perf_counter()
    evaluations = [
        read_evaluation(
            folder / f"{place}-{documents}",
            name,
            "made",
            setting=", ".join(f"{key} {value}" for key, value in parameters.items()),
            documents=documents,
            parameters=parameters,
        )
        for place, (name, parameters) in enumerate(ROWS)
        for documents in DOCUMENTS
    ]
    write_report(evaluations, out, title="Made up", reference="rag")
    seconds, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": seconds,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "megabytes": peak_megabytes(),
    }


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--traces", type=int, default=10_000)
    parser.add_argument("--keep", help="folder for evaluations and report, which are else removed")
    add_quick(parser, traces=68)
    given = parser.parse_args()
    measured = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, traces in (("quarter", given.traces // 4), ("whole", given.traces)):
            folder = Path(given.keep or temporary, name)
            count = write(folder, traces)
            done = in_a_process(report, folder, folder / "report")
            page = (folder / "report" / "report.html").stat().st_size
            measured[name] = {"traces": count, **done, "page_bytes": page}
            print(name, measured[name], flush=True)
    whole = measured["whole"]
    holds = whole["seconds"] < MOST_SECONDS and whole["megabytes"] < MOST_MEGABYTES
    return last_line({**measured, "quick": given.quick, "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())

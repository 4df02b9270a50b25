"""Bar: A-Mem and MemAgent make the calls that arXiv 2601.08323, Table 6, counts; mem0's store is mem0's own.

    python scripts/bench_baselines.py [--quick] [--authors FOLDER [--record]]

**Calls.** One synthetic task of 200 documents of 140 tokens (28,000, as the paper has it), 4 questions, chunks of 4,000
tokens; the policy is a script whose replies always parse. The calls of every baseline beside Table 6's: A-Mem's and
MemAgent's have to be within 5%. They follow from the number of documents and chunks, so a real model could change them
only by failing. Mem0's lie between the chunks + 1, where no chunk holds a fact, and 2 x chunks + 1; those of Generative
Agents depend on how important the model finds what it reads. Both are a range here, without a bar.

**Stores.** Streams with scripted replies, well-formed and not, go through A-Mem, mem0 and MemAgent here and through
their authors' own code; what every prompt shows, what the answer is given from and what is stored in the end have to be
the same. Without `--authors`, what their code made of `RECORDED` streams of each was recorded before
(tests/eval/methods/authors.json); with it, their code runs, on more streams. FOLDER holds

- ``A-mem/memory_layer.py`` of WujiangXu/A-mem (0c8039f),
- ``MemAgent/taskutils/memory_eval/utils/`` of BytedTsinghua-SIA/MemAgent (76b7a65),
- ``mem0/``: ``pip install --no-deps --target FOLDER/mem0 mem0ai==1.0.11``, and its requirements where Python finds them
  (qdrant-client, openai, posthog, pytz, sqlalchemy).

What is scripted is what a model and an embedder would say; wording, decoding under a JSON schema and the embedder's
treatment of queries are not compared.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from quick import add_quick, command_line, last_line

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from atommem.config import MemoryConfig
from atommem.environment import environment_config, make_environments
from atommem.envs.task import Document, Question, Task
from atommem.eval.methods import Setup, make_method
from atommem.policy.contract import Sampling
from atommem.policy.scripted import ScriptedPolicy
from tests.eval.methods import same_replies
from tests.eval.methods.same_replies import METHODS, WordVectors, digest, make_case, run
from tests.fakes import WordTokenizer

TABLE6 = {"memagent": 8.0, "mem0": 12.9, "generative_agents": 375.9, "a_mem": 400.0}
BARRED, TOLERANCE = ("a_mem", "memagent"), 0.05
DOCUMENTS, DOCUMENT_TOKENS, QUESTIONS, CHUNK_TOKENS = 200, 140, 4, 4000
RECORDED, LIVE, TEXTS = 20, 100, 12
LONG = {"a_mem": 140}
"""One more stream, of so many texts: A-Mem embeds all notes anew after 100 that changed something."""
RECORD = Path(same_replies.__file__).with_name("authors.json")


def calls_of(method: str, rating: int = 7, facts: int = 12) -> int:
    """Calls of a model on the task, which always replies what any prompt asks for, and rates everything alike."""
    tokenizer, calls = WordTokenizer(), 0
    reply: dict[str, Any] = {"keywords": ["k"], "context": "c", "tags": ["t"], "importance": rating}
    reply |= {"should_evolve": False, "facts": [f"fact {number}" for number in range(facts)]}
    reply |= {"memory": [{"text": "fact", "event": "ADD"}], "questions": ["q1", "q2", "q3"]}
    reply |= {"insights": [{"insight": f"i{place}"} for place in range(5)]}

    def script(prompt: str) -> str:
        nonlocal calls
        calls += 1
        return "\\boxed{x} " * QUESTIONS if "Answer every question" in prompt else json.dumps(reply)

    setup = Setup(
        ScriptedPolicy(tokenizer, script),
        WordVectors(),
        tokenizer,
        make_environments(environment_config("longdoc", chunk_tokens=CHUNK_TOKENS), tokenizer),
        MemoryConfig(),
        Sampling(),
        context_tokens=10**6,
    )
    # A heading of two words and a title come before each text.
    texts = [
        " ".join(f"w{number}.{place}" for place in range(DOCUMENT_TOKENS - 3))
        for number in range(DOCUMENTS)
    ]
    task = Task(
        "t",
        tuple(Question(f"question {number} ?", ("x",)) for number in range(QUESTIONS)),
        tuple(Document(f"title{number}", text) for number, text in enumerate(texts)),
    )
    episode = asyncio.run(make_method(method, setup).run(task))
    assert (episode.reward, len(episode.steps)) == (1.0, calls), f"{method}: {episode.stop_reason}"
    return calls


def count_calls() -> tuple[dict[str, Any], bool]:
    """Calls beside Table 6's, and whether those with a bar hold it."""
    figures: dict[str, Any] = {}
    holds = True
    print(f"{'calls a task':<20} here  Table 6")
    for method in ("full_context", "rag", "memagent", "mem0", "generative_agents", "a_mem"):
        published = TABLE6.get(method)
        row: dict[str, Any] = {"calls": calls_of(method), "table6": published}
        if method == "mem0":
            row["calls"] = [calls_of(method, facts=0), row["calls"]]
        if method == "generative_agents":
            by_rating = {rating: calls_of(method, rating) for rating in (1, 3, 5, 7, 9)}
            row["calls"], row["by_rating"] = (
                [min(by_rating.values()), max(by_rating.values())],
                by_rating,
            )
        if method in BARRED:
            row["off"] = round(abs(row["calls"] / TABLE6[method] - 1), 4)
            holds &= row["off"] <= TOLERANCE
        figures[method] = row
        print(
            f"{method:<20} {row['calls']!s:>4}  {published or '-'}  {row.get('by_rating', '')}",
            flush=True,
        )
    return figures, holds


def cases_of(method: str, streams: int) -> list[dict[str, Any]]:
    """The first so many streams, and the long one."""
    cases = [make_case(method, seed, TEXTS) for seed in range(streams)]
    return [*cases, make_case(method, 0, LONG[method])] if method in LONG else cases


def authors_digests(folder: Path, cases: list[dict[str, Any]]) -> list[str]:
    """What the authors' code makes of the cases of one method."""
    command = [sys.executable, str(Path(__file__).with_name("authors_code.py")), str(folder)]
    ended = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True)
    if ended.returncode:
        sys.exit(
            f"{cases[0]['method']}: its authors' code ended with an error:\n{ended.stderr[-2000:]}"
        )
    return [digest(outcome) for outcome in json.loads(ended.stdout)]


def compare_stores(folder: Path | None, streams: int, record: bool) -> tuple[dict[str, Any], bool]:
    """Streams with the same outcome, by method."""
    recorded: dict[str, list[str]] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    figures: dict[str, Any] = {}
    print(f"{'same replies':<20} streams  same outcome")
    for method in METHODS:
        cases = cases_of(method, streams)
        theirs = authors_digests(folder, cases) if folder else recorded[method][:streams]
        if record:
            recorded[method] = theirs[:RECORDED]
        ours = [digest(run(case)) for case in cases[: len(theirs)]]
        equal = sum(one == other for one, other in zip(ours, theirs, strict=True))
        figures[method] = {"streams": len(theirs), "equal": equal, "live": folder is not None}
        print(f"{method:<20} {len(theirs):>7}  {equal}", flush=True)
    if record:
        RECORD.write_text(json.dumps(recorded) + "\n")
    return figures, all(row["equal"] == row["streams"] > 0 for row in figures.values())


def main(argv: list[str] | None = None) -> int:
    """Entry point; 0 if and only if everything holds."""
    parser = command_line(__doc__)
    add_quick(parser)
    parser.add_argument("--authors", type=Path, metavar="FOLDER", help="their code, to be run")
    parser.add_argument(
        "--record", action="store_true", help="keep what their code makes of the first streams"
    )
    given = parser.parse_args(argv)
    if given.record and not given.authors:
        parser.error("--record needs --authors")
    calls, counted = count_calls()
    streams = 5 if given.quick else LIVE if given.authors else RECORDED
    stores, same = compare_stores(given.authors, streams, given.record)
    return last_line({"calls": calls, "stores": stores, "holds": counted and same})


if __name__ == "__main__":
    raise SystemExit(main())

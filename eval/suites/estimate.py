"""What a suite will cost before it runs: calls and tokens by rules of thumb, and hours at a stated throughput."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean
from typing import Any

from atommem.envs.task import Task
from atommem.eval.suites.cells import Cell
from atommem.eval.suites.suite import BenchmarkData

DOCUMENT_TOKENS = 140
"""Of a document: 200 of them are about 28,000 tokens (arXiv 2601.08323, section 4.1.1)."""
COMPLETION_TOKENS = 500
"""Of a completion, where `max_tokens` allows for them."""
_FRAME = 1500
"""Instructions, questions, scratchpad and entries in a prompt."""
_CALLS = {
    "atommem": (1.0, 0.0, 1.0),
    "memagent": (1.0, 0.0, 0.0),
    "a_mem": (0.0, 2.0, 0.0),
    "generative_agents": (0.0, 1.9, 0.0),
    "mem0": (1.5, 0.0, 0.0),
}
"""Calls for each chunk, each document, and each question after the first (Table 6); other methods only answer."""


@dataclass
class Cost:
    """Of some cells.

    Attributes:
        calls, prompt_tokens, completion_tokens: Of all their episodes.
        unknown: Cells whose tasks only a file knows: they are in no sum.
    """

    calls: float = 0.0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0
    unknown: int = 0

    def text(self, throughput: float | None) -> str:
        """In words; `throughput` is prompt and completion tokens a second, over all servers."""
        tokens = self.prompt_tokens + self.completion_tokens
        hours = (
            f"; {tokens / throughput / 3600:,.1f} hours at {throughput:,g} tokens a second"
            if throughput
            else ""
        )
        if not self.calls and self.unknown:
            return f"estimate: none, as the tasks of {self.unknown} cells are not known yet"
        left_out = (
            f"; without {self.unknown} cells whose tasks are not known yet" if self.unknown else ""
        )
        return (
            f"estimate of what is to run, at {DOCUMENT_TOKENS} tokens a document and up to {COMPLETION_TOKENS} a "
            f"completion: {self.calls:,.0f} calls, {self.prompt_tokens / 1e6:,.1f} million prompt and "
            f"{self.completion_tokens / 1e6:,.1f} million completion tokens{hours}{left_out}"
        )


def estimate(cells: Iterable[Cell], tasks: Mapping[str, Sequence[Any]] | None = None) -> Cost:
    """What the episodes of `cells` cost that have not ended.

    Args:
        cells: Of a suite.
        tasks: By the columns' keys, where they have been read: for columns that do not say what a task is.
    """
    cost = Cost()
    for cell in cells:
        config = cell.evaluation.config
        shape = _shape(cell, (tasks or {}).get(cell.column.key, ()))
        if shape is None:
            cost.unknown += 1
            continue
        count, documents, text, questions = shape
        episodes = count * config.samples_per_task - cell.done
        environment = cell.evaluation.run.environment
        chunks = float(ceil(text / getattr(environment, "chunk_tokens", text)))
        if getattr(environment, "chunking", "") == "documents":
            chunks = documents
        each_chunk, each_document, each_question = _CALLS.get(cell.row.method, (0.0, 0.0, 0.0))
        reading = each_chunk * chunks + each_document * documents
        answers = 1 + each_question * (questions - 1)
        read = (each_chunk + each_document) * text
        if cell.row.method == "full_context":
            read = min(text, config.context_tokens)
        cost.calls += episodes * (reading + answers)
        cost.prompt_tokens += episodes * ((reading + answers) * _FRAME + read)
        cost.completion_tokens += (
            episodes
            * (reading + answers)
            * min(COMPLETION_TOKENS, cell.evaluation.run.sampling.max_tokens)
        )
    return cost


def _shape(cell: Cell, tasks: Sequence[Any]) -> tuple[int, float, float, float] | None:
    """How many tasks a cell has, and of a mean one the documents, the tokens of its text, and the questions.

    None where neither the column nor `tasks` say, as on the web, whose text is not known beforehand.
    """
    data, limit = cell.column.data, cell.evaluation.config.limit
    if isinstance(data, BenchmarkData):
        documents = float(data.build.documents)
        count, questions = min(data.build.n, limit or data.build.n), sum(data.build.questions) / 2
        return count, documents, documents * DOCUMENT_TOKENS, questions
    own = [task for task in tasks[:limit] if isinstance(task, Task)]
    characters = sum(
        len(task.context or "") + sum(len(document.text) for document in task.documents)
        for task in own
    )
    if not characters:
        return None
    documents = fmean(len(task.documents) for task in own)
    return (
        len(own),
        documents,
        characters / 4 / len(own),
        fmean(len(task.questions) for task in own),
    )

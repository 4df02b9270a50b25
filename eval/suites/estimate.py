"""What a suite will cost before it runs: calls and tokens by rules of thumb, and hours at a stated throughput."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

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
        hours = f"; {tokens / throughput / 3600:,.1f} hours at {throughput:,g} tokens a second" if throughput else ""
        left_out = f"; without {self.unknown} cells whose tasks are not known yet" if self.unknown else ""
        return (
            f"estimate, at {DOCUMENT_TOKENS} tokens a document and up to {COMPLETION_TOKENS} a completion: "
            f"{self.calls:,.0f} calls, {self.prompt_tokens / 1e6:,.1f} million prompt and "
            f"{self.completion_tokens / 1e6:,.1f} million completion tokens{hours}{left_out}"
        )


def estimate(cells: Iterable[Cell]) -> Cost:
    """What the episodes of `cells` cost that have not ended, as far as their columns say what a task is."""
    cost = Cost()
    for cell in cells:
        data, config = cell.column.data, cell.configs[0]
        if not isinstance(data, BenchmarkData):
            cost.unknown += 1
            continue
        planned = min(data.build.n, config.limit or data.build.n) * config.samples_per_task
        episodes = planned - cell.done
        text = data.build.documents * DOCUMENT_TOKENS
        chunk = cell.configs[3].chunk_tokens if hasattr(cell.configs[3], "chunk_tokens") else text
        chunks, questions = ceil(text / chunk), sum(data.build.questions) / 2
        each_chunk, each_document, each_question = _CALLS.get(cell.row.method, (0.0, 0.0, 0.0))
        reading = each_chunk * chunks + each_document * data.build.documents
        answers = 1 + each_question * (questions - 1)
        read = each_chunk * text + each_document * data.build.documents * DOCUMENT_TOKENS
        if cell.row.method == "full_context":
            read = min(text, config.context_tokens)
        cost.calls += episodes * (reading + answers)
        cost.prompt_tokens += episodes * ((reading + answers) * _FRAME + read)
        cost.completion_tokens += episodes * (reading + answers) * min(COMPLETION_TOKENS, config.max_tokens)
    return cost

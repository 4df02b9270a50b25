"""Full Context: all documents in one prompt, cut in the middle where the context window is too short.

The cut keeps the beginning and the end, as LongBench does (Bai et al. 2024, arXiv 2308.14508, section 4.1); how much
was lost is part of the result (metrics ``truncated`` and ``context_kept``).
"""

from __future__ import annotations

from atommem.envs.chunking import joined_text
from atommem.envs.task import Task
from atommem.errors import ConfigError
from atommem.eval.methods.baseline import Reader, Recorder, Setup
from atommem.tokens import cut_position, token_offsets


class FullContext(Reader):
    """Asks all questions together, with the whole text of the task.

    Metrics of an episode: ``truncated`` (1 if anything was cut) and ``context_kept`` (the smallest fraction of the
    text's tokens that a question was shown).
    """

    name = "full_context"
    fills_context = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if setup.context_tokens <= setup.sampling.max_tokens:
            raise ConfigError(
                f"context_tokens is {setup.context_tokens} and max_tokens {setup.sampling.max_tokens}: "
                "no text would fit."
            )

    async def play(self, record: Recorder, task: Task) -> None:
        """Ask with as much of the text as fits."""
        text = joined_text(task)
        offsets = token_offsets(self.setup.tokenizer, text)
        record.metrics = {"truncated": 0.0, "context_kept": 1.0}
        for asked in record.together:
            frame = len(record.prompt_ids(record.asking(asked, "")))
            # Joints between the pieces may cost some tokens more than the pieces by themselves.
            room = max(0, self.setup.context_tokens - self.setup.sampling.max_tokens - frame - 8)
            shown = text
            if len(offsets) > room:
                shown, kept = cut_middle(text, offsets, room), room / len(offsets)
                record.metrics = {
                    "truncated": 1.0,
                    "context_kept": min(kept, record.metrics["context_kept"]),
                }
            await record.answer(asked, shown)


def cut_middle(text: str, offsets: list[tuple[int, int]], room: int) -> str:
    """The first and the last ``room / 2`` tokens of `text`, the odd one going to the beginning.

    Args:
        text: The whole text.
        offsets: The character span of each of its tokens.
        room: Tokens to keep, fewer than there are.
    """
    tail = room // 2
    head = text[: cut_position(offsets, room - tail)]
    return head + (text[cut_position(offsets, len(offsets) - tail) :] if tail else "")

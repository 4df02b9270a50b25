"""What a judge says of an answer, and how a verdict is read from a model's reply."""

from __future__ import annotations

import re
from dataclasses import dataclass

from atommem.servers.chat import ChatReply

_VERDICT = re.compile(r"\W*(?:verdict\W+)?(correct|incorrect)\W*", re.IGNORECASE)
_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge says of one answer.

    Attributes:
        score: 1.0 for a right answer, 0.0 for a wrong one and for one that it gave no verdict on.
        text: What it said (the end of it), or why there is no verdict.
        readable: Whether there is a verdict.
    """

    score: float
    text: str = ""
    readable: bool = True


def read_verdict(reply: ChatReply) -> Verdict | None:
    """The verdict in the last line of a reply that is not blank; None if that is none.

    A thought is no verdict: what stands up to ``</think>`` is left out, and all of it where a ``<think>`` never ends.
    Servers that put a thought apart may put all of a short reply there: then its last line counts.
    """
    text = reply.text
    if not text.strip() and reply.finish_reason == "stop":
        text = reply.reasoning
    spoken = text.rpartition("</think>")[2]
    if "<think>" in spoken:
        return None
    lines = [line for line in spoken.splitlines() if line.strip()]
    match = _VERDICT.fullmatch(lines[-1].strip()) if lines else None
    return None if match is None else Verdict(float(match[1].lower() == "correct"), spoken.strip()[-_KEPT:])

"""What a judge says of an answer, and how a verdict is read from a model's reply."""

from __future__ import annotations

import re
from dataclasses import dataclass

from atommem.servers.chat import ChatReply

RIGHT, WRONG, NOT_ATTEMPTED = "correct", "incorrect", "not_attempted"
_VERDICT = re.compile(
    r"[^\w>]*(?:(?:verdict|grade|judge?ment)\W+)?(?:[abc]\W+)?(correct|incorrect|not[ _]attempted)\W*",
    re.IGNORECASE,
)
_YES_NO = re.compile(r"[^\w>]*correct\W*:\W*(yes|no)\W*", re.IGNORECASE)
_LETTER = re.compile(r"[^\w>]*(?:grade\W+)?([abc])\W*", re.IGNORECASE)
_LETTERS = {"a": RIGHT, "b": WRONG, "c": NOT_ATTEMPTED}
_YES = {"yes": RIGHT, "no": WRONG}
_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge says of one answer.

    Attributes:
        score: 1.0 for a right answer, 0.0 for a wrong one, one that is no attempt, and one without a verdict.
        text: What it said (the end of it), or why there is no verdict.
        readable: Whether there is a verdict.
        attempted: Whether the answer tries to answer; None where the judge is not asked that.
    """

    score: float
    text: str = ""
    readable: bool = True
    attempted: bool | None = None


def is_three_way(prompt: str) -> bool:
    """Whether a judge's prompt offers a third grade, for answers that are no attempt."""
    return re.search("not[ _]attempted", prompt, re.IGNORECASE) is not None


def read_verdict(reply: ChatReply, three_way: bool = False) -> Verdict | None:
    """The verdict in the last line of a reply that is not blank; None if that is none.

    It is CORRECT, INCORRECT or NOT_ATTEMPTED, or a letter for one of these where the judge was offered three
    (`is_three_way`), or ``correct: yes`` or ``correct: no``, which may be the last line but one. What the judge quotes
    (``> CORRECT``) is none. A thought is no verdict: what stands up to ``</think>`` is left out, and all of it where a
    ``<think>`` never ends. Servers that put a thought apart may put all of a short reply there: then its last line
    counts.
    """
    text = reply.text
    if not text.strip() and reply.finish_reason == "stop":
        text = reply.reasoning
    spoken = text.rpartition("</think>")[2]
    if "<think>" in spoken:
        return None
    grade = _grade([line.strip() for line in spoken.splitlines() if line.strip()], three_way)
    if grade is None:
        return None
    attempted = grade != NOT_ATTEMPTED if three_way else None
    return Verdict(float(grade == RIGHT), spoken.strip()[-_KEPT:], attempted=attempted)


def _grade(lines: list[str], three_way: bool) -> str | None:
    if not lines:
        return None
    if match := _VERDICT.fullmatch(lines[-1]):
        grade = match[1].lower().replace(" ", "_")
        return grade if three_way or grade != NOT_ATTEMPTED else None
    if three_way and (match := _LETTER.fullmatch(lines[-1])):
        return _LETTERS[match[1].lower()]
    said = [match[1].lower() for line in lines[-2:] if (match := _YES_NO.fullmatch(line))]
    return _YES[said[0]] if len(said) == 1 else None

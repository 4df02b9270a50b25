"""Questions whose right answer is that the text does not tell: how they allow for it, and how an answer says it."""

from __future__ import annotations

ABSTENTION = "not mentioned"
_ABSTENTIONS = ("no information available", ABSTENTION)


def abstains(answer: str | None) -> bool:
    """Whether an answer says that the text does not tell: by the words of LoCoMo's ``task_eval/evaluation.py``."""
    return answer is not None and any(phrase in answer.lower() for phrase in _ABSTENTIONS)


def hint(what: str) -> str:
    """Follows every question of a file that has some without an answer; it gives none of them away."""
    return f' (If the {what} does not tell, answer "{ABSTENTION}".)'

"""The verdict in a judge's reply, in the forms that models give it."""

import re
from dataclasses import dataclass

from atommem.grammar import boxes_in
from atommem.servers.chat import ChatReply
from atommem.thinking import after_thoughts
from atommem.words import unify

_WORDS = r"correct|incorrect|not[ _]attempted"
_GRADES = rf"(?P<grade>{_WORDS})"
_LABEL = r"(?:verdict|grade|judge?ment|decision|conclusion|assessment|evaluation|label|result)"
_ALONE = re.compile(
    rf"[^\w>]*(?:\d[.)]\W*)?(?:(?:yes|{_LABEL})\W+)?(?:[abc]\W+)?{_GRADES}[^\w?]*", re.IGNORECASE
)
_LETTER = re.compile(r"[^\w>]*(?:grade\W+)?(?P<grade>[abc])\W*", re.IGNORECASE)
_YES_NO = re.compile(r"[^\w>]*correct\W*:\W*(?P<grade>yes|no|true|false)\W*", re.IGNORECASE)
_FIELD = re.compile(
    rf"[\"'](?:is_)?(?:correct|{_LABEL})[\"']\s*:\s*[\"']?(?P<grade>{_WORDS}|yes|no|true|false)\b",
    re.IGNORECASE,
)
# A verdict at the beginning of a line, and then its reason.
_BEGINS = re.compile(
    r"[^\w>]*(?:(?:so|thus|therefore|hence|overall)\W+)?"
    rf"(?:(?:(?:the|my|this|final|given)\W+)*(?:{_LABEL}|answer|response|it)\b(?:\W*(?:is|was)\b)?"
    rf"[^\w\"'`\u201c\u2018]*)?(?:[abc]\W+)?{_GRADES}"
    r"(?P<reason>[^\w?]*|\s*[^\w\s/|?\\].*|\s+(?:because|since|as)\b.*)",
    re.IGNORECASE,
)
_LIMITED = re.compile(r"\W*(?:in\s+)?(?:but|except|however|if|part)", re.IGNORECASE)
# A verdict in capitals may stand at the end of a sentence.
_CAPITALS = re.compile(r"\b(?P<grade>CORRECT|INCORRECT|NOT[ _]ATTEMPTED)\b(?!\s*[/|?\\]|\s+or\b)")
_BEFORE = re.compile(
    rf"(?:\b{_LABEL}\b\W*|\b{_LABEL}\W+is\W+"
    r"|\b(?:grade|rate|judge|mark|label)\W+(?:it|this|that|the\W+\w+)\W+"
    r"|(?:\b(?:is|as|so|thus|therefore|hence)\b|[:=>{\[(])[^\w\"'`\u201c\u2018]*)\Z",
    re.IGNORECASE,
)
_DOUBT = re.compile(
    r"\b(?:not|never|nor?|neither|cannot|hardly|far|part\w*|almost|nearly|mostly|could"
    r"|would(?! (?:grade|rate|judge|mark|label|say))|should|might|may|if"
    r"|unless|whether|says?|said|claims?|asks?|writes?|words?)\b|n['\u2019]t\b",
    re.IGNORECASE,
)
_RIGHT = ("correct", "a", "yes", "true")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's verdict on one answer: 1.0 if it is right, else 0.0, also if none is `readable`.

    `text` is the end of the reply, or why there is no verdict.
    """

    score: float
    text: str = ""
    readable: bool = True


def read_verdict(reply: ChatReply, letters: bool = False) -> Verdict | None:
    """Return the verdict of a reply, or None where it is missing, doubtful or contradictory.

    It is CORRECT, INCORRECT or NOT_ATTEMPTED, with `letters` also A, B or C for one of these, or
    ``correct: yes`` or ``correct: no``: alone in the last line (or in the box), or else wherever
    lines begin with one, or sentences end with one in capitals, if all of them agree. Quoted lines
    (``> CORRECT``) and thoughts do not count. Servers that separate thoughts may put a short reply
    there as a whole: then it counts.
    """
    text = reply.text
    if not text.strip() and reply.finish_reason == "stop":
        text = reply.reasoning
    text = unify(after_thoughts(text))
    lines = [re.sub(r"</?\w+>", " ", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line.strip("`") and not line.startswith(">")]
    if not lines:
        return None
    lines += boxes_in("\n".join(lines))[-1:]
    alone = [_ALONE, *([_LETTER] if letters else [])]
    grades = _grades(alone, lines[-1:]) or _grades([_YES_NO], lines[-2:])
    if not grades and reply.finish_reason != "length":
        grades = _grades([*alone, _YES_NO, _BEGINS], lines)
        grades += [match["grade"].lower() for line in lines for match in _FIELD.finditer(line)]
        capitals = [match for line in lines for match in _CAPITALS.finditer(line)]
        if len({match["grade"] for match in capitals}) > 1:
            return None
        grades += [match["grade"].lower() for match in capitals if _ends_sentence(match)]
    scores = {grade in _RIGHT for grade in grades}
    return Verdict(float(scores.pop()), text[-1000:]) if len(scores) == 1 else None


def _grades(forms: list[re.Pattern[str]], lines: list[str]) -> list[str]:
    """Return the grades of the lines that have one of the forms as a whole."""
    found = (next(filter(None, (form.fullmatch(line) for form in forms)), None) for line in lines)
    return [match["grade"].lower() for match in found if match and not _is_limited(match)]


def _is_limited(match: re.Match[str]) -> bool:
    """Whether the reason limits CORRECT, or `correct:` is the name of what follows."""
    grade, reason = match["grade"], match.groupdict().get("reason") or ""
    names = grade != "CORRECT" and re.match(r"[\s*]*:\W*\w", reason)
    return grade.lower() == "correct" and bool(names or _LIMITED.match(reason))


def _ends_sentence(match: re.Match[str]) -> bool:
    """Whether a verdict in capitals is the judge's, without doubt, and not the words of another."""
    sentence = re.split(r"[.!?;](?=\s)", match.string[: match.start()])[-1]
    if not sentence.strip():  # a sentence of its own, at the end
        return re.search(r"[\w?]", match.string[match.end() :]) is None
    return bool(_BEFORE.search(sentence)) and not _DOUBT.search(sentence)

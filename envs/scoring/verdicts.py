"""The verdict in a judge's reply, in the forms that models give it."""

import re
from dataclasses import dataclass

from atommem.files import load_beside
from atommem.grammar import boxes_in
from atommem.servers.chat import ChatReply
from atommem.thinking import after_thoughts
from atommem.words import unify

_TEXTS: dict[str, str] = load_beside(__file__, "verdicts.yaml")
_WORD = {name: f"(?:{'|'.join(words.split())})" for name, words in _TEXTS.items()}
_GRADES = r"(?P<grade>correct|incorrect|not[ _-]attempted)"
_OPEN = r"[^\w\"'`\u201c\u2018]*"  # signs, but no opening quote: what is quoted is another's
_CLOSE = r"[\"'\u201d\u2019`]*"
_GIVEN = (
    rf"(?:{_WORD['given']}\W+)*(?:{_WORD['label']}|{_WORD['answer']})\b"
    rf"(?:\W+{_WORD['after']}\b|\W+for\W+\w+\W+answer\b|,?\s*[\"\u201c(][^\"\u201d)]*[\"\u201d)],?|,[^,]*,)?"
)
_IS = rf"(?:\W*(?:{_WORD['is']}|(?<=['\u2019])s)\b(?:\W*{_WORD['surely']}\b)*)"
_REASON = (
    rf"{_CLOSE}(?:[^\w?]*|\s*[^\w\s/|?\\\"'\u201d\u2019`\u300d].*|\s+(?:because|since|as)\b.*"
    rf"|\W*{_WORD['ends']}\W*)"
)
# A verdict as a whole line, or as its last sentence where that says what it is.
_ALONE = re.compile(
    rf"(?:[^\w>]*(?:\d[.)]\W*)?(?:(?:yes|no(?!.*\bcorrect))\W+)?(?:{_WORD['surely']}\W+)*"
    rf"|(?:.*[.!?;]\s+)?[^\w>]*(?:(?:the|my|final|yes)\W+)*{_WORD['label']}(?:\W+is)?\W+)"
    rf"(?:[abc]\W+)?{_GRADES}[^\w?]*",
    re.IGNORECASE,
)
_LETTER = re.compile(
    rf"[^\w>]*(?:(?:the|my|final)\W+)*(?:(?:answer|{_WORD['label']})\W+(?:is\W+)?)?"
    r"(?P<grade>[abc])\W*",
    re.IGNORECASE,
)
_YES_NO = re.compile(
    r"[^\w>]*(?:is[_ ])?correct\W*:\W*(?P<grade>yes|no|true|false)\W*", re.IGNORECASE
)
_FIELD = re.compile(
    rf"[\"'](?:(?:is|final)_)?(?:correct|answer|response|output|{_WORD['label']})[\"']\s*:\s*"
    rf"[\"']?{_GRADES[:-1]}|yes|no|true|false)\s*(?:[\"',}}]|\Z)",
    re.IGNORECASE,
)
# A verdict at the beginning of a line, and then its reason.
_BEGINS = re.compile(
    rf"[^\w>]*(?:(?:{_WORD['hence']}|yes|no(?!.*\bcorrect))\W+)?(?:(?<![\"'\u201c\u2018]){_GIVEN}{_IS}?{_OPEN})?"
    rf"(?:[abc]\W+)?{_GRADES}(?P<reason>{_REASON})",
    re.IGNORECASE,
)
_LIMITED = re.compile(rf"\W*{_WORD['limits']}", re.IGNORECASE)
# A verdict in capitals may stand at the end of a sentence; "the CORRECT answer" is none.
_CAPITALS = re.compile(
    r"(?<![Tt]he )(?<![Nn]ot )(?<![A-Za-z])(?P<grade>CORRECT|INCORRECT|NOT[ _-]ATTEMPTED)"
    r"(?![A-Za-z])"
)
_BEFORE = re.compile(
    rf"(?:\b{_WORD['label']}\b\W*"
    rf"|(?:\A|[,:(]|(?:{_WORD['hence']}|\b(?:and|(?:conclude|find)\W+that)\b)){_OPEN}{_GIVEN}"
    rf"(?:{_IS}|\W+\w+\W+as\b){_OPEN}"
    rf"|\b{_WORD['grades']}\W+(?:(?:it|(?:this|that|the)(?:\W+\w+)?)\W+(?:(?:as|is|to\W+be)\W+)?)?"
    rf"|(?:{_WORD['hence']}|[:=>\u2192\u21d2{{\[(]){_OPEN})\Z",
    re.IGNORECASE,
)
_DOUBT = re.compile(
    rf"\b{_WORD['doubt']}\b|n['\u2019]t\b|[\"\u201c]\w[^\"\u201d]*\Z"
    r"|[\u4e0d\u975e\u672a\u6ca1\u6c92\u7121][^\uff0c,]{0,6}\Z",
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
    text = unify(after_thoughts(text)).replace("\\_", "_")
    unquoted = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(">"))
    plain = re.sub(r"</?\w+>", "\n", re.sub(r"\b_+|_+\b", "", unquoted))
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    lines += boxes_in("\n".join(lines))[-1:]
    alone = [_ALONE, *([_LETTER] if letters else [])]
    grades = _grades(alone, lines[-1:])
    if not grades and reply.finish_reason != "length":
        grades = [match["grade"].lower() for line in lines for match in _FIELD.finditer(line)]
    if not grades and reply.finish_reason != "length":
        grades = _grades([*alone, _YES_NO, _BEGINS], lines)
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
    names = grade != "CORRECT" and re.match(r"[\s*\"']*:\W*\w", reason)
    return grade.lower() == "correct" and bool(names or _LIMITED.match(reason))


def _ends_sentence(match: re.Match[str]) -> bool:
    """Whether a verdict in capitals is the judge's, without doubt, and not the words of another."""
    sentence = re.split(r"[.!?;](?=\s)|\u3002", match.string[: match.start()])[-1]
    after = match.string[match.end() :]
    if not sentence.strip():  # a sentence of its own, at the end
        return re.search(r"[\w?]", after) is None
    if _LIMITED.match(after) or not re.fullmatch(_REASON, after):
        return False
    return bool(_BEFORE.search(sentence)) and not _DOUBT.search(sentence)

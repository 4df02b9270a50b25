"""A language model as judge of answers, behind OpenAI's ``/v1/chat/completions``.

An answer is data: the judge sees it quoted line by line behind ``> ``, cut at a limit, and without
control forms of chat templates. An answer without a verdict is wrong: as a failed episode it would
be left out of its group's mean.
"""

import asyncio
import hashlib
import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atommem.config import check_least, setting
from atommem.dialects import fill
from atommem.envs.task import Question
from atommem.errors import ConfigError, JudgeError, OutageError
from atommem.files import load_beside
from atommem.grammar import boxes_in
from atommem.servers.chat import ChatClient, ChatReply
from atommem.servers.client import RefusedError, ServerClient
from atommem.text_safety import guard_text
from atommem.thinking import after_thoughts
from atommem.words import fold_case, unify

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
_YES_NO = re.compile(r"[^\w>]*(?:is[_ ])?correct\W*:\W*(?P<grade>yes|no|true|false)\W*", re.I)
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


PRESETS: dict[str, str] = load_beside(__file__, "judge_presets.yaml")
"""Prompts of ours by name."""
_PLACES = ("{question}", "{golds}", "{answer}")
_ATTEMPTS = 3  # requests for a verdict, each with another seed, until one can be read
_ANSWER_CHARACTERS = 2000
_RECENT, _FEWEST = 200, 20
"""Verdicts of which half may be unreadable before a run stops, and the fewest for a rate."""


@dataclass
class JudgeConfig:
    """Which model judges answers, and how it is asked."""

    judge_url: str | None = setting(None, "OpenAI-compatible server of a model to judge answers.")
    judge_model: str | None = setting(None, "Name of the judge's model on its server.")
    judge_prompt: str | None = setting(
        None,
        "gaia, webwalkerqa, simpleqa, browsecomp or mem0 (wordings of ours in the form of these "
        "evaluations), or a file: {question}, {golds} and {answer} stand for quoted texts; it asks "
        "for a last line CORRECT or INCORRECT (or NOT_ATTEMPTED), or for a line 'correct: yes' or "
        "'correct: no'. Unset is the built-in one.",
    )
    judge_max_tokens: int = setting(1024, "Longest reply with its thought; doubled after a cut.")

    def __post_init__(self) -> None:
        if (self.judge_url is None) != (self.judge_model is None):
            raise ConfigError(
                f"judge_url={self.judge_url}, judge_model={self.judge_model}: give both or none."
            )
        check_least(self, judge_max_tokens=1)


def judge_prompt(config: JudgeConfig) -> str:
    """Return the prompt that `config` names; ConfigError if it cannot be read or lacks a place."""
    name = config.judge_prompt or "default"
    if name in PRESETS:
        return PRESETS[name]
    try:
        prompt = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(PRESETS)
        raise ConfigError(
            f"judge_prompt={name}: cannot be read ({error}). Give a file or one of {known}."
        ) from error
    if missing := [place for place in _PLACES if place not in prompt]:
        raise ConfigError(f"judge_prompt={name}: has no {', '.join(missing)}. Add them.")
    return prompt


def judge_settings(config: Any) -> dict[str, Any]:
    """Return what a manifest has in place of addresses and paths: the digest of the prompt."""
    if not isinstance(config, JudgeConfig):
        return {}
    digest = hashlib.sha256(judge_prompt(config).encode()).hexdigest()
    return {"judge_url": None, "judge_prompt": None if config.judge_url is None else digest}


class LLMJudge:
    """Asks a model for verdicts: greedily, and once for each different question and answer.

    It closes its client. `usage` counts answers ``asked`` about, of these ``unreadable``, and
    ``requests``, ``prompt_tokens``, ``completion_tokens``.
    """

    def __init__(self, client: ServerClient, config: JudgeConfig) -> None:
        counts = ("asked", "unreadable", "requests", "prompt_tokens", "completion_tokens")
        self.usage = dict.fromkeys(counts, 0)
        self._config = config
        self._name = f"The judge {config.judge_model!r} at {client.base_url}"
        self._prompt = judge_prompt(config)
        self._letters = "not attempted" in self._prompt.lower().replace("_", " ")
        self._chat = ChatClient(client)
        self._verdicts: dict[tuple[str, tuple[str, ...], str], asyncio.Task[Verdict]] = {}
        self._recent: deque[bool] = deque(maxlen=_RECENT)

    async def __call__(self, question: Question, answer: str | None) -> Verdict:
        """Judge whether `answer` agrees with a gold answer of `question`.

        An answer that is a gold answer but for case and white space is right without asking, and
        where there is nothing to judge it is wrong.

        OutageError: the server is out of reach, or keeps failing. JudgeError: it refuses every
        request (key, model), or too many verdicts are unreadable.
        """
        if not (question.answers and answer and answer.strip()):
            return Verdict(0.0)
        if _folded(answer) in map(_folded, question.answers):
            return Verdict(1.0, "a gold answer")
        asked = (question.text, question.answers, answer)
        task = self._verdicts.get(asked)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            values = {
                "question": quoted(question.text),
                "golds": "\n".join(map(quoted, question.answers)),
                "answer": quoted(answer, _ANSWER_CHARACTERS),
            }
            task = asyncio.create_task(self._judge(fill(self._prompt, values)))
            self._verdicts[asked] = task
        # Several episodes may wait for it: one that is given up must not take it from the others.
        return await asyncio.shield(task)

    async def close(self) -> None:
        await self._chat.client.close()

    async def _judge(self, prompt: str) -> Verdict:
        verdict = await self._ask(prompt)
        self.usage["asked"] += 1
        self.usage["unreadable"] += not verdict.readable
        self._recent.append(not verdict.readable)
        if len(self._recent) >= _FEWEST and 2 * sum(self._recent) > len(self._recent):
            raise JudgeError(
                f"{self._name} gave {sum(self._recent)} unreadable verdicts of the last "
                f"{len(self._recent)}. The last one: {verdict.text[:500]!r}. Give another "
                "judge_model or judge_prompt, or a higher judge_max_tokens for one that thinks."
            )
        return verdict

    async def _ask(self, prompt: str) -> Verdict:
        max_tokens = self._config.judge_max_tokens
        for attempt in range(_ATTEMPTS):
            try:
                # Greedy first; a reply that could not be read would come again.
                reply = await self._chat.ask(
                    self._config.judge_model or "",
                    [{"role": "user", "content": prompt}],
                    max_tokens=max_tokens,
                    temperature=0.7 if attempt else 0.0,
                    seed=attempt,
                )
            except RefusedError as error:
                # A content filter or a limit concerns this answer alone.
                if error.of_input:
                    return Verdict(0.0, f"refused: {error}", readable=False)
                raise JudgeError(
                    f"{self._name} refuses to judge ({error}). Check judge_url, judge_model and "
                    "ATOMMEM_JUDGE_API_KEY."
                ) from error
            self.usage["requests"] += 1
            self.usage["prompt_tokens"] += reply.prompt_tokens or 0
            self.usage["completion_tokens"] += reply.completion_tokens or 0
            if verdict := read_verdict(reply, self._letters):
                return verdict
            if reply.finish_reason == "length":
                max_tokens *= 2  # it was still thinking
        last = f"the last: {reply.finish_reason}: {(reply.text or reply.reasoning)[:1000]}"
        if reply.finish_reason == "error":  # aborted, or a provider behind the server failed
            raise OutageError(f"{self._name} gave no reply; {last}")
        return Verdict(0.0, f"no verdict in {_ATTEMPTS} attempts; {last}", readable=False)


def make_judge(config: JudgeConfig) -> LLMJudge | None:
    """Return the judge that `config` names; None if it names none."""
    if config.judge_url is None:
        return None
    return LLMJudge(ServerClient(config.judge_url, service="judge"), config)


def _folded(text: str) -> str:
    return " ".join(fold_case(text).split())


def quoted(text: str, limit: int | None = None) -> str:
    """Return `text` as a block that it cannot end: each line behind ``> ``, cut at `limit`."""
    # `splitlines` ends a line wherever any reader may.
    lines = [f"> {line}" for line in guard_text(text[:limit]).splitlines() or [""]]
    if left_out := len(text) - len(text[:limit]):
        lines.append(f"[cut here: {left_out:,} more characters]")
    return "\n".join(lines)

"""A language model as judge of answers, behind OpenAI's ``/v1/chat/completions``.

An answer is data: the judge sees it quoted line by line behind ``> ``, cut at a limit, and without
control forms of chat templates. An answer without a verdict is wrong: as a failed episode it would
be left out of its group's mean.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from dataclasses import dataclass
from functools import partial

from atommem.dialects import fill
from atommem.envs.scoring.judge_config import JudgeConfig, judge_prompt
from atommem.envs.task import Question
from atommem.errors import JudgeError, OutageError
from atommem.servers.chat import ChatClient, ChatReply
from atommem.servers.client import RefusedError, ServerClient
from atommem.text_safety import guard_text

RIGHT, WRONG, NOT_ATTEMPTED = "correct", "incorrect", "not_attempted"
_ATTEMPTS = 3
"""Requests for a verdict, each with another seed, until one can be read."""
_CACHED = 65_536
_ANSWER_CHARACTERS = 2000
_RECENT, _FEWEST = 200, 20
"""Verdicts over which the rate of unreadable ones is taken, and the fewest for a rate."""
_GRADE = re.compile(
    r"[^\w>]*(?:(?:verdict|grade|judge?ment)\W+)?(?:[abc]\W+)?"
    r"(correct|incorrect|not[ _]attempted)\W*",
    re.IGNORECASE,
)
_LETTER = re.compile(r"[^\w>]*(?:grade\W+)?([abc])\W*", re.IGNORECASE)
_YES_NO = re.compile(r"[^\w>]*correct\W*:\W*(yes|no)\W*", re.IGNORECASE)
_WORDS = {"a": RIGHT, "b": WRONG, "c": NOT_ATTEMPTED, "yes": RIGHT, "no": WRONG}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's verdict on one answer.

    `score` is 1.0 for a right answer, else 0.0, also without a verdict; `text` is the end of the
    reply, or why none is `readable`; `attempted` is None if the judge is not asked that.
    """

    score: float
    text: str = ""
    readable: bool = True
    attempted: bool | None = None


def read_verdict(reply: ChatReply, three_way: bool = False) -> Verdict | None:
    """Return the verdict in the last line of a reply that is not blank, or None.

    It is CORRECT, INCORRECT or NOT_ATTEMPTED, a letter for one of these if the judge was offered
    three, or ``correct: yes`` or ``correct: no``, also in the last line but one. Quoted lines
    (``> CORRECT``) and thoughts (up to ``</think>``) do not count. Servers that separate thoughts
    may put a short reply there as a whole: then its last line counts.
    """
    text = reply.text
    if not text.strip() and reply.finish_reason == "stop":
        text = reply.reasoning
    reply_text = text.rpartition("</think>")[2]
    lines = [line.strip() for line in reply_text.splitlines() if line.strip()]
    if not lines or "<think>" in reply_text:
        return None
    if match := _GRADE.fullmatch(lines[-1]):
        grade = match[1].lower().replace(" ", "_")
        if grade == NOT_ATTEMPTED and not three_way:
            return None
    elif three_way and (match := _LETTER.fullmatch(lines[-1])):
        grade = _WORDS[match[1].lower()]
    else:
        found = [match[1].lower() for line in lines[-2:] if (match := _YES_NO.fullmatch(line))]
        if len(found) != 1:
            return None
        grade = _WORDS[found[0]]
    attempted = grade != NOT_ATTEMPTED if three_way else None
    return Verdict(float(grade == RIGHT), reply_text.strip()[-1000:], attempted=attempted)


class LLMJudge:
    """Asks a model for verdicts: greedily, and once for each different question and answer.

    The judge closes its client.

    Attributes:
        usage: Counts: answers ``asked`` about, of these ``unreadable``, answers that were ``exact``
            or ``known`` from before, and ``requests``, ``prompt_tokens``, ``completion_tokens``.
        three_way: Whether the prompt offers a third grade, NOT_ATTEMPTED.
    """

    def __init__(self, client: ServerClient, config: JudgeConfig) -> None:
        names = [
            "asked",
            "unreadable",
            "exact",
            "known",
            "requests",
            "prompt_tokens",
            "completion_tokens",
        ]
        self.usage = dict.fromkeys(names, 0)
        self._config = config
        self._model = config.judge_model or ""
        self._prompt = judge_prompt(config)
        self.three_way = bool(re.search("not[ _]attempted", self._prompt, re.IGNORECASE))
        self._client = client
        self._chat = ChatClient(client)
        self._verdicts: dict[str, asyncio.Task[Verdict]] = {}
        self._recent: deque[bool] = deque(maxlen=_RECENT)

    async def __call__(self, question: Question, answer: str) -> Verdict:
        """Judge whether `answer` agrees with a gold answer of `question`.

        Raises:
            OutageError: The server is out of reach, or keeps failing.
            JudgeError: The server refuses every request (key, model), or too many verdicts are
                unreadable.
        """
        if self._config.judge_exact and _folded(answer) in map(_folded, question.answers):
            self.usage["exact"] += 1
            return Verdict(1.0, "a gold answer", attempted=True if self.three_way else None)
        values = {
            "question": quoted(question.text),
            "golds": "\n".join(map(quoted, question.answers)),
            "answer": quoted(answer, _ANSWER_CHARACTERS),
        }
        prompt = fill(self._prompt, values)
        task = self._verdicts.get(prompt)
        loop = asyncio.get_running_loop()
        if task is None or not (task.done() or task.get_loop() is loop):
            task = self._verdicts[prompt] = asyncio.create_task(self._judge(prompt))
            task.add_done_callback(partial(self._forget_failed, prompt))
            if len(self._verdicts) > _CACHED:
                del self._verdicts[next(iter(self._verdicts))]
        elif task.done():
            self.usage["known"] += 1
        # Several episodes may wait for it: one that is given up must not take it from the others.
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        await self._client.close()

    def _forget_failed(self, prompt: str, task: asyncio.Task[Verdict]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._verdicts.pop(prompt, None)

    async def _judge(self, prompt: str) -> Verdict:
        verdict = await self._ask(prompt)
        self.usage["asked"] += 1
        self.usage["unreadable"] += not verdict.readable
        self._recent.append(not verdict.readable)
        count, most = sum(self._recent), self._config.judge_max_unreadable
        if len(self._recent) >= _FEWEST and count > most * len(self._recent):
            raise JudgeError(
                f"{count} of the last {len(self._recent)} verdicts of the judge {self._model!r} at "
                f"{self._client.base_url} are unreadable, more than judge_max_unreadable={most:g}. "
                f"The last one: {verdict.text[:500]!r}. Give another judge_model or judge_prompt, "
                "or a higher judge_max_tokens for one that thinks."
            )
        return verdict

    async def _ask(self, prompt: str) -> Verdict:
        """Return a verdict, readable or not."""
        max_tokens, last = self._config.judge_max_tokens, ""
        for attempt in range(_ATTEMPTS):
            try:
                # Greedy first; a reply that could not be read would come again.
                reply = await self._chat.ask(
                    self._model,
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
                    f"The judge {self._model!r} at {self._client.base_url} refuses to judge "
                    f"({error}). Check judge_url, judge_model and ATOMMEM_JUDGE_API_KEY."
                ) from error
            self.usage["requests"] += 1
            self.usage["prompt_tokens"] += reply.prompt_tokens or 0
            self.usage["completion_tokens"] += reply.completion_tokens or 0
            if reply.finish_reason == "error" and "'error':" in reply.text:
                # The judge's provider failed: the status says nothing about the answer.
                if attempt + 1 == _ATTEMPTS:
                    raise OutageError(
                        f"the judge at {self._client.base_url} gave no reply: {reply.text[:200]!r}."
                    )
                await asyncio.sleep(0.5 * 2**attempt)
                continue
            verdict = read_verdict(reply, self.three_way)
            if verdict is not None:
                return verdict
            last = f"{reply.finish_reason}: {reply.text or reply.reasoning}"
            if reply.finish_reason == "length":
                max_tokens *= 2  # it was still thinking
        text = f"no verdict in {_ATTEMPTS} attempts; the last: {last[:1000]}"
        return Verdict(0.0, text, readable=False)


def make_judge(config: JudgeConfig) -> LLMJudge | None:
    """Return the judge that `config` names; None if it names none."""
    if config.judge_url is None:
        return None
    client = ServerClient(
        config.judge_url, service="judge", timeout=600.0, retries=5, max_in_flight=64
    )
    return LLMJudge(client, config)


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()


def quoted(text: str, limit: int | None = None) -> str:
    """Return `text` as a block that it cannot end: each line behind ``> ``, cut at `limit`."""
    left_out = 0 if limit is None else max(0, len(text) - limit)
    shown = guard_text(text[: len(text) - left_out])
    # `splitlines` ends a line wherever any reader may.
    lines = "\n".join(f"> {line}" for line in shown.splitlines() or [""])
    return f"{lines}\n[cut here: {left_out:,} more characters]" if left_out else lines

"""A language model as judge of answers, behind OpenAI's ``/v1/chat/completions``.

An answer is data: the judge sees it quoted line by line behind ``> ``, cut at a limit, and without
control forms of chat templates. An answer without a verdict is wrong: as a failed episode it would
be left out of its group's mean.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict, deque
from dataclasses import dataclass
from functools import partial

from atommem.dialects import fill
from atommem.envs.scoring.judge_config import JudgeConfig, judge_prompt
from atommem.envs.task import Question
from atommem.errors import JudgeError, OutageError
from atommem.servers.chat import ChatClient, ChatReply
from atommem.servers.client import RefusedError, ServerClient
from atommem.text_safety import guard_text

_ATTEMPTS = 3
"""Requests for a verdict, each with another seed, until one can be read."""
_CACHED = 65_536
_ENOUGH = 20
"""Fewest verdicts for a rate of unreadable ones."""
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
    """A judge's verdict on one answer.

    Attributes:
        score: 1.0 for a right answer, else 0.0, also without a verdict.
        text: The end of the reply, or why there is no verdict.
        readable: Whether there is a verdict.
        attempted: Whether the answer tries to answer; None if the judge is not asked that.
    """

    score: float
    text: str = ""
    readable: bool = True
    attempted: bool | None = None


def is_three_way(prompt: str) -> bool:
    """Whether a prompt offers the grade NOT_ATTEMPTED."""
    return re.search("not[ _]attempted", prompt, re.IGNORECASE) is not None


def read_verdict(reply: ChatReply, three_way: bool = False) -> Verdict | None:
    """Return the verdict in the last line of a reply that is not blank, or None.

    It is CORRECT, INCORRECT or NOT_ATTEMPTED, a letter for one of these if the judge was offered three
    (`is_three_way`), or ``correct: yes`` or ``correct: no``, also in the last line but one. Quoted
    lines (``> CORRECT``) and thoughts (up to ``</think>``) do not count. Servers that separate
    thoughts may put a short reply there as a whole: then its last line counts.
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


class LLMJudge:
    """Asks a model for verdicts: greedily, and once for each different question and answer.

    Args:
        client: Of the server. The judge closes it.
        config: Model, prompt and limits.
        temperature, seed: Of the first attempt; greedy, unless one asks how sure a judge is of itself.

    Raises:
        ConfigError: The prompt's file cannot be used.

    Attributes:
        usage: What it did in this process: answers ``asked`` about, those of them ``unreadable``, answers that were
            ``exact`` or ``known`` from before and cost nothing, and what was sent: ``requests``, ``prompt_tokens``,
            ``completion_tokens`` (as the server counts them).
        three_way: Whether it may say that an answer is no attempt.
    """

    def __init__(
        self, client: ServerClient, config: JudgeConfig, *, temperature: float = 0.0, seed: int = 0
    ) -> None:
        self.usage = dict.fromkeys(
            (
                "asked",
                "unreadable",
                "exact",
                "known",
                "requests",
                "prompt_tokens",
                "completion_tokens",
            ),
            0,
        )
        self._config = config
        self._model = config.judge_model or ""
        self._prompt = judge_prompt(config)
        self.three_way = is_three_way(self._prompt)
        self._temperature, self._seed = temperature, seed
        self._client = client
        self._chat = ChatClient(client)
        self._cache: OrderedDict[bytes, Verdict] = OrderedDict()
        self._judging: dict[tuple[asyncio.AbstractEventLoop, bytes], asyncio.Task[Verdict]] = {}
        self._recent: deque[bool] = deque(maxlen=config.judge_window)

    async def __call__(self, question: Question, answer: str) -> Verdict:
        """Whether `answer` says the same as a gold answer of `question`.

        Raises:
            OutageError: The server is out of reach, or keeps failing.
            JudgeError: The server refuses every request (key, model), or too many verdicts could not be read.
        """
        if self._config.judge_exact and _folded(answer) in map(_folded, question.answers):
            self.usage["exact"] += 1
            return Verdict(
                1.0, "a gold answer, word for word", attempted=True if self.three_way else None
            )
        golds = "\n".join(quoted(gold) for gold in question.answers)
        shown = quoted(answer, self._config.judge_answer_characters)
        prompt = fill(
            self._prompt, {"question": quoted(question.text), "golds": golds, "answer": shown}
        )
        key = hashlib.blake2b(prompt.encode(), digest_size=16).digest()
        if key in self._cache:
            self.usage["known"] += 1
            self._cache.move_to_end(key)
            return self._cache[key]
        place = (asyncio.get_running_loop(), key)
        if place not in self._judging:
            task = self._judging[place] = asyncio.create_task(self._judge(prompt, key))
            task.add_done_callback(partial(self._judged, place))
        # Several episodes may wait for it: one that is given up must not take it from the others.
        return await asyncio.shield(self._judging[place])

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        await self._client.close()

    def _judged(
        self, place: tuple[asyncio.AbstractEventLoop, bytes], task: asyncio.Task[Verdict]
    ) -> None:
        del self._judging[place]
        if not task.cancelled():
            task.exception()  # seen, even if nobody waits any more

    async def _judge(self, prompt: str, key: bytes) -> Verdict:
        verdict = await self._ask(prompt)
        self._cache[key] = verdict
        if len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        self._count(verdict)
        return verdict

    async def _ask(self, prompt: str) -> Verdict:
        """A verdict, readable or not."""
        messages = [{"role": "user", "content": prompt}]
        max_tokens, said = self._config.judge_max_tokens, ""
        for attempt in range(_ATTEMPTS):
            try:
                # Greedy first; a reply that could not be read would come again.
                reply = await self._chat.ask(
                    self._model,
                    messages,
                    max_tokens=max_tokens,
                    temperature=0.7 if attempt else self._temperature,
                    seed=self._seed + attempt,
                )
            except RefusedError as error:
                if error.of_input and not error.of_account(
                    prompt
                ):  # a content filter, a limit: of this answer
                    return Verdict(0.0, f"refused: {error}", readable=False)
                raise JudgeError(
                    f"The judge {self._model!r} at {self._client.base_url} refuses to judge ({error}): check "
                    "judge_url, judge_model and the key (ATOMMEM_JUDGE_API_KEY)."
                ) from error
            self.usage["requests"] += 1
            self.usage["prompt_tokens"] += reply.prompt_tokens or 0
            self.usage["completion_tokens"] += reply.completion_tokens or 0
            if reply.finish_reason == "error" and "'error':" in reply.text:
                # Its provider failed, whatever the status said: that is no verdict on any answer.
                if attempt + 1 == _ATTEMPTS:
                    raise OutageError(
                        f"the judge at {self._client.base_url} gave no reply: {reply.text[:200]!r}."
                    )
                await asyncio.sleep(0.5 * 2**attempt)
                continue
            verdict = read_verdict(reply, self.three_way)
            if verdict is not None:
                return verdict
            said = f"{reply.finish_reason}: {reply.text or reply.reasoning}"
            if reply.finish_reason == "length":
                max_tokens *= 2  # it was still thinking
        return Verdict(
            0.0, f"no verdict in {_ATTEMPTS} attempts; the last: {said[:1000]}", readable=False
        )

    def _count(self, verdict: Verdict) -> None:
        """Note whether it could be read.

        Raises:
            JudgeError: Too many could not.
        """
        self.usage["asked"] += 1
        self.usage["unreadable"] += not verdict.readable
        self._recent.append(not verdict.readable)
        rate, most = sum(self._recent) / len(self._recent), self._config.judge_max_unreadable
        if len(self._recent) >= min(_ENOUGH, self._config.judge_window) and rate > most:
            raise JudgeError(
                f"{sum(self._recent)} of the last {len(self._recent)} verdicts of the judge {self._model!r} at "
                f"{self._client.base_url} could not be read, more than judge_max_unreadable {most:g}: the answers to "
                f"them count as wrong. The last one: {verdict.text[:500]!r}. Give another judge_model or judge_prompt, "
                "or a higher judge_max_tokens for one that thinks."
            )


def make_judge(config: JudgeConfig, temperature: float = 0.0, seed: int = 0) -> LLMJudge | None:
    """The judge that `config` names; None if it names none.

    Raises:
        ConfigError: A setting cannot be used.
    """
    if config.judge_url is None:
        return None
    client = ServerClient(
        config.judge_url, service="judge", timeout=600.0, retries=5, max_in_flight=64
    )
    return LLMJudge(client, config, temperature=temperature, seed=seed)


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()


def quoted(text: str, limit: int | None = None) -> str:
    """`text` as a block that it cannot end: every line behind ``> ``; cut after `limit` characters, which is said."""
    left_out = 0 if limit is None else max(0, len(text) - limit)
    shown = guard_text(text[: len(text) - left_out])
    # All that ends a line anywhere: a line of its own that only looks like one of ours is still behind the mark.
    lines = "\n".join(f"> {line}" for line in shown.splitlines() or [""])
    return f"{lines}\n[cut here: {left_out:,} more characters]" if left_out else lines

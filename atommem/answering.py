"""Asking a session a question outside of evaluation: an answer without its box counts, marked."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from atommem.actions import ANSWER, Action, Problem, ProblemReason
from atommem.episode import Observation, Step
from atommem.grammar import boxes_in
from atommem.latex import plain_text
from atommem.memory.log import POLICY, Entry
from atommem.rollout import Session
from atommem.thinking import thoughts_end

_TAG = re.compile(r"</?\w+>")
_OPEN_BOX = re.compile(r"\\boxed\s*\{")
_UNSHOWN = "no entry was shown: this is not from the memory"
_LONGEST = 300  # characters of a completion in an explanation


@dataclass(frozen=True, repr=False)
class Answer:
    """The answer to a question (None if the policy gave none), and its evidence.

    `note` is empty for an answer in its box after something of the memory was shown. Otherwise it
    tells where the text comes from, or why there is none, with the last completion and what to try.
    """

    question: str
    text: str | None
    entries: tuple[Entry, ...]  # shown at the step that answered, best match first
    scratchpad: str  # as shown there
    steps: tuple[Step, ...]  # of answering
    note: str = ""
    cut: tuple[int, ...] = ()  # ids of those entries whose text a limit cut (`entry_tokens`)

    def __str__(self) -> str:
        return self.text or ""

    def __repr__(self) -> str:
        note = f", note={self.note!r}" if self.note else ""
        return f"Answer({self.text!r}, entries shown: {len(self.entries)}{note})"


async def answer_steps(
    session: Session, question: str, take_step: Callable[[Observation], Awaitable[Step]]
) -> AsyncIterator[tuple[Step, Answer | None]]:
    """Ask a session a question; yield each step, and with the last one the answer.

    An answer without its box ends the question where evaluation would go on and score it as none.
    """
    factory, memory = session.agent.factory, session.memory
    task = factory.asking(question)
    await factory.prepare(task)
    environment = factory()
    observation: Observation | None = await environment.reset(task)
    tag = session.agent.dialect.tags.get(ANSWER, ANSWER)
    steps: list[Step] = []
    while observation is not None:
        shown = tuple(memory.contents.find(key) for key, _ in memory.contents.shown)
        step = await take_step(observation)
        steps.append(step)
        is_plain = observation.phase == "answering" and not step.actions
        observation = (await environment.step(step)).observation
        answer = None
        text = unboxed_answer(step, tag) if is_plain or observation is None else None
        if text is not None or observation is None:
            boxed = next(iter((await environment.score()).answers), None)
            note = "" if boxed is not None else _note(session, step, text)
            if (boxed or text) and not shown and not step.view.scratchpad:
                note = f"{note}; {_UNSHOWN}".removeprefix("; ")
            log = {(item.entry_id, item.after) for item in memory.log if item.reason == "cut"}
            cut = tuple(entry.id for entry in shown if (entry.id, entry.text) in log)
            found = (boxed or text, shown, step.view.scratchpad, tuple(steps), note, cut)
            answer, observation = Answer(question, *found), None
        yield step, answer


def unboxed_answer(step: Step, tag: str) -> str | None:
    """Return the answer in a completion that does not have its form.

    That is the body of an answer (in its `tag`) without a box or an end, or else the text outside
    of thoughts and other elements; of either, a box in it.
    """
    outside, at = "", (begin := thoughts_end(step.text))
    elements: list[Action | Problem] = [*step.actions, *step.problems]
    for element in sorted(elements, key=lambda item: item.start):
        if isinstance(element, Problem) and (
            element.reason is ProblemReason.NO_BOX
            or (element.reason is ProblemReason.UNCLOSED and element.tag == tag)
        ):
            outside = _TAG.sub(" ", step.text[max(element.start, begin) : element.end])
            break
        outside += step.text[at : element.start] + " "
        at = max(at, element.end)
    else:
        outside += step.text[at:]
    if boxes := [box for box in boxes_in(outside) if box]:
        return boxes[-1]
    whole, *unclosed = _OPEN_BOX.split(outside)
    if unclosed := [inside for inside in unclosed if inside.strip()]:
        whole = plain_text(unclosed[-1])
        whole = whole if "[" in whole else whole.rstrip("] ")  # which closed the box
    return " ".join(whole.split()) or None


def _note(session: Session, last: Step, text: str | None) -> str:
    cut = last.finish_reason == "length"
    ended = "cut at max_completion_length" if cut else last.finish_reason
    ended = f"{last.completion_tokens} tokens, {ended}"
    acted = len({item.step for item in session.memory.log if item.actor == POLICY})
    counts = f"{acted} of {session.steps} steps had an action"
    advice = "a policy that was trained for this, or a larger instruct model"
    if text is not None:
        found = f"the policy wrote this without a box ({ended}); {counts}"
        return found if acted else f"{found}, so nothing was remembered. Try {advice}."
    wrote = " ".join(last.text.split())
    wrote = f"{wrote[:_LONGEST]!r}{'...' if len(wrote) > _LONGEST else ''}" if wrote else "nothing"
    reasons = {problem.reason for problem in last.problems}
    if cut or ProblemReason.UNCLOSED_THINKING in reasons:
        advice = "a larger max_completion_length"
    elif acted:
        advice = "a larger max_reads, or temperature 0"
    return f"no answer: the policy wrote {wrote} ({ended}); {counts}. Try {advice}."

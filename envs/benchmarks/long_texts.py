"""Long texts with questions: LoCoMo, LongMemEval, BEAM, OOLONG, RULER and MemAgent's files."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from random import Random
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from atommem.envs.benchmarks.formats import decoded
from atommem.envs.benchmarks.rows import Row, Text, listed, without_nulls
from atommem.envs.scoring import metrics
from atommem.envs.task import Document, Question, Task

LONGMEMEVAL, BEAM, MEMAGENT = "longmemeval", "beam", "memagent"
_Texts = Annotated[list[Text], Meta(min_length=1)]
QUESTIONS = 10  # questions of a task: a conversation has up to some two hundred
_GOLDS = ("answer", "ideal_response", "ideal_answer", "ideal_summary", "expected_compliance")
"""Names of the gold answer in BEAM, by ability."""
_MARK = "->->"
"""Ends a user's turn in BEAM: the point of the plan that the turn was made from follows."""
NOT_MENTIONED = "Not mentioned in the conversation"  # the right option of an adversarial question
_SESSION = re.compile(r"session_(\d+)")
# Also in the official file: several in one string, and "D:11:26".
_TURN = re.compile(r"D:?(\d+):(\d+)")


def grouped_tasks(
    source: str,
    sample: str,
    asked: Sequence[tuple[Question, Collection[int]]],
    documents: Sequence[Document],
    size: int = QUESTIONS,
) -> Iterator[Task]:
    """Yield tasks of `size` questions that each read the whole text: ``SOURCE-SAMPLE-NUMBER``.

    A question comes with the places (from 0) of its evidence; scores are clustered by `sample`.
    """
    for number, start in enumerate(range(0, len(asked), size)):
        group = asked[start : start + size]
        gold = {place for _, places in group for place in places}
        questions = tuple(question.with_documents(places) for question, places in group)
        marked = tuple(replace(one, gold=place in gold) for place, one in enumerate(documents))
        name = f"{source}-{sample}-{number:03d}"
        yield Task(name, questions, marked, source=source, metadata={"sample_id": sample})


class _Said(Struct):
    dia_id: Text
    speaker: Text
    text: str | None = None
    blip_caption: str | None = None


class _LocomoQuestion(Struct):
    question: Text
    category: Literal[1, 2, 3, 4, 5]
    answer: Text | None = None
    adversarial_answer: Text | None = None
    evidence: list[str] = []


def parse_locomo(row: Row, questions: int = QUESTIONS, official: bool = False) -> Iterator[Task]:
    """Yield the tasks of one conversation of LoCoMo (Maharana et al. 2024, arXiv 2402.17753).

    Every turn becomes a document whose title is the date of its session; those that a question's
    evidence names are gold. By default, every question hints that it may have no answer. The
    authors' ``evaluate_gpts.py`` asks temporal questions for a date and lets adversarial ones
    choose between two options in random order, one question at a time: `official`, in our words.
    """
    sample = row.text("sample_id")
    turns = _dialogue(row)
    places = {name: place for place, name in enumerate(turns)}
    asked = []
    for number, item in enumerate(row.convert("qa", row.get("qa"), list[_LocomoQuestion])):
        question = _locomo_question(row, item, f"{sample}-{number:03d}", official)
        named = (name for text in item.evidence for name in _turn_ids(text))
        # The official file names some turns that do not exist.
        asked.append((question, [places[name] for name in named if name in places]))
    yield from grouped_tasks(metrics.LOCOMO_SOURCE, sample, asked, [*turns.values()], questions)


def _dialogue(row: Row) -> Mapping[str, Document]:
    """Return the turns by their ids (``D1:3``), in the order of the dialogue."""
    conversation = row.convert("conversation", row.get("conversation"), dict[str, Any])
    turns: dict[str, Document] = {}
    sessions = filter(_SESSION.fullmatch, conversation)
    for name in sorted(sessions, key=lambda name: int(name.rpartition("_")[2])):
        dated = f"{name}_date_time"
        date = row.convert(f"conversation.{dated}", conversation.get(dated), Text)
        for turn in row.convert(f"conversation.{name}", conversation[name], list[_Said]):
            text = turn.text or ""
            if turn.blip_caption:
                text = f"{text} [shares an image: {turn.blip_caption}]".strip()
            identifier = next(iter(_turn_ids(turn.dia_id)), turn.dia_id)
            turns[identifier] = Document(date, f"{turn.speaker}: {text}")
    return turns


def _locomo_question(row: Row, item: _LocomoQuestion, identifier: str, official: bool) -> Question:
    category = metrics.CATEGORIES[item.category]
    metadata: dict[str, Any] = {"category": category}
    text, adversarial = item.question.strip(), category == "adversarial"
    found = (item.adversarial_answer if adversarial else item.answer) or ""
    if not found and (official or not adversarial):
        raise row.error("qa", f"has no {'adversarial_' * adversarial}answer to {identifier}")
    answer = metrics.ABSTENTION if adversarial else found
    if category == "open_domain":
        answer = answer.split(";")[0].strip()
    if not official:
        text += metrics.hint("conversation")
    elif category == "temporal":
        text += " (Tell the approximate date, by the date of the conversation.)"
    elif adversarial:
        both = [NOT_MENTIONED, found]
        Random(f"42:{identifier}").shuffle(both)
        metadata["options"] = dict(zip("ab", both, strict=True))
        text += " Choose the right answer: (a) {a} (b) {b}".format(**metadata["options"])
    return Question(text, (answer,), id=identifier, metadata=metadata)


def _turn_ids(text: str) -> list[str]:
    return [f"D{int(session)}:{int(turn)}" for session, turn in _TURN.findall(text)]


class _Turn(Struct):
    role: Text
    content: str
    has_answer: bool | None = None
    id: int = -1
    time_anchor: str | None = None


class _LongMemEvalRow(Struct):
    question_id: Text
    question_type: Text
    question: Text
    answer: Text
    question_date: Text
    haystack_session_ids: list[str]
    haystack_dates: list[str]
    haystack_sessions: list[list[_Turn]]
    answer_session_ids: list[str]


def parse_longmemeval(row: Row) -> Iterator[Task]:
    """Yield the task of one question of LongMemEval (Wu et al. 2024, arXiv 2410.10813).

    Turns stand in the order of their sessions' dates. Gold are those with `has_answer`, or all of
    `answer_session_ids` where none has it. An id that ends in ``_abs`` has no answer in the chats.
    The official score is a judge's.
    """
    given = row.parse(_LongMemEvalRow)
    columns = (given.haystack_dates, given.haystack_session_ids, given.haystack_sessions)
    if len({len(column) for column in columns}) > 1:
        raise row.error("haystack_dates", "or ..._ids have another length than haystack_sessions")
    sessions = sorted(zip(*columns, strict=True), key=itemgetter(0))
    told = [(date, name, turn) for date, name, turns in sessions for turn in turns]
    documents = [Document(date, f"{turn.role}: {turn.content}") for date, _, turn in told]
    marked = [place for place, (*_, turn) in enumerate(told) if turn.has_answer]
    wanted = given.answer_session_ids
    in_sessions = [place for place, (_, name, _) in enumerate(told) if name in wanted]
    text = f"{given.question.strip()} (Asked on {given.question_date}.)"
    kind = "abstention" if given.question_id.endswith("_abs") else given.question_type
    question = _question(text, "history", given.answer, given.question_id, kind)
    asked = [(question, marked or in_sessions)]
    yield from grouped_tasks(LONGMEMEVAL, given.question_id, asked, documents)


def _question(text: str, what: str, gold: str, name: str, kind: str, **details: Any) -> Question:
    """Return a question that hints that `what` may not tell, as those of kind abstention do not."""
    abstention = kind == "abstention"
    golds = (metrics.ABSTENTION, gold) if abstention else (gold,)
    metadata = {"type": kind, **details, "abstention": abstention}
    return Question(f"{text}{metrics.hint(what)}", golds, name, metadata)


class _Probe(Struct):
    question: Text
    answer: Text | None = None
    ideal_response: Text | None = None
    ideal_answer: Text | None = None
    ideal_summary: Text | None = None
    expected_compliance: Text | None = None
    difficulty: Any = None
    rubric: list[str] = []
    source_chat_ids: Any = None


def parse_beam(row: Row) -> Iterator[Task]:
    """Yield the tasks of one conversation of BEAM (Tavakoli et al. 2025).

    `chat` nests turns in batches and, at 10M tokens, in plans, whose ids begin anew while
    `source_chat_ids` count on. A turn's `time_anchor` dates all turns up to the next one.
    The official score is a judge's over the points of `rubric`, kept with the question.
    """
    sample = row.text("conversation_id")
    documents: list[Document] = []
    places: dict[int, int] = {}
    for part in _parts(row.convert("chat", row.get("chat"), list[Any])):
        before, last, date = max(places, default=-1) + 1, -1, ""
        for turn in row.convert("chat", list(_turns(part)), list[_Turn]):
            if turn.id <= last:
                raise row.error("chat", f"has a turn of id {turn.id}, expected more than {last}")
            if last < 0 and turn.id >= before:
                before = 0  # ids that count on by themselves
            last = turn.id
            date = turn.time_anchor or date
            places[before + turn.id] = len(documents)
            text = turn.content
            if turn.role == "user" and _MARK in text:
                text = text.rpartition(_MARK)[0].rstrip()
            documents.append(Document(date, f"{turn.role}: {text}"))
    yield from grouped_tasks(BEAM, sample, list(_probes(row, sample, places)), documents)


def _parts(chat: list[Any]) -> list[Any]:
    """Return the plans (10M: objects that each hold one, ``plan-1``, ...) or the chat as one."""
    items = [item for item in map(decoded, chat) if isinstance(item, dict)]
    return [item[name] for item in items for name in item if name.startswith("plan-")] or [chat]


def _turns(value: Any) -> Iterator[Any]:
    """Yield the turns in nested lists and batches (``{"turns": [...]}``)."""
    value = without_nulls(decoded(value))
    if isinstance(value, dict) and "turns" in value:
        yield from _turns(value["turns"])
    elif isinstance(value, list):
        for item in value:
            yield from _turns(item)
    else:
        yield value


def _probes(row: Row, sample: str, places: dict[int, int]) -> Iterator[tuple[Question, list[int]]]:
    asked = row.get("probing_questions")
    abilities = row.convert("probing_questions", asked, dict[str, list[_Probe]])
    for ability, items in abilities.items():
        for number, item in enumerate(items):
            gold = next(filter(None, (getattr(item, name) for name in _GOLDS)), None)
            if gold is None:
                raise row.error("probing_questions", f"of {ability} lack one of {_GOLDS}")
            level = {"level": str(item.difficulty)} if item.difficulty else {}
            name = f"{sample}-{ability}-{number}"
            question = _question(item.question.strip(), "chat", gold, name, ability, **level)
            question.metadata["rubric"] = item.rubric
            yield question, [places[at] for at in _numbers(item.source_chat_ids) if at in places]


def _numbers(value: Any) -> Iterator[int]:
    value = decoded(value)
    if isinstance(value, int):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(item)


class _Message(Struct):
    content: Any
    role: str = "user"


class _RewardModel(Struct):
    ground_truth: Any


def parse_memagent(row: Row) -> Iterator[Task]:
    """Yield the task of a row of MemAgent's training parquet or ``eval_N.json``: ``SOURCE-ROW``.

    A training row has `prompt` (messages), `reward_model` (`ground_truth`) and `data_source`; an
    evaluation row has `input` and `answers`. Of several questions, both question and ground truth
    are lists of one length; of one, the ground truth lists accepted answers.
    """
    if "reward_model" in row.values:
        source = row.optional_text("data_source") or MEMAGENT
        name, field, asked = "prompt", "reward_model", listed(row.get("prompt"))
        if asked and isinstance(asked[0], dict):
            messages = row.convert(name, asked, list[_Message])
            asked = next((listed(item.content) for item in messages if item.role == "user"), [])
        truth = row.convert(field, row.get(field), _RewardModel).ground_truth
    else:
        source, name, field = MEMAGENT, "input", "answers"
        asked, truth = listed(row.get(name)), row.get(field)
    texts = row.convert(name, asked, _Texts)
    task_id = f"{source}-{row.number - 1:05d}"
    answers = _answers(row, field, truth, len(texts))
    questions = tuple(
        Question(text.strip(), found, id=f"{task_id}-{number}")
        for number, (text, found) in enumerate(zip(texts, answers, strict=True))
    )
    yield Task(task_id, questions, context=row.text("context"), source=source)


def parse_ruler(row: Row) -> Iterator[Task]:
    """Yield the task of a row of RULER's scripts: `input` ends with a line that asks.

    All `outputs` are asked for, but of RULER's questions over documents one is enough.
    """
    text = row.text("input").strip()
    context, _, asked = text.rpartition("\n" if "\n" in text else ". ")
    answers = _answers(row, "outputs", row.get("outputs"), 1)[0]
    task_id = f"ruler-{row.number - 1:05d}"
    all_of = {} if "based on the given documents" in text else {"all_of": True}
    question = Question(asked.strip(), answers, task_id, all_of)
    yield Task(task_id, (question,), context=context, source="ruler")


def parse_oolong(row: Row) -> Iterator[Task]:
    """Yield the task of a row of OOLONG (Bertsch et al. 2025, arXiv 2511.02817), synthetic or real.

    Scores are clustered by the text, which several questions share.
    """
    kind, gold = row.optional_text("answer_type"), str(row.get("answer"))
    if kind and (date := re.fullmatch(r"\[datetime\.date\((\d+), (\d+), (\d+)\)\]", gold)):
        gold = "-".join(f"{int(part):02d}" for part in date.groups())
    elif kind:
        items = decoded(gold)
        if not isinstance(items, list) or not items:
            raise row.error("answer", "is not a list of Python's")
        gold = str(items[0])
    source = metrics.OOLONG_SOURCE if kind else metrics.OOLONG_REAL_SOURCE
    task_id = f"{source}-{row.get('id')}"
    group = row.optional_text("task_group") or row.optional_text("question_type")
    details = {"type": group, "answer_type": kind}
    question = Question(row.text("question").strip(), (gold,), task_id, details)
    sample = {"sample_id": str(row.get("context_window_id"))}
    context = row.text("context_window_text")
    yield Task(task_id, (question,), context=context, source=source, metadata=sample)


def _answers(row: Row, name: str, truth: Any, count: int) -> list[tuple[str, ...]]:
    groups = listed(truth)
    if count == 1 and not (len(groups) == 1 and isinstance(decoded(groups[0]), list)):
        groups = [groups]
    if len(groups) != count:
        raise row.error(name, f"has answers for {len(groups)} questions, but the row asks {count}")
    found: list[list[str]] = row.convert(name, [*map(listed, groups)], list[list[str]])
    answers = [tuple(dict.fromkeys(filter(str.strip, group))) for group in found]
    if () in answers:
        raise row.error(name, "is empty")
    return answers

"""The long-document environment: chunks, questions in turn, when questions are shown, recall."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.envs.longdoc.evidence import MODES, drawn_mode, fact_recall, facts_of, needed_chunks
from atommem.envs.task import Document, Question, Task, chunk_task, chunk_text, joined_text
from atommem.episode import Episode, Observation, Step, StopReason
from atommem.errors import ConfigError
from atommem.memory.log import MemoryView, Operation, Outcome, Retrieved
from atommem.prompts import PromptBuilder
from tests.fakes import WordTokenizer, longdoc

READ = [Action("read", "q")]
ONCE: list[list[Action]] = [[], [], READ]
TASK = Task(
    "t",
    (Question("First?", ("Rome", "Roma")), Question("Second?", ("42",))),
    (Document("", "one"), Document("", "two")),
)
FIRST = Question("First?", ("Rome",), metadata={"documents": [0]})
SECOND = Question("Second?", ("42",), metadata={"documents": [1, 2]})
LONG = Task("t", (FIRST, SECOND), tuple(Document("", f"part {number}") for number in range(6)))


def factory(**settings: Any) -> Any:
    return longdoc(WordTokenizer(), **{"max_reads": 2, **settings})


async def play(steps: list[list[Action]], **settings: Any) -> tuple[list[Any], Any]:
    """Return the observations of `TASK`, and at the end the stop reason; and the score."""
    env = factory(**settings)()
    seen: list[Any] = [await env.reset(TASK)]
    for actions in steps:
        result = await env.step(Step(0, Observation(""), actions=tuple(actions)))
        seen.append(result.observation if result.observation is not None else str(result.reason))
    return seen, await env.score()


def asked(observation: Observation) -> list[str]:
    return [text for piece in observation.task for _, text in piece.walk() if isinstance(text, str)]


def answer(text: str) -> list[Action]:
    return [Action("answer", text)]


async def test_episode_reads_chunks_and_then_asks_questions_in_turn():
    (*seen, end), score = await play([[], [], answer("roma"), answer("41")])
    assert end == "answered"
    assert [o.values("chunk") for o in seen] == [["one"], ["two"], [], []]
    both = ["First?", "Second?"]
    assert [asked(o) for o in seen] == [both, both, ["First?"], ["Second?"]]
    assert (seen[1].label, seen[2].label) == ("chunk 2/2", "question 1/2, 2 reads left")
    assert (score.reward, score.answers) == (0.5, ("roma", "41"))
    with pytest.raises(ConfigError, match="'empty' has no question"):
        await factory()().reset(Task("empty", ()))


async def test_reads_before_an_answer_are_bounded():
    seen, _ = await play([*ONCE, [], READ, answer("42")])
    assert [o.values("reads_left")[0] for o in seen[2:5]] == [2, 1, 0]
    assert asked(seen[5]) == ["Second?"]
    assert seen[6] == StopReason.UNANSWERED
    seen, _ = await play(ONCE, at_once=10)
    assert [asked(o) for o in seen[2:]] == [["First?", "Second?"]] * 2


async def test_stopped_reading_asks_at_once_and_costs_less():
    stop = [Action("stop")]
    answers = [answer("Rome"), answer("42")]
    costly: dict[str, Any] = {"early_stop": True, "step_cost": 0.5}
    seen, score = await play([stop, *answers], **costly)
    assert [o.values("chunk") for o in seen[:3]] == [["one"], [], []]
    assert seen[1].closing[0].name == "asked"  # the text may go on
    assert (score.reward, score.metrics["em"]) == (0.75, 1.0)
    for steps, reward in (([[], [], *answers], 0.5), ([stop, answer("Oslo"), answer("41")], 0.0)):
        assert (await play(steps, **costly))[1].reward == reward
    seen, score = await play([stop, answers[0], [], [], answers[1]], **costly)
    assert [o.values("chunk") for o in seen[2:4]] == [[], ["two"]]  # without an answer it reads on
    assert (asked(seen[4]), score.reward) == (["Second?"], 0.5)
    seen, _ = await play([stop, READ, answers[0], [], [], answers[1]], early_stop=True, max_reads=1)
    assert [asked(o) for o in seen[1:4]] == [["First?"], ["First?"], ["Second?"]]
    (_, second, *_), _ = await play([stop, [], *answers])
    assert second.values("chunk") == ["two"]  # not offered
    assert [spec.name for spec in factory().actions] == ["answer"]


@pytest.mark.parametrize(
    ("at_once", "steps", "answers", "reward"),
    [
        # An answer while reading does not count.
        (1, [*[answer("Rome")] * 2, answer("Oslo"), answer("42")], ("Oslo", "42"), 0.5),
        # The first answer of a step counts.
        (1, [[], [], answer("Oslo") + answer("Rome"), answer("42")], ("Oslo", "42"), 0.5),
        # Of questions asked at once the last answers count, in order.
        (10, [*ONCE, answer("so") + answer("roma") + answer("42")], ("roma", "42"), 1.0),
        (10, [*ONCE, answer("") + answer("42")], (None, "42"), 0.5),
    ],
)
async def test_score_counts_one_answer_a_question(at_once, steps, answers, reward):
    _, score = await play(steps, at_once=at_once)
    assert (score.answers, score.reward) == (answers, reward)


class ByteTokenizer(WordTokenizer):
    """One token a UTF-8 byte, with the span of its character: the worst byte-level case."""

    def __call__(self, text: str, **_: object) -> dict[str, object]:
        spans = [(i, i + 1) for i, char in enumerate(text) for _ in char.encode("utf-8")]
        return {"input_ids": list(range(len(spans))), "offset_mapping": spans}


@given(text=st.text("ab .!?\n北é😀", max_size=200), size=st.integers(1, 20))
@settings(max_examples=100)
def test_chunks_join_to_the_text_and_none_is_too_long(text, size):
    chunks = chunk_text(text, ByteTokenizer(), size)
    assert "".join(chunks) == text
    for chunk in chunks:
        # A character may have more tokens than a chunk; white space at an edge may add one.
        assert len(chunk.encode()) <= size + 1 or len(chunk) == 1


def test_chunks_may_be_documents():
    task = Task("t", (), (Document("Ann", "She ran. "), Document("", "No title.")))
    assert joined_text(task) == "Document 1: Ann\nShe ran.\n\nNo title."
    assert chunk_task(task, WordTokenizer(), "documents", 1) == ["Ann\nShe ran. ", "No title."]


def test_chunk_has_its_span_in_the_text_and_replaces_lone_surrogates():
    text = "Ann lives in Rome. Bob left."
    chunks = factory(chunking="tokens", chunk_tokens=3).reading(text, [])
    spans = [[text[chunk.start : chunk.end]] for chunk in chunks]
    assert spans == [chunk.values("chunk") for chunk in chunks]
    (observation,) = factory().reading("one \ud800 two\0", ["Who?"])
    assert observation.values("chunk") == ["one \ufffd two\ufffd"]


async def observations(task: Task = LONG, **settings: Any) -> list[Observation]:
    """Return an episode's observations, with one read and a right answer for each question."""
    env = factory(max_reads=1, **settings)()
    seen: list[Observation] = []
    now: Observation | None = await env.reset(task)
    while now is not None:
        seen.append(now)
        action = Action("read", "x")
        if now.question is not None and max(now.values("reads_left")) == 0:
            action = Action("answer", task.questions[now.question].answers[0])
        now = (await env.step(Step(0, now, actions=(action,)))).observation
    assert (await env.score()).reward == 1.0
    return seen


def kinds(seen: list[Observation]) -> str:
    """r: reading with questions, b: blind, ?: a question."""
    letters = []
    for one in seen:
        reading = "r" if one.values("questions") or one.values("text") else "b"
        letters.append(reading if one.question is None else "?")
    return "".join(letters)


async def test_arriving_question_comes_after_its_evidence():
    seen_at: dict[int, set[int]] = {0: set(), 1: set()}
    for number in range(60):
        task = Task(f"t{number}", LONG.questions, LONG.documents)
        seen = await observations(task, questions_shown="arriving")
        assert kinds(seen).endswith("??"), "the rest after the last question is not read"
        assert kinds(seen).count("?") == 4
        for at, one in enumerate(seen):
            if one.question is not None:
                seen_at[one.question].add(kinds(seen[:at]).count("b"))
    assert seen_at == {0: {1, 2, 3, 4, 5, 6}, 1: {3, 4, 5, 6}}


@pytest.mark.parametrize("blank", ["", "\n\n"])
def test_evidence_is_found_by_its_place_and_not_by_its_text(blank):
    texts = ("The king ruled. So it was.", "The king ruled.", "It ended.")
    asked = (*(Question("?", metadata={"documents": [at]}) for at in (1, 9)), Question("?"))
    task = Task("t", asked, tuple(Document("", text) for text in texts))
    assert needed_chunks(task, [texts[0], *(blank + text for text in texts[1:])]) == [2, 3, 3]


def test_modes_are_drawn_by_task():
    modes = ["reading", "answering", "answering", "arriving"]
    drawn, again = ([drawn_mode(modes, f"t{n}") for n in range(1000)] for _ in range(2))
    assert drawn == again
    assert 450 < drawn.count("answering") < 550


BEFORE = {"reading": "rrrrrr", "answering": "bbbbbb"}
SETS = (("paper", "full"), ("paper", "compact"), ("memagent", "memagent"))


@pytest.mark.parametrize(("dialect", "templates"), SETS)
async def test_prompt_hides_questions_and_length_as_the_mode_says(dialect, templates):
    memory = MemoryConfig(dialect=dialect, templates=templates)
    task = Task("t0", (FIRST,), LONG.documents)
    for mode in MODES:
        shared = factory(questions_shown=mode, open_ended=True)
        builder = PromptBuilder.of(WordTokenizer(), get_dialect(dialect, templates), memory, shared)
        seen = await observations(task, questions_shown=mode, open_ended=True)
        assert mode == "arriving" or kinds(seen)[:-2] == BEFORE[mode]
        shown = ["First?" in builder.text(one, MemoryView()) for one in seen]
        assert shown == [kind != "b" for kind in kinds(seen)]
        names = {name for one in seen for piece in one.pieces for name, _ in piece.walk()}
        assert not names & {"chunk_number", "chunk_count"}, "the length of the text stays hidden"


BRAN = Document("Bran", "He is a sailor. He has lived in Port since 1990.", gold=True)
MOSS = Document("Moss", "Moss grows in Port since 1990.")
LIVES, FAR = Question("Where does Bran live?", ("Port", "Harbour")), Question("Far?", ("yes",))
FACTS = Task("t", (LIVES, FAR), (BRAN, MOSS))
FACT = "Bran lived in Port"


@pytest.mark.parametrize(
    ("text", "carried"),
    [
        ("Since 1990: PORT.", True),
        ("Bran lived in Portland", False),  # whole words
        ("The port is big; Bran likes it", False),  # one more word is chance
    ],
)
def test_fact_is_carried_by_its_answer_and_two_of_its_words(text, carried):
    (fact,) = facts_of(FACTS, LIVES)
    assert fact.carried_by(text) is carried
    assert facts_of(FACTS, FAR) == []


CHINESE = "张三|他是海员。他从一九九〇年起住在北京。|北京|张三住在北京。|李四去过北京。"
KOREAN = "영희|그는 선원이다. 그는 서울에 산다.|서울|영희가 서울에서 산다.|민수는 서울로 갔다."


@pytest.mark.parametrize("line", [f"{CHINESE}|张三住在南京。", f"{KOREAN}|영희는 부산에 산다."])
def test_fact_of_a_language_without_words_of_its_own_is_carried(line):
    title, text, gold, carried, *others = line.split("|")
    question, document = Question("?", (gold,)), Document(title, text, gold=True)
    (fact,) = facts_of(Task("t", (question,), (document,)), question)
    assert fact.carried_by(carried)
    assert not any(map(fact.carried_by, others))


CREATE = Operation(0, "create", entry_id=1, after=FACT)
OVERWRITE = Operation(0, "update", entry_id=1, before=FACT, after="Bran")
REJECTED = Operation(0, "create", Outcome.REJECTED, after=FACT)


@pytest.mark.parametrize(
    ("operations", "shown", "expected"),
    [
        ([CREATE], FACT, (1, 1, 1)),
        ([CREATE, OVERWRITE], "", (1, 0, 0)),
        ([REJECTED], "", (0, 0, 0)),
    ],
)
def test_fact_recall_separates_entered_kept_and_retrieved(operations, shown, expected):
    view = MemoryView(retrieved=(Retrieved(1, 1, shown, 0.5),))
    reading = Step(0, Observation("reading"), operations=tuple(operations))
    steps = [reading, Step(1, Observation("answering", question=0), view)]
    names = ("fact_entered", "fact_kept", "fact_retrieved")
    assert fact_recall(FACTS, Episode("t", 0, steps))[0] == dict(zip(names, expected, strict=True))

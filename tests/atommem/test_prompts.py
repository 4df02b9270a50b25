import pytest

from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.memory.entries import MemoryView, Retrieved
from atommem.prompts import PromptBuilder
from tests.fakes import WordTokenizer, answering, longdoc, reading

READING = reading("Who?", chunk="THE CHUNK", index=1, count=3)
VIEW = MemoryView("SCRATCH", "QUERY", (Retrieved(1, 7, "ENTRY", 0.5),), size=2, capacity=5)


def builder(**settings: object) -> PromptBuilder:
    config = MemoryConfig(**settings)  # type: ignore[arg-type]
    tokenizer = WordTokenizer()
    return PromptBuilder.of(tokenizer, get_dialect(config.dialect, config.templates), config, longdoc(tokenizer))


def order(text: str, *parts: str) -> None:
    positions = [text.index(part) for part in parts]
    assert positions == sorted(positions), dict(zip(parts, positions, strict=True))


def test_prefix_layout_puts_the_chunk_before_the_memory() -> None:
    order(builder().text(READING, VIEW), "Who?", "THE CHUNK", "SCRATCH", "QUERY", "Memory 1: ENTRY")


def test_paper_layout_puts_the_chunk_last() -> None:
    order(builder(layout="paper").text(READING, VIEW), "Who?", "SCRATCH", "QUERY", "Memory 1: ENTRY", "THE CHUNK")


def test_episodes_of_a_group_share_the_prompt_up_to_their_own_memory() -> None:
    prompts = builder()
    mine, other = prompts.text(READING, VIEW), prompts.text(READING, MemoryView("else", "other"))
    assert mine[: mine.index("SCRATCH")] == other[: other.index("else")]


def test_the_prompt_tells_limit_and_fill_only_when_there_is_a_limit() -> None:
    assert "2 of at most 5" in builder(capacity=5).text(READING, VIEW)
    assert "at most" not in builder().text(READING, MemoryView("SCRATCH", "QUERY"))
    assert "at most" not in builder(capacity=5, capacity_notice=False).text(READING, VIEW)


@pytest.mark.parametrize("dialect", ["paper", "released"])
def test_disabled_actions_leave_the_instructions(dialect: str) -> None:
    tag = get_dialect(dialect).tags
    full = builder(dialect=dialect).system
    without = builder(dialect=dialect, disabled_actions=["update", "delete"]).system
    for kind in ("update", "delete"):
        assert f"<{tag[kind]}>" in full  # type: ignore[index]
    assert "the entry that is shown to you now" not in without
    assert "replaces the whole scratchpad" in without
    assert "{tag" not in full


def test_empty_memory_and_several_questions() -> None:
    text = builder().text(reading("First?", "Second?", chunk="c"), MemoryView())
    assert "1. First?\n2. Second?" in text
    assert text.count("(empty)") == 3


def test_answering_shows_one_question_no_chunk_and_the_turns_left() -> None:
    text = builder().text(answering("Second?", 2), VIEW)
    assert "Second?" in text
    assert "Part " not in text.split("[user]")[1]
    assert "turns left for that: 2" in text


def test_compact_templates_have_no_chat_markup_and_no_instructions() -> None:
    prompts = builder(templates="compact")
    assert prompts.text(READING, VIEW) == (
        "question Who? chunk THE CHUNK scratchpad SCRATCH query QUERY memory 1 : ENTRY capacity 2 of 5 act"
    )


def test_build_encodes_the_text() -> None:
    prompts = builder()
    assert prompts.tokenizer.decode(prompts.build(READING, VIEW), skip_special_tokens=False) == prompts.text(
        READING, VIEW
    )

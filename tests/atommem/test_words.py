"""Words of any language."""

# ruff: noqa: RUF001
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from atommem.embedding.embedder import HashingEmbedder
from atommem.envs.scoring.metrics import score_question
from atommem.envs.task import Question
from atommem.words import unify, words

TRANSLATED = yaml.safe_load(
    (Path(__file__).parents[1] / "envs" / "translated.yaml").read_text(encoding="utf-8")
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Naïve co-op_1, x² ½!", "naïve co op_1 x² ½"),
        ("Zoe\u0308 \u00adＡＢ１", "zoë ab1"),
        ("張三住北京abc", "張三 三住 住北 北京 abc"),
        ("猫。ﾃｽﾄ", "猫 テス スト"),
        ("서울에 산다", "서울 울에 산다"),
        ("हिन्दी भाषा", "हिन्दी भाषा"),
        ("مُحَمَّد ١٢", "محمد 12"),
        ("Ти\u0301хон", "тихон"),
        ("İstanbul Straße", "istanbul strasse"),
        ("❤️ 1️⃣", "1"),
        ("ไทยx", "ไท ทย x"),
    ],
)
def test_words_of_a_language(text, expected):
    assert words(text) == expected.split(" ")


@given(st.text("aZ09_ -'.,\n\té–“”€²½ßñ", max_size=30))
def test_words_of_english_are_those_of_a_regular_expression(text):
    assert words(text) == re.findall(r"\w+", text.casefold())
    assert not text.isascii() or unify(text) == text


@pytest.mark.parametrize("language", TRANSLATED)
async def test_translated_texts_are_found_and_scored_as_in_english(language):
    texts, questions, golds = zip(*TRANSLATED[language], strict=True)
    embedder = HashingEmbedder(2048)
    entries = await embedder.embed(texts, "entry")
    nearest = (await embedder.embed(questions, "query") @ entries.T).argmax(axis=1)
    assert nearest.tolist() == list(range(len(texts)))
    end = {"chinese": "。", "japanese": "。", "english": "."}.get(language, "!")
    for question, gold in zip(questions, golds, strict=True):
        asked = Question(question, (gold,))
        assert set(score_question(asked, f"“{gold}”{end}", "told").values()) == {1.0}

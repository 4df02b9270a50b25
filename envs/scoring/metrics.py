"""Scores of an answer, as the scripts of the benchmarks define them.

HotpotQA, 2WikiMultihopQA and MuSiQue normalise as SQuAD does and take the best score over the gold
answers; they differ in F1 (`f1`).

One definition is ours: an answer such as "A" or "!!!" normalises to nothing, and the scripts would
match it with any article or punctuation mark. Here it matches only the same text, except for case
and white space, and EM and F1 are then 1. An empty prediction scores 0.

LoCoMo and OOLONG have rules of their own (`locomo_scores`, `oolong_scores`). Answers of other
sources may be in any language, and their numbers keep sign and decimal point (`comparable`).
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import repeat
from typing import Any

from atommem.envs.task import Question
from atommem.words import fold_case, is_unspaced, spaced, unify

LOCOMO_SOURCE = "locomo"
CATEGORIES = {1: "multi_hop", 2: "temporal", 3: "open_domain", 4: "single_hop", 5: "adversarial"}
_OPTION = re.compile(r"\(?([ab])\)?")
_DROPPED_WORDS = re.compile(r"\b(?:a|an|the|and)\b")
WEB_SOURCES = ("gaia", "webwalkerqa", "asearcher", "webdancer", "browsecomp_plus")
GAIA_SOURCE = WEB_SOURCES[0]
OFFICIAL_SOURCES = ("hotpotqa", "2wikimultihopqa", "musique")
"""Sources scored as their scripts do, whatever the language."""
_SEPARATORS = ",;\n\u3001\uff0c\uff1b\u060c\u061b"
_SEPARATOR = re.compile(rf"([{_SEPARATORS}]|\band\b)")
_POINT_OR_SIGN = re.compile(
    r"(?<![\w.])(\d*)\.(?=\d+(?!\d|\.\d))|(?<![A-Za-z0-9_.,)-])-(?=[$€£]?\.?\d)"
)
_SAME = str.maketrans("\u00b4\u02bb\u02bc\u02b9\u2032\u2212\u2013\u066b", "'''''--.")
OOLONG_SOURCE, OOLONG_REAL_SOURCE = "oolong", "oolong_real"
_COMPARISONS = ("more common", "less common", "same frequency")
ABSTENTION = "not mentioned"
_ABSTENTIONS = ("no information available", ABSTENTION)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
VERDICTS = frozenset({"yes", "no", "noanswer"})


def score_question(question: Question, answer: str | None, source: str) -> dict[str, float]:
    """Return ``em``, ``f1`` and ``sub_em`` by the rules of the benchmark; nothing without golds.

    If the text does not tell (`abstention`), all are whether the answer says so. GAIA has ``gaia``.
    """
    if not question.answers:
        return {}
    if question.metadata.get("all_of"):
        return all_of_scores(answer, question.answers)
    if question.metadata.get("abstention"):
        return dict.fromkeys(("em", "f1", "sub_em"), float(abstains(answer)))
    if source in (OOLONG_SOURCE, OOLONG_REAL_SOURCE):
        return oolong_scores(question, answer, real=source == OOLONG_REAL_SOURCE)
    predicted, golds = answer, question.answers
    if not any(name in source for name in OFFICIAL_SOURCES):
        predicted, golds = answer and comparable(answer), tuple(map(comparable, golds))
    if source == LOCOMO_SOURCE:
        em, token_f1 = locomo_scores(question, answer)
    else:
        em = exact_match(predicted, golds)
        verdicts = source not in WEB_SOURCES and "musique" not in source
        token_f1 = f1(predicted, golds, verdicts=verdicts)
    scores = {"em": em, "f1": token_f1, "sub_em": sub_exact_match(predicted, golds)}
    if source == GAIA_SOURCE:
        scores["gaia"] = gaia_score(answer, question.answers)
    return scores


def all_of_scores(answer: str | None, values: Sequence[str]) -> dict[str, float]:
    """Return the scores of an answer that has to list all of `values`.

    ``sub_em`` is the recall of RULER's ``string_match_all``, which pays for a list of guesses.
    The others compare the items of the list, separated by commas, semicolons, lines or "and", with
    the values: EM wants the same, ``net_recall`` takes one off for a wrong item, so that a guess
    pays only if it is right more often than not. F1 pays for less likely ones.
    """
    text = unify(answer or "").lower()
    recall = sum(unify(value).lower() in text for value in values) / len(values)
    wanted = {normalize(comparable(value)) for value in values}
    items = _listed(text, wanted, max(len(_SEPARATOR.split(value.lower())) for value in values))
    common = len(items & wanted)
    token_f1 = 2 * common / (len(items) + len(wanted))
    net = max(2 * common - len(items), 0) / len(wanted)
    return {"em": float(items == wanted), "f1": token_f1, "sub_em": recall, "net_recall": net}


def _listed(text: str, wanted: Collection[str], longest: int) -> set[str]:
    """Return the items of a list; a wanted value may have separators ("Trinidad and Tobago")."""
    parts, items = _SEPARATOR.split(text), set()
    while parts:
        for count in range(min(longest, len(parts)), 0, -2):
            item = normalize(comparable("".join(parts[:count])))
            if count == 1 or item in wanted:
                break
        items.add(item)
        del parts[: count + 1]
    return items - {""}


def net_recall(answer: str | None, answers: Sequence[str]) -> float:
    """Return the share of a gold answer's words that `answer` has, less its other words.

    A word pays only if it is right more often than not: a list of candidates earns nothing more.
    """
    words = Counter(normalize(comparable(answer or "")).split())
    found = [0.0]
    for gold in map(comparable, answers):
        wanted = Counter(normalize(gold).split())
        net = 2 * (words & wanted).total() - words.total()
        found.append(net / wanted.total() if wanted else exact_match(answer, [gold]))
    return max(found)


def normalize(text: str) -> str:
    """Return text in SQuAD's normalisation: lower case, no punctuation, no articles."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str | None, answers: Sequence[str]) -> float:
    """Return 1.0 if `prediction` normalises to the same text as one of `answers`, else 0.0."""
    return float(prediction is not None and any(_equal(prediction, gold) for gold in answers))


def f1(prediction: str | None, answers: Sequence[str], *, verdicts: bool = True) -> float:
    """Return the best token F1 over `answers`; None scores 0.

    With `verdicts`, yes, no and noanswer score 0 unless both sides normalise to the same word, as
    in HotpotQA and 2WikiMultihopQA (v1.1); for MuSiQue they are ordinary words.
    """
    scores, predicted = [0.0], normalize(prediction or "")
    for answer in () if prediction is None else answers:
        gold = normalize(answer)
        if not gold:
            scores.append(exact_match(prediction, [answer]))
        elif not verdicts or predicted == gold or VERDICTS.isdisjoint({predicted, gold}):
            scores.append(_token_f1(predicted.split(), gold.split()))
    return max(scores)


def sub_exact_match(prediction: str | None, answers: Sequence[str]) -> float:
    """Return 1.0 if one of `answers` contains the prediction or is contained in it, normalised.

    Source: ``sub_em`` of MemAgent's ``taskutils/memory_eval``; substrings need not be whole words.
    Unlike there, all answers count, and a prediction that normalises to nothing scores as in
    `exact_match` instead of being contained in every answer.
    """
    normalized = normalize(prediction or "")
    if not normalized:
        return exact_match(prediction, answers)
    golds = [normalize(answer) for answer in answers]
    return float(any(gold and (gold in normalized or normalized in gold) for gold in golds))


def _equal(prediction: str, answer: str) -> bool:
    gold = normalize(answer)
    if gold:
        return normalize(prediction) == gold
    words = prediction.lower().split()
    return words != [] and words == answer.lower().split()


def _token_f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    """Return 2PR / (P + R) with P = common / predicted and R = common / gold."""
    common = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * common / (len(predicted) + len(gold)) if common else 0.0


def abstains(answer: str | None) -> bool:
    """Whether an answer says that the text does not tell, in the words of LoCoMo's script."""
    return answer is not None and any(phrase in answer.lower() for phrase in _ABSTENTIONS)


def hint(what: str) -> str:
    """Return what follows every question of a file in which some have no answer."""
    return f' (If the {what} does not tell, answer "{ABSTENTION}".)'


def locomo_scores(question: Question, answer: str | None) -> tuple[float, float]:
    """Return exact match, and F1 by the rules of LoCoMo's ``task_eval/evaluation.py``.

    The script drops "and" with the articles and compares Porter stems. Multi-hop questions have
    several answers, separated by commas: each is compared with its best match. An answer to an
    adversarial question is right if it abstains, or is the letter of the option that does. Golds in
    a script without spaces, for which the script has no words, are compared by characters.
    """
    category, gold = question.metadata.get("category"), question.answers[0]
    if category == "adversarial":
        letter = _OPTION.fullmatch(unify(answer or "").strip().lower())
        options = question.metadata.get("options", {})
        abstained = float(abstains(options.get(letter[1], answer) if letter else answer))
        return abstained, abstained
    if answer is None:
        return 0.0, 0.0
    em = exact_match(comparable(answer), [comparable(text) for text in question.answers])
    if category != "multi_hop":
        return em, _stem_f1(answer, gold)
    between = f"[{_SEPARATORS if is_unspaced(gold) else ','}]"
    given = re.split(between, answer)
    best = [max(_stem_f1(one, part) for one in given) for part in re.split(between, gold)]
    return em, sum(best) / len(best)


def _stem_f1(answer: str, gold: str) -> float:
    if is_unspaced(gold):
        answer, gold = comparable(answer), comparable(gold)
    texts = (text.lower().translate(_NO_PUNCTUATION) for text in (answer, gold))
    return _token_f1(*([*map(stem, _DROPPED_WORDS.sub(" ", text).split())] for text in texts))


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """Return the Porter stem of a word in NLTK's default mode, which LoCoMo's script uses."""
    from nltk.stem.porter import PorterStemmer  # on first use: the import takes seconds

    return str(PorterStemmer().stem(word))


def comparable(text: str, *, spaces: bool = True) -> str:
    """Return a text such that SQuAD's rule compares texts of any language, and numbers.

    Characters get one form (NFKC, `fold_case`), a number's point and sign become symbols, which the
    rule does not drop, and the punctuation of every script goes. With `spaces`, a character of a
    script without them is a word, as in CMRC 2018's evaluation.
    """
    same = fold_case(unicodedata.normalize("NFKC", text.translate(_SAME)))
    same = _POINT_OR_SIGN.sub(
        lambda found: "\u2212" if found[0] == "-" else f"{found[1]}\u22c5", same
    )
    if text.isascii():
        return same
    kept = "".join(part for part in same if not unicodedata.category(part).startswith("P"))
    # A text of nothing but punctuation stays: SQuAD's rule compares it as it is.
    return (spaced(kept) if spaces else kept).strip() or same


def oolong_scores(question: Question, answer: str | None, *, real: bool) -> dict[str, float]:
    """Return ``oolong``, the score of the authors' ``eval_helpers.py``, and ``em``: all is right.

    Their script reads the answer from the whole output: of synthetic rows after the last colon, of
    real ones in the box. A number that is wrong by d scores .75 to the power of d, and a list the
    share of the gold items that it has, whatever else: EM needs the same items.
    """
    (gold,) = question.answers
    if answer is None:
        return {"em": 0.0, "oolong": 0.0}
    if not real:
        score = _oolong_synthetic(_oolong_answer(answer), gold, question.metadata["answer_type"])
        return {"em": float(score == 1), "oolong": score}
    boxed = re.fullmatch(r"\\text\{([^}]*)\}", answer) or re.match(r"\{*([^}]*)", answer)
    found, right = _oolong_value(boxed[1] if boxed else ""), _oolong_value(gold)
    if isinstance(found, list) and isinstance(right, list):
        same = {*found} & {*right}
        return {"em": float({*found} == {*right}), "oolong": len(same) / len(right)}
    numbers = isinstance(found, int) and isinstance(right, int)
    score = _near(right, found) if numbers else float(found == right)
    return {"em": float(found == right), "oolong": score}


def _near(right: Any, found: Any) -> float:
    return float(0.75 ** min(abs(right - found), 1000))


def _oolong_value(text: str) -> int | str | list[str]:
    with suppress(ValueError):
        return int(text)
    if "," in text:
        return [item.strip() for item in text.split(",") if item.strip()]
    return text.strip().lower()


def _oolong_answer(output: str) -> str:
    if ":" not in output:
        return output if len(output) < 20 else output.split()[-1]
    found = re.sub(r"[*[\]]", "", output.split(":")[-1].strip())
    if len(found) < 20:
        return found
    return next((phrase for phrase in _COMPARISONS if phrase in found), found)


def _oolong_synthetic(found: str, gold: str, kind: str) -> float:
    if found == gold:
        return 1.0
    if found in _COMPARISONS:
        return float(found in gold)
    with suppress(ValueError, OverflowError):
        if kind.endswith("NUMERIC"):
            return _near(int(gold), int(found))
        if kind.endswith("DATE"):
            from dateutil.parser import parse  # on first use: only dates need it

            return float(parse(found) == parse(gold))
    return 0.0


def gaia_score(answer: str | None, golds: Sequence[str]) -> float:
    """Return 1.0 if `answer` is right by the rule of GAIA's ``scorer.py`` for one of `golds`.

    Numbers must be equal, without ``$``, ``%`` and ``,``. Where the gold answer has a comma or
    semicolon, both are lists of as many parts, compared in order: numbers as numbers, others as
    text with its punctuation. Other texts are compared without white space, punctuation and case.
    """
    if answer is None or not answer.strip():  # the original holds nothing equal to punctuation
        return 0.0
    return float(any(_gaia_equal(answer, gold) for gold in golds))


def _gaia_equal(answer: str, gold: str, dropped: Any = _NO_PUNCTUATION) -> bool:
    with suppress(ValueError):
        return float(gold) == _gaia_number(answer)
    if re.search("[,;]", gold):
        given, right = re.split("[,;]", answer), re.split("[,;]", gold)
        return len(given) == len(right) and all(map(_gaia_equal, given, right, repeat({})))
    one, other = ("".join(text.translate(dropped).split()).lower() for text in (answer, gold))
    return one == other


def _gaia_number(answer: str) -> float:
    with suppress(ValueError):
        return float(re.sub("[$%,]", "", answer))
    return float("inf")  # as in the original

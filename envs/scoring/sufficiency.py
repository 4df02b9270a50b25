"""MuSiQue-Full's grouped score: a question counts if it is answered where it can be, and refused where it cannot.

Every question of MuSiQue-Full stands there twice: with all of its evidence, and with some of it missing. The official
``evaluate_v1.0.py`` gives a pair the answer's F1 (or exact match) where both were told apart rightly, else 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from statistics import fmean
from typing import Any

from atommem.envs.scoring.statistics import clustered_estimate

_Pair = tuple[list[Mapping[str, float]], list[Mapping[str, float]]]


def group_scores(questions: Iterable[tuple[str, Mapping[str, float]]]) -> dict[str, dict[str, Any]]:
    """``group_answer_sufficiency_f1`` and ``_em`` over pairs, as estimates (`statistics.Estimate`); {} without any.

    `questions` are ids, which the two of a pair share, with their metrics. A pair with several episodes a side has the
    product of their means: what one episode a side earns in the mean. Pairs of which a side is missing (failed,
    overflowed, not drawn) are in no score.
    """
    pairs: dict[str, _Pair] = {}
    for identifier, metrics in questions:
        if "sufficiency" in metrics:
            pairs.setdefault(identifier, ([], []))["em" in metrics].append(metrics)
    whole = {identifier: sides for identifier, sides in pairs.items() if all(sides)}
    found = {}
    for metric in ("f1", "em"):
        scores = [
            fmean(item["sufficiency"] for item in refused)
            * fmean(item["sufficiency"] * item[metric] for item in answered)
            for refused, answered in whole.values()
        ]
        if scores:
            found[f"group_answer_sufficiency_{metric}"] = asdict(
                clustered_estimate(scores, list(whole))
            )
    return found

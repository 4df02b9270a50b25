"""MuSiQue-Full's grouped score: a question counts if it is answered where it can be, and refused where it cannot.

Every question of MuSiQue-Full stands there twice: with all of its evidence, and with some of it missing. The official
``evaluate_v1.0.py`` gives a pair the answer's F1 (or exact match) where both were told apart rightly, else 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

from atommem.envs.scoring.statistics import clustered_estimate

if TYPE_CHECKING:
    from atommem.envs.scoring.records import EpisodeRecord

_Pair = tuple[list[dict[str, float]], list[dict[str, float]]]


def group_scores(records: Iterable[EpisodeRecord]) -> dict[str, dict[str, Any]]:
    """``group_answer_sufficiency_f1`` and ``_em`` over pairs, as estimates (`statistics.Estimate`); {} without any.

    A pair with several episodes a side has the product of their means: what one episode a side earns in the mean.
    Pairs of which a side is missing (failed, overflowed, not drawn) are in no score.
    """
    pairs: dict[str, _Pair] = {}
    for record in records:
        for question in record.questions:
            if "sufficiency" in question.metrics and not record.overflowed:
                sides = pairs.setdefault(question.id, ([], []))
                sides["em" in question.metrics].append(question.metrics)
    whole = {identifier: sides for identifier, sides in pairs.items() if all(sides)}
    found = {}
    for metric in ("f1", "em"):
        scores = [
            fmean(item["sufficiency"] for item in refused)
            * fmean(item["sufficiency"] * item[metric] for item in answered)
            for refused, answered in whole.values()
        ]
        if scores:
            found[f"group_answer_sufficiency_{metric}"] = asdict(clustered_estimate(scores, list(whole)))
    return found

"""The claims of docs/bounded_memory.md, tested on evaluations of ``suite.yaml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from atommem.envs.scoring.paired import compare
from atommem.envs.scoring.records import EpisodeRecord, summarize
from atommem.envs.scoring.statistics import holm
from atommem.errors import ConfigError

Records = Sequence[EpisodeRecord]
OWN, WRITES = "atommem, own ", "atommem, writes "
ORACLE = f"{WRITES}oracle"
"""What nobody may have: it knows what will be asked."""
LEAST, CLOSED, NEAR = 0.05, 0.5, 0.02
_DRAWS = 2000


class Column:
    """The arms on the tasks of one column, over all training seeds.

    Args:
        arms: Records by row, of the same tasks; training seeds follow one another.
        chosen: The first so many tasks are for choosing the best rule, and are in no figure.

    Attributes:
        own: The learned policy with the secondary rule that is best on the first tasks.
        rule: The policy's writes under the rule that is best on them.
    """

    def __init__(self, arms: Mapping[str, Records], chosen: int) -> None:
        self.arms = {
            row: [each for each in of if _number(each) >= chosen] for row, of in arms.items()
        }
        first = {row: [each for each in of if _number(each) < chosen] for row, of in arms.items()}
        if not all(self.arms.values()) or not all(first.values()):
            raise ConfigError(
                f"there must be more than {chosen} tasks: the first {chosen} choose the rule."
            )
        self.own = _best(first, OWN)
        self.rule = _best(first, WRITES)

    def em(self, row: str) -> float:
        """Of a row."""
        return mean_em(self.arms[row])

    def against_rules(self) -> dict[str, Any]:
        """Claim 1: the learned policy against every rule on its own writes."""
        rules = [row for row in self.arms if row.startswith(WRITES) and row != ORACLE]
        tests = {row: compare(self.arms[row], self.arms[self.own]) for row in rules}
        corrected = dict(zip(rules, holm([tests[row].p_value for row in rules]), strict=True))
        found = tests[self.rule].difference
        return {
            "own": self.own,
            "own_em": self.em(self.own),
            "rule": self.rule,
            "rule_em": self.em(self.rule),
            "difference": 0.0 if found is None else found.difference,
            "interval": None if found is None else (found.low, found.high),
            "p_holm": corrected[self.rule],
            "not_beaten": [
                row
                for row in rules
                if self.em(row) + LEAST > self.em(self.own) or corrected[row] >= 0.01
            ],
        }

    def gap_closed(self) -> dict[str, Any]:
        """Claim 2: (own - best rule) / (oracle - best rule), with a bootstrap interval."""
        rows = (self.own, self.rule, ORACLE)
        by_task = [_by_task(self.arms[row]) for row in rows]
        tasks = [
            task for task in by_task[0] if all(task in of for of in by_task)
        ]  # that failed nowhere
        scores = np.array([[fmean(of[task]) for task in tasks] for of in by_task])
        drawn = np.random.default_rng(0).integers(len(tasks), size=(_DRAWS, len(tasks)))
        own, rule, oracle = scores[:, drawn].mean(axis=2)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = (own - rule) / (oracle - rule)
        shares = shares[np.isfinite(shares)]
        means = scores.mean(axis=1)
        gap = means[2] - means[1]
        low, high = np.quantile(shares, (0.025, 0.975)) if len(shares) else (np.nan, np.nan)
        return {
            "oracle_em": float(means[2]),
            "gap": float(gap),
            "share": float((means[0] - means[1]) / gap) if gap > 0 else None,
            "share_interval": (float(low), float(high)) if gap > 0 else None,
        }

    def spread(self) -> dict[str, Any]:
        """Claim 4: how far any arm is from the learned policy."""
        others = [row for row in self.arms if row != self.own]
        tests = [compare(self.arms[self.own], self.arms[row]) for row in others]
        gaps = {row: self.em(row) - self.em(self.own) for row in others}
        farthest = max(others, key=lambda row: abs(gaps[row]))
        return {
            "own_em": self.em(self.own),
            "farthest": farthest,
            "difference": gaps[farthest],
            "least_p_holm": min(holm([test.p_value for test in tests])),
        }

    def costs(self) -> dict[str, dict[str, float]]:
        """Model calls and tokens a task, by row."""
        return {row: {name: _mean(of, name) for name in _COSTS} for row, of in self.arms.items()}


_COSTS = ("steps", "tokens/prompt", "tokens/completion")


def mean_em(records: Records) -> float:
    """Over records, each counting the same; a failed one is in no score."""
    return fmean(score for record in records for score in record.scores("em"))


def near_specialist(general: Records, special: Records, chosen: int) -> dict[str, Any]:
    """Claim 3: one policy for all capacities against the specialist, on the same tasks."""
    general, special = (
        [each for each in of if _number(each) >= chosen] for of in (general, special)
    )
    found = compare(special, general).difference
    assert found is not None
    return {
        "general_em": mean_em(general),
        "special_em": mean_em(special),
        "difference": found.difference,
        "interval": (found.low, found.high),
        "within": found.difference >= -NEAR,
    }


def _number(record: EpisodeRecord) -> int:
    return int(record.task_id.rpartition("-")[2])


def _best(first: Mapping[str, Records], kind: str) -> str:
    rows = [row for row in first if row.startswith(kind) and row != ORACLE]
    if not rows:
        raise ConfigError(
            f"there is no row {kind}...: run the suite `retention` with all of its rows."
        )
    return max(rows, key=lambda row: mean_em(first[row]))


def _by_task(records: Records) -> dict[str, list[float]]:
    """Scores of the tasks that have one, over training seeds."""
    scores: dict[str, list[float]] = {}
    for record in records:
        if found := list(record.scores("em")):
            scores.setdefault(record.task_id, []).extend(found)
    return scores


def _mean(records: Records, name: str) -> float:
    return round(float(summarize(list(records))["means"].get(name) or 0.0), 1)

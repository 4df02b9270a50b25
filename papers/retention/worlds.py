"""Trained policies against retention rules on synthetic worlds: claims 1 to 4 of the docs."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import numpy as np

from atommem.config import EmbedderConfig
from atommem.demo.recipe import Recipe
from atommem.dialects import get_dialect
from atommem.embedding import make_embedder
from atommem.envs.scoring.records import EpisodeRecord, compare
from atommem.envs.scoring.statistics import holm
from atommem.envs.synthetic.expert import Expert, ExpertPolicy
from atommem.envs.synthetic.world import WorldConfig, generate, get_prose
from atommem.envs.task import Task
from atommem.errors import ConfigError
from atommem.eval.runner import evaluate
from atommem.policy.local import LocalPolicy
from atommem.rollout import Episode, EpisodeRunner
from atommem.run import build_agent, make_run, stored_settings
from papers.experiment import Table
from papers.inputs import load_demo
from papers.retention.rules import RULE_PATHS, GreedyOracle
from papers.retention.streams import embed_streams, labelled, needs_of
from papers.retention.table import fit, save

Records = Sequence[EpisodeRecord]
Arms = dict[str, list[EpisodeRecord]]
"""Records by arm; training seeds are samples."""
LEAST, CLOSED, NEAR = 0.05, 0.5, 0.02
"""Bars of claims 1 to 3."""
OTHER_TASKS = 1000
"""Added to a column's seed: the tasks that the scorer is fitted on."""
WRITERS = ["reject", "fifo", "lru", "lfu", "random", "ebbinghaus", "redundancy", "novelty"]
WRITERS += ["length", "type_prior", "traceretain"]
OWN = "own reject"
ORACLE = "writes oracle"
COMPACT = WorldConfig(prose="compact", early=0.8, corrections=0.5, errata=True, names=48)
DISTRACTORS = {2: 4, 3: 6, 5: 10, 8: 16, 20: 23}
SPARE_DISTRACTORS = {2: 1, 3: 1, 5: 2, 8: 4, 20: 10}


@dataclass(frozen=True)
class Column:
    """Tasks of one world at one capacity.

    ``announced`` worlds say which facts are obsolete before the store is full, ``unannounced`` ones
    do not, and in ``spare`` ones all facts fit.
    """

    world: str
    capacity: int

    @property
    def name(self) -> str:
        """Name of the column."""
        return f"{self.world} {self.capacity}"

    def tasks(self, count: int, shift: int = 0) -> list[Task]:
        """Generate tasks; an entry holds one fact (3 tokens)."""
        seed = {"announced": 100, "unannounced": 200, "spare": 300}[self.world] + self.capacity
        distractors = SPARE_DISTRACTORS if self.world == "spare" else DISTRACTORS
        capacity = self.capacity if self.world == "announced" else None
        config = replace(COMPACT, distractors=distractors[self.capacity], capacity=capacity)
        return list(generate(config, count, seed + shift))


def make_columns(capacities: Sequence[int]) -> list[Column]:
    """Return the columns of all worlds."""
    worlds = ("announced", "spare", "unannounced")
    return [Column(world, capacity) for world in worlds for capacity in capacities]


class TaskOracle(GreedyOracle):
    """Knows the entries that the questions of the running task need."""

    task: ClassVar[ContextVar[str]] = ContextVar("task", default="")
    needs: ClassVar[dict[str, dict[str, int]]] = {}

    def __init__(self) -> None:
        super().__init__(self.needs.get(self.task.get(), {}))


class Runner(EpisodeRunner):
    """Tells `TaskOracle` which task runs."""

    async def run(self, task: Any, *args: Any, **kwargs: Any) -> Episode:
        """Run one episode."""
        TaskOracle.task.set(task.id)
        return await super().run(task, *args, **kwargs)


def fit_linear(columns: Sequence[Column], count: int, path: Path) -> None:
    """Fit the linear scorer on other tasks of all columns."""
    tasks = [task for column in columns for task in column.tasks(count, OTHER_TASKS)]
    embedder = make_embedder(EmbedderConfig(embedder="hashing"))
    save(fit(asyncio.run(embed_streams(labelled(tasks), embedder))), path)


def make_arms(linear: Path) -> dict[str, dict[str, Any]]:
    """Return settings by arm.

    ``own`` is the policy's own forgetting, then a rule; ``writes`` are its writes without delete,
    kept by a rule.
    """
    arms: dict[str, dict[str, Any]] = {
        f"own {rule}": {"retention": rule} for rule in ("reject", "fifo", "lru")
    }
    rules = {rule: RULE_PATHS.get(rule, rule) for rule in WRITERS} | {
        "linear": f"{RULE_PATHS['linear']}(weights={linear})"
    }
    rules["oracle"] = f"{__name__}:TaskOracle"
    for rule, retention in rules.items():
        arms[f"writes {rule}"] = {"retention": retention, "disabled_actions": ["delete"]}
    return arms


def run_arms(
    folder: Path,
    out: Path,
    columns: Sequence[Column],
    arms: Mapping[str, Mapping[str, Any]],
    count: int,
    scripted: bool = False,
) -> dict[str, dict[str, Records]]:
    """Return records by column and arm of a policy, or a faultless script; resumes in `out`."""
    local = LocalPolicy.from_pretrained(folder)
    stored = stored_settings(str(folder))
    found: dict[str, dict[str, Records]] = {}
    for column in columns:
        tasks = column.tasks(count)
        TaskOracle.needs = needs_of(tasks)
        found[column.name] = {}
        for arm, settings in arms.items():
            fixed = {"capacity": column.capacity, "entry_tokens": 3, "temperature": 0.0, "seed": 0}
            run = make_run({**fixed, **settings}, stored)
            policy: Any = local
            if scripted:
                dialect = get_dialect(run.memory.dialect, run.memory.templates)
                expert = Expert(get_prose("compact"), dialect)
                policy = ExpertPolicy(expert, local.tokenizer, local.tokenizer.eos_token_id)
            agent = build_agent(run, policy, tokenizer=local.tokenizer)
            runner = Runner(agent, max_in_flight=256)
            place = out / arm.replace(" ", "_") / column.name.replace(" ", "_")
            result = asyncio.run(evaluate(tasks, runner, place, progress=False))
            found[column.name][arm] = result.records
    return found


def train_from(first: Path, folder: Path, seed: int, recipe: Recipe) -> None:
    """Train by GRPO from the cold start of `first`, unless the result exists."""
    if not (folder / "grpo" / "model.safetensors").is_file():
        load_demo(first / "cold_start", replace(recipe, heldout=1), folder, seed).grpo()


def run_parallel(
    processes: int, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """Return the results of all calls, made in several processes."""
    if processes == 1:
        return [function(*call) for call in calls]
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        return [future.result() for future in [pool.submit(function, *call) for call in calls]]


def as_samples(runs: Sequence[Mapping[str, Records]]) -> Arms:
    """Join the records of several training seeds as samples."""
    return {
        arm: [replace(one, sample=seed) for seed, run in enumerate(runs) for one in run[arm]]
        for arm in runs[0]
    }


def em(records: Records) -> float:
    """Return the mean over records; failed ones have no score."""
    return fmean(score for record in records for score in record.scores("em"))


class ArmComparison:
    """The arms of one column, over all training seeds.

    The first `chosen` tasks select the best "own" and the best "writes" arm, and enter no figure.
    """

    def __init__(self, arms: Arms, chosen: int) -> None:
        first = {arm: [one for one in of if _number(one) < chosen] for arm, of in arms.items()}
        self.arms = {arm: [one for one in of if _number(one) >= chosen] for arm, of in arms.items()}
        if not all(self.arms.values()) or not all(first.values()):
            raise ConfigError(f"n: must be more than {chosen}, the tasks that select the rule.")
        self.own, self.rule = (
            max(self._rules(kind), key=lambda arm: em(first[arm])) for kind in ("own", "writes")
        )

    def _rules(self, kind: str) -> list[str]:
        return [arm for arm in self.arms if arm.startswith(kind) and arm != ORACLE]

    def against_rules(self) -> dict[str, Any]:
        """Test claim 1: the learned policy against every rule on its own writes."""
        rules = self._rules("writes")
        tests = {arm: compare(self.arms[arm], self.arms[self.own]) for arm in rules}
        corrected = dict(zip(rules, holm([tests[arm].p_value for arm in rules]), strict=True))
        found = tests[self.rule].difference
        own = em(self.arms[self.own])
        return {
            "own": self.own,
            "own_em": own,
            "rule": self.rule,
            "rule_em": em(self.arms[self.rule]),
            "difference": 0.0 if found is None else found.difference,
            "interval": None if found is None else (found.low, found.high),
            "p_holm": corrected[self.rule],
            "not_beaten": [
                arm for arm in rules if em(self.arms[arm]) + LEAST > own or corrected[arm] >= 0.01
            ],
        }

    def gap_closed(self) -> dict[str, Any]:
        """Test claim 2: (own - best rule) / (oracle - best rule), with a bootstrap interval."""
        by_task = [_by_task(self.arms[arm]) for arm in (self.own, self.rule, ORACLE)]
        tasks = [task for task in by_task[0] if all(task in of for of in by_task)]
        scores = np.array([[fmean(of[task]) for task in tasks] for of in by_task])
        drawn = np.random.default_rng(0).integers(len(tasks), size=(2000, len(tasks)))
        own, rule, oracle = scores[:, drawn].mean(axis=2)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = (own - rule) / (oracle - rule)
        shares = shares[np.isfinite(shares)]
        low, high = np.quantile(shares, (0.025, 0.975)) if len(shares) else (np.nan, np.nan)
        means = scores.mean(axis=1)
        gap = float(means[2] - means[1])
        found: dict[str, Any] = {"oracle_em": float(means[2]), "gap": gap, "share": None}
        if gap > 0:
            found |= {"share": float((means[0] - means[1]) / gap)}
            found |= {"share_interval": (float(low), float(high))}
        return found

    def spread(self) -> dict[str, Any]:
        """Test claim 4: how far any arm is from the learned policy."""
        others = [arm for arm in self.arms if arm != self.own]
        tests = [compare(self.arms[self.own], self.arms[arm]) for arm in others]
        gaps = {arm: em(self.arms[arm]) - em(self.arms[self.own]) for arm in others}
        farthest = max(others, key=lambda arm: abs(gaps[arm]))
        return {
            "own_em": em(self.arms[self.own]),
            "farthest": farthest,
            "difference": gaps[farthest],
            "least_p_holm": min(holm([test.p_value for test in tests])),
        }

    def figures(self, world: str) -> dict[str, Any]:
        """Return all figures of a column."""
        own = self.arms[self.own]
        seeds = sorted({one.sample for one in own})
        by_seed = [em([one for one in own if one.sample == seed]) for seed in seeds]
        claims = self.spread() if world == "spare" else self.against_rules() | self.gap_closed()
        rows = {arm: round(em(of), 4) for arm, of in self.arms.items()}
        return claims | {"rows": rows, "n": len(own), "own_by_seed": by_seed}


def near_specialist(general: Records, special: Records, chosen: int) -> dict[str, Any]:
    """Test claim 3: one policy for all capacities against the specialist, on the same tasks."""
    general, special = (
        [one for one in records if _number(one) >= chosen] for records in (general, special)
    )
    found = compare(special, general).difference
    assert found is not None
    return {
        "general_em": em(general),
        "special_em": em(special),
        "difference": found.difference,
        "interval": (found.low, found.high),
        "within": found.difference >= -NEAR,
    }


def verdicts(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether claims 1 to 4 hold, and the control's bar."""
    announced = {name: part for name, part in found.items() if name.startswith("announced")}
    spare = {name: part["policy"] for name, part in found.items() if name.startswith("spare")}
    shares = {name: part["policy"]["share"] for name, part in announced.items()}
    special = {name: part["specialist"] for name, part in announced.items() if "specialist" in part}
    control = {name: part["own_by_seed"] for name, part in spare.items()}
    return {
        "claim_1": {
            name: part["policy"]["difference"] >= LEAST and part["policy"]["p_holm"] < 0.01
            for name, part in found.items()
            if name not in spare
        },
        "claim_2": {name: share is not None and share >= CLOSED for name, share in shares.items()},
        "claim_3": {name: part["within"] for name, part in special.items()},
        "claim_4": {name: part["least_p_holm"] > 0.05 for name, part in spare.items()},
        "control_em": control,
        "holds": bool(spare) and all(min(of) >= 0.9 for of in control.values()),
    }


def format_em(found: Mapping[str, Any]) -> str:
    """Format EM in percent of every arm, a column for each world and capacity."""
    tables = []
    for writer in ("policy", "scripted"):
        columns = {name: part[writer]["rows"] for name, part in found.items()}
        arms = next(iter(columns.values()))
        rows = [[arm, *(100 * of[arm] for of in columns.values())] for arm in arms]
        tables.append(Table(f"EM, {writer}", [writer, *columns], rows, 1).markdown())
    return "\n".join(tables)


def _number(record: EpisodeRecord) -> int:
    return int(record.task_id.rpartition("-")[2])


def _by_task(records: Records) -> dict[str, list[float]]:
    scores: dict[str, list[float]] = {}
    for record in records:
        if found := list(record.scores("em")):
            scores.setdefault(record.task_id, []).extend(found)
    return scores

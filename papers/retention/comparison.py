"""The comparison of rules on synthetic worlds, with policies of several training seeds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from atommem.config import EmbedderConfig
from atommem.dialects import get_dialect
from atommem.embedding import make_embedder
from atommem.envs.scoring.records import EpisodeRecord
from atommem.envs.synthetic.expert import Expert
from atommem.envs.synthetic.expert_policy import ExpertPolicy
from atommem.envs.synthetic.prose import get_prose
from atommem.envs.synthetic.world import generate
from atommem.envs.task import Task
from atommem.envs.task_files import write_text
from atommem.eval.output import SUMMARY
from atommem.eval.reporting.evaluations import Evaluation, read_evaluation
from atommem.eval.reporting.report_cli import write_report
from atommem.eval.runner import Budget, evaluate
from atommem.eval.suite import Suite, SuiteRun, expand, load_columns, slug
from atommem.eval.suite_cli import run_all
from atommem.policy.local import LocalPolicy
from atommem.rollout import EpisodeRunner
from atommem.run import build_agent
from papers.retention.claims import Column, mean_em, near_specialist
from papers.retention.fitting import fit, save
from papers.retention.streams import embed_streams, labelled, needs_of

SCRIPTED = "scripted"
_OTHER_TASKS = 1000
"""Added to a column's seed: the tasks that the scorer is fitted on."""


class Comparison:
    """A suite on policies of several training seeds; every part resumes.

    Args:
        suite: Its columns set a capacity, in which their names end.
        policies: A checkpoint for each training seed.
        out: Folder for everything.
        chosen: The first tasks of a column, which select the best rule and enter no figure.
    """

    def __init__(self, suite: Suite, policies: Sequence[Path], out: Path, chosen: int) -> None:
        self.suite, self.policies, self.out, self.chosen = suite, policies, out, chosen
        self._tasks = load_columns(suite.columns, suite.environment, out / "data")

    def prepare(self) -> None:
        """Write `linear.json` and `needs.json` for the fitted scorer and the oracle."""
        needs: dict[str, dict[str, int]] = {}
        others: list[Task] = []
        for column in self.suite.columns:
            needs |= needs_of(self._tasks[column.key])
            if column.world is not None:
                others += generate(column.world, self.chosen, column.seed + _OTHER_TASKS)
        write_text(self.out / "needs.json", json.dumps(needs))
        embedder = make_embedder(EmbedderConfig(embedder="hashing"))
        save(fit(asyncio.run(embed_streams(labelled(others), embedder))), self.out / "linear.json")

    def run(
        self,
        policy: Path,
        out: Path,
        rows: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        """Run rows on columns (unset: all) with one policy."""
        suite = self.suite.select(columns, rows).with_policies({})
        runs = self._expand(suite, policy, out)
        asyncio.run(run_all(runs, self._tasks, Budget()))

    def run_scripted(self) -> None:
        """The scripted writer through the suite."""
        asyncio.run(self._scripted())

    async def _scripted(self) -> None:
        """Run a faultless script as writer, which writes the same under every rule."""
        tokenizer = LocalPolicy.from_pretrained(self.policies[0]).tokenizer
        suite = self.suite.with_policies({})
        for item in self._expand(suite, self.policies[0], self.out / SCRIPTED):
            run = item.evaluation.run
            memory = run.memory
            sampling = replace(run.sampling, temperature=0.0)
            dialect = get_dialect(memory.dialect, memory.templates)
            expert = Expert(get_prose("compact"), dialect)
            policy = ExpertPolicy(expert, tokenizer, tokenizer.eos_token_id)
            agent = build_agent(replace(run, sampling=sampling), policy, tokenizer=tokenizer)
            most = item.evaluation.policy.max_in_flight
            runner = EpisodeRunner(agent, max_in_flight=most)
            await evaluate(self._tasks[item.column.key], runner, item.folder, progress=False)

    def _expand(self, suite: Suite, policy: Path, out: Path) -> list[SuiteRun]:
        return expand(suite, ["--policy", str(policy), "--max_in_flight", "256"], out)

    def evaluations(self, column: str, folders: Sequence[str]) -> dict[str, list[Evaluation]]:
        """What there is of a column, by row: one evaluation for each of these folders of `out`."""
        found: dict[str, list[Evaluation]] = {}
        for row in self.suite.rows:
            name, _, entries = column.rpartition(" ")
            for seed, folder in enumerate(folders):
                cell = (
                    self.out
                    / folder
                    / "runs"
                    / row.key
                    / slug(column)
                    / f"seed_{self.suite.seeds[0]}"
                )
                if (cell / SUMMARY).is_file():
                    each = read_evaluation(
                        cell,
                        row.method,
                        name,
                        seed=seed,
                        setting=f"{row.label}, {entries} entries",
                        parameters={"entries": int(entries), "arm": row.label},
                    )
                    found.setdefault(row.name, []).append(each)
        return found

    def claims(self) -> dict[str, Any]:
        """Return claims 1 to 4 with their figures, by complete column and by world."""
        seeds = [f"seed_{number}" for number in range(len(self.policies))]
        found: dict[str, Any] = {}
        together: dict[tuple[str, str], dict[str, list[EpisodeRecord]]] = {}
        for column in self.suite.columns:
            for writer, folders in (("policy", seeds), (SCRIPTED, [SCRIPTED])):
                arms = self.evaluations(column.name, folders)
                if len(arms) < len(self.suite.rows) or any(
                    len(of) < len(folders) for of in arms.values()
                ):
                    continue
                of = {row: records(items) for row, items in arms.items()}
                found.setdefault(column.name, {})[writer] = self._tested(column.name, of)
                world = f"{column.name.rpartition(' ')[0]} all"
                for row, every in of.items():
                    together.setdefault((world, writer), {}).setdefault(row, []).extend(every)
            special = self.evaluations(column.name, ["special"])
            if special and column.name in found:
                of_first = self.evaluations(column.name, seeds[:1])
                (row,) = special
                pair = records(of_first[row]), records(special[row])
                found[column.name]["specialist"] = near_specialist(*pair, self.chosen) | {
                    "row": row
                }
        for (world, writer), of in together.items():
            found.setdefault(world, {})[writer] = self._tested(world, of)
        return found

    def _tested(self, name: str, arms: dict[str, list[EpisodeRecord]]) -> dict[str, Any]:
        column = Column(arms, self.chosen)
        part = (
            column.spread()
            if name.startswith("spare")
            else column.against_rules() | column.gap_closed()
        )
        rows = {row.removeprefix("atommem, "): round(column.em(row), 4) for row in arms}
        by_seed = [
            round(mean_em([each for each in arms[column.own] if each.sample == seed]), 4)
            for seed in sorted({each.sample for each in arms[column.own]})
        ]
        return part | {
            "rows": rows,
            "n": len(column.arms[column.own]),
            "own_by_seed": by_seed,
            "costs": column.costs(),
        }

    def write_page(self, rows: Sequence[str]) -> Path:
        """Write the report with curves over capacity and lost answers."""
        seeds = [f"seed_{number}" for number in range(len(self.policies))]
        shown = [
            item
            for column in self.suite.columns
            for row, items in self.evaluations(column.name, seeds).items()
            if row in rows
            for item in items
        ]
        write_report(shown, self.out / "report", title=self.suite.title)
        return self.out / "report" / "report.html"


def records(items: Sequence[Evaluation]) -> list[EpisodeRecord]:
    """Return the records of training seeds as samples; columns' tasks stay apart."""
    return [
        replace(record, sample=seed)
        for seed, item in enumerate(items)
        for record in item.paired_records()
    ]

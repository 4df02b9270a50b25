"""One function a table: published beside ours, and the statements that are held to it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from papers.regagent.followers import copying_follower, ridge_follower
from papers.regagent.runs import Runs, errors, following, size, success
from papers.regagent.stream import Deletion, Limited, frozen_success
from papers.regagent.world import make_world
from papers.report import Report, Table

CHAIN = ("add all", "C1", "C2", "C3", "strict")
DELETIONS: tuple[Deletion, ...] = ("none", "periodic", "history", "combined")


def additions(report: Report, runs: Runs) -> None:
    """Table 1."""
    runs.progress("regagent: Table 1")
    published = runs.paper["table1"]
    rows: list[list[Any]] = []
    apart, ratios = [], []
    for name, row in published.items():
        found = runs.of(runs.rules(name))
        spread = [outcome.success for outcome in found]
        rows.append(
            [
                name,
                row["success"],
                row["size"],
                row.get("r"),
                success(found),
                f"{min(spread):.1f} to {max(spread):.1f}",
                round(size(found)),
                following(found),
            ]
        )
        apart.append(abs(success(found) - row["success"]))
        ratios.append(abs(size(found) / row["size"] - 1))
    columns = [
        "records added",
        "success",
        "size",
        "r",
        "success, ours",
        "over seeds",
        "size, ours",
        "r, ours",
    ]
    report.tables.append(
        Table(f"Table 1, published and ours (mean of {len(runs.seeds)} seeds)", columns, rows, 2)
    )
    chains = [
        all(a < b for a, b in pairwise(chain))
        for chain in zip(
            *([o.success for o in runs.of(runs.rules(name))] for name in CHAIN), strict=True
        )
    ]
    report.check(
        " < ".join(CHAIN),
        all(chains) and len(chains) >= 5,
        f"{sum(chains)} of {len(chains)} seeds",
        "5 of 5",
    )
    report.check(
        "success, points from Table 1", max(apart) <= 3, f"at most {max(apart):.2f}", "at most 3"
    )
    report.check(
        "sizes, share of Table 1's",
        max(ratios) <= 0.03,
        f"at most {max(ratios):.1%} off",
        "at most 3% off",
    )
    first = {"weight_sd": runs.paper["first_world"]["weight_sd"]}
    worlds = [
        make_world(seed, {**runs.paper["world"], **first}, runs.paper["initial"], runs.tasks)
        for seed in runs.seeds
    ]
    other = [
        [name, published[name]["success"], success(found), round(size(found))]
        for name in published
        if (found := runs.with_follower(runs.rules(name), runs.follower, worlds))
    ]
    title = "With w from N(0, .16 I), where the difficulty depends on the seed"
    report.tables.append(
        Table(title, ["records added", "success", "success, ours", "size, ours"], other, 2)
    )


def deletions(report: Report, runs: Runs) -> None:
    """Table 2, and the errors of what was kept and deleted (Figure 6)."""
    runs.progress("regagent: Table 2")
    rows: list[list[Any]] = []
    ratios, above = [], []
    for name, cells in runs.paper["table2"].items():
        for deletion in DELETIONS:
            found = runs.of(runs.rules(name, deletion=deletion))
            kept, gone = errors(found, "retained"), errors(found, "deleted")
            rows.append(
                [
                    f"{name}, {deletion}",
                    *cells[deletion],
                    success(found),
                    round(size(found)),
                    kept,
                    gone,
                ]
            )
            if deletion == "history":
                ratios.append(abs(size(found) / cells[deletion][1] - 1))
                above.append(bool(kept is not None and gone is not None and gone > kept))
    columns = [
        "added, deleted by",
        "success",
        "size",
        "success, ours",
        "size, ours",
        "error retained",
        "error deleted",
    ]
    report.tables.append(
        Table(
            "Table 2, published and ours; mean error of records retrieved more than 5 times",
            columns,
            rows,
            2,
        )
    )
    report.check(
        "history sizes, share of Table 2's",
        max(ratios) <= 0.1,
        f"at most {max(ratios):.1%} off",
        "at most 10% off",
    )
    report.check(
        "error of the deleted above the retained (history)", all(above), above, "C1 and strict"
    )


def neighbours(report: Report, runs: Runs) -> None:
    """Table 5: K."""
    runs.progress("regagent: Tables 5 and 6")
    rows: list[list[Any]] = []
    for name, cells in runs.paper["table5"].items():
        for k, (published, r) in cells.items():
            found = runs.of(runs.rules(name, k=k))
            rows.append([f"{name}, K {k}", published, r, success(found), following(found)])
    report.tables.append(
        Table("Table 5, K", ["", "success", "r", "success, ours", "r, ours"], rows, 2)
    )


def history_settings(report: Report, runs: Runs) -> None:
    """Table 6: n, beta and the period, all with strict additions."""
    table = runs.paper["table6"]
    rows: list[list[Any]] = []
    settings: tuple[tuple[str, Deletion], ...] = (
        ("n", "history"),
        ("beta", "history"),
        ("period", "periodic"),
    )
    for setting, deletion in settings:
        for value, published in table[setting].items():
            found = runs.of(runs.rules("strict", deletion=deletion, **{setting: value}))
            printed = published if isinstance(published, list) else [published, None, None]
            kept, gone = errors(found, "retained"), errors(found, "deleted")
            rows.append(
                [f"{setting} {value:g}", *printed, success(found), kept, gone, round(size(found))]
            )
    columns = [
        "strict",
        "success",
        "error retained",
        "deleted",
        "success, ours",
        "error retained, ours",
        "deleted, ours",
        "size, ours",
    ]
    report.tables.append(Table("Table 6, history's n and beta, the period", columns, rows, 2))


def size_matched(report: Report, runs: Runs) -> None:
    """Table 7: the same number of records from both final memories, frozen, on new tasks."""
    runs.progress("regagent: Table 7")
    rows: list[list[Any]] = []
    count = runs.paper["frozen"]
    for deletion, published in runs.paper["table7"].items():
        found = runs.of(runs.rules("strict", deletion=deletion))
        scores = [
            frozen_success(
                world.fresh(seed, count, runs.paper["world"]),
                runs.follower,
                outcome.records,
                count,
                runs.paper["k"],
            )
            for seed, world, outcome in zip(runs.seeds, runs.worlds, found, strict=True)
        ]
        rows.append([f"strict, {deletion}", published, float(np.mean(scores))])
    report.tables.append(
        Table(f"Table 7, {count} most retrieved records, frozen", ["", "success", "ours"], rows, 2)
    )


def copy_strength(report: Report, runs: Runs) -> None:
    """Success against how much the agent copies: what the paper's order depends on."""
    runs.progress("regagent: copy strength")
    settings = runs.paper["follower"]
    arms = [
        (f"copies by {strength:.1f}", copying_follower(settings, strength))
        for strength in np.linspace(0, 1, 6)
    ]
    arms += [
        ("by similarity (fitted)", runs.follower),
        ("ridge regression on the records", ridge_follower(settings)),
    ]
    rows: list[list[Any]] = []
    gaps = []
    for label, follower in arms:
        found = {name: runs.with_follower(runs.rules(name), follower) for name in ("fixed", *CHAIN)}
        scores = [success(found[name]) for name in ("fixed", *CHAIN)]
        gaps.append(scores[-1] - scores[1])
        rows.append([label, *scores, gaps[-1], following(found["add all"])])
    title = "Success by how much of the answer is the first record's output"
    report.tables.append(
        Table(title, ["agent", "fixed", *CHAIN, "strict - add all", "r, add all"], rows, 1)
    )
    strengths = np.linspace(0, 1, 6)
    points: list[list[Any]] = []
    for model, (low, high) in runs.paper["models"].items():
        gap = high - low
        inside = min(gaps[:6]) <= gap <= max(gaps[:6])
        place = (
            float(np.interp(gap, np.maximum.accumulate(gaps[:6]), strengths)) if inside else None
        )
        points.append([model, low, high, gap, place])
    columns = [
        "published model",
        "add all",
        "strict",
        "strict - add all",
        "copy strength with that gap",
    ]
    report.tables.append(
        Table("The paper's models on that curve, by their gap", columns, points, 2)
    )


def under_a_limit(report: Report, runs: Runs) -> None:
    """Compare the resource-constrained deletion of section 5.2 with rules of one line."""
    runs.progress("regagent: under a limit")
    rows: list[list[Any]] = []
    by: tuple[Limited, ...] = ("constrained", "failures_first", "fifo", "random")
    for limit in (runs.paper["initial"], 1000):
        for name in ("add all", "C1", "strict"):
            cells: list[Any] = [f"{name}, at most {limit}"]
            for limited in by:
                deletion: Deletion = "periodic" if limited == "constrained" else "none"
                rules = runs.rules(name, limit=limit, limited_by=limited, deletion=deletion)
                cells.append(success(runs.of(rules)))
            rows.append(cells)
    columns = [
        "added",
        "periodic, then lowest utility",
        "failures first, then oldest",
        "oldest",
        "random",
    ]
    report.tables.append(
        Table("Success under a limit (ours: the paper has it for other agents)", columns, rows, 1)
    )


def variants(report: Report, runs: Runs) -> None:
    """Where the paper is ambiguous, or its code does something else."""
    runs.progress("regagent: variants")
    shifted = [world.in_order() for world in runs.worlds]
    at_least = runs.rules("strict", deletion="history", n=runs.paper["n"] - 1)
    arms = [
        ("strict", runs.rules("strict"), None),
        ("strict, stored outputs replaced by the truth", runs.rules("strict", truth=True), None),
        ("add all, stored outputs replaced by the truth", runs.rules("add all", truth=True), None),
        (
            "strict, history, one record a step (AgentDriver's code)",
            runs.rules("strict", deletion="history", sliding=True),
            None,
        ),
        ("strict, history, at least n retrievals (text, code)", at_least, None),
        ("strict, component after component", runs.rules("strict"), shifted),
        (
            "strict, periodic, component after component",
            runs.rules("strict", deletion="periodic"),
            shifted,
        ),
        ("add all, component after component", runs.rules("add all"), shifted),
    ]
    rows: list[list[Any]] = []
    for label, rules, worlds in arms:
        found = (
            runs.of(rules) if worlds is None else runs.with_follower(rules, runs.follower, worlds)
        )
        rows.append([label, success(found), round(size(found)), following(found)])
    report.tables.append(Table("Variants", ["", "success", "size", "r"], rows, 2))

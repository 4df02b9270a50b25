"""Compare retention rules at equal capacity: fit|turns|worlds."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from atommem.config import EmbedderConfig
from atommem.demo.recipe import BOUNDED, quick
from atommem.embedding import make_embedder
from atommem.errors import ConfigError
from atommem.files import write_json
from papers.experiment import run_safely
from papers.inputs import default_embedder_model
from papers.retention import worlds
from papers.retention.rules import RULE_PATHS
from papers.retention.streams import Embedded, Stream, embed_streams, read_streams
from papers.retention.table import (
    CAPACITIES,
    ORACLE,
    UNLIMITED,
    Table,
    fill,
    fit,
    markdown,
    save,
)

TOLERANCE, MAX_SECONDS = 0.02, 120.0
REFERENCE = {
    "fifo": "014/020/012 072/094/058 151/210/111 292/390/189",
    "reject": "033/076/040 085/155/080 167/261/121 327/437/199",
    "type_prior": "031/046/031 072/110/062 138/214/110 297/454/198",
    "redundancy": "038/057/041 095/155/089 182/294/155 350/499/236",
    "length": "073/150/089 200/330/191 325/487/255 584/722/377",
    "linear": "108/181/118 244/373/230 441/607/350 662/794/437",
    ORACLE: "222/348/250 458/619/409 744/832/517 1000/1000/560",
}
"""Independent figures in thousandths, by capacity: all / any evidence kept / evidence recall."""
UNLIMITED_RECALL = 0.423


def main(argv: Sequence[str] | None = None) -> int:
    """Run a part; returns 1 if a bar is missed."""
    args = make_parser().parse_args(argv)
    return run_safely("retention", lambda: int(args.run(args)))


def make_parser() -> argparse.ArgumentParser:
    """Define the three parts."""
    parser = argparse.ArgumentParser(prog="python -m papers.retention", description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True, metavar="fit|turns|worlds")

    def add_part(name: str, run: Any, summary: str) -> argparse.ArgumentParser:
        part = parts.add_parser(name, help=summary, description=summary)
        part.set_defaults(run=run)
        return part

    part = add_part("fit", run_fit, "Fit the linear scorer on texts labelled as needed.")
    part.add_argument("--exclude", nargs="*", default=(), help="Streams held out.")
    part.add_argument("--with_embedding", action="store_true", help="Use vectors too.")
    part.add_argument("data", type=Path, help="LoCoMo, or rows with stream, text and needed.")
    part.add_argument("--embedder", default="sentence_transformer")
    part.add_argument("--embedder_model", help="Unset: MiniLM.")
    part.add_argument("--out", type=Path, help="JSON file.", required=True)
    part = add_part("turns", run_turns, "Compare the table on LoCoMo with independent figures.")
    part.add_argument("--data", type=Path, required=True, help="LoCoMo's locomo10.json.")
    part.add_argument("--embedder_model")
    part = add_part("worlds", run_worlds, "Test claims 1 to 4: trained policies against rules.")
    part.add_argument("--output_dir", type=Path, default=Path("runs/retention"))
    part.add_argument("--seeds", type=int, default=3, help="Number of trained policies.")
    part.add_argument("--n", type=int, default=300, help="Tasks a column; a third selects rules.")
    part.add_argument("--capacities", type=int, nargs="+", default=[2, 3, 5, 8, 20])
    part.add_argument("--processes", type=int, default=os.cpu_count())
    binding = "Train on tasks with as many facts as the store holds or more; no specialists."
    part.add_argument("--binding", action="store_true", help=binding)
    part.add_argument("--updates", type=int, default=BOUNDED.updates, help="%(default)s.")
    part.add_argument("--quick", action="store_true", help="The shortest form, as a smoke test.")
    return parser


def embed(streams: Sequence[Stream], embedder: str, model: str | None) -> list[Embedded]:
    """Embed streams; the default model is MiniLM."""
    config = EmbedderConfig(embedder, model or default_embedder_model())
    return asyncio.run(embed_streams(streams, make_embedder(config)))


def run_fit(args: argparse.Namespace) -> int:
    """Fit weights for the rule `Linear`."""
    streams = embed(read_streams(args.data), args.embedder, args.embedder_model)
    names = {item.stream.name for item in streams}
    if unknown := set(args.exclude) - names:
        wrong, known = " ".join(sorted(unknown)), ", ".join(sorted(names))
        raise ConfigError(f"exclude={wrong}: not a stream. Choose from {known}.")
    chosen = [item for item in streams if item.stream.name not in args.exclude]
    weights = fit(chosen, embedding=args.with_embedding)
    save(weights, args.out)
    print(json.dumps({name: value for name, value in weights.items() if name != "vector"}))
    print(f'use it: --retention "{RULE_PATHS["linear"]}(weights={args.out})"')
    return 0


def run_turns(args: argparse.Namespace) -> int:
    """Fill the table on LoCoMo's turns and compare it with `REFERENCE`."""
    streams = embed(read_streams(args.data), "sentence_transformer", args.embedder_model)
    start = time.process_time()
    table = asyncio.run(fill(streams))
    seconds = time.process_time() - start
    print(markdown(table))
    above_oracle = [
        f"{name} at {column}"
        for name, row in table.items()
        for column, cell in row.items()
        if name != UNLIMITED and cell.references > table[ORACLE][column].references
    ]
    largest = differences(table)
    beyond = [name for name, value in largest.items() if value > TOLERANCE]
    result = {
        "cpu_seconds": round(seconds, 1),
        "questions": sum(len(item.stream.questions) for item in streams),
        "largest_difference": largest,
        "above_oracle": above_oracle,
        "beyond": beyond,
        "holds": not beyond and not above_oracle and seconds <= MAX_SECONDS,
    }
    print(json.dumps(result))
    return 0 if result["holds"] else 1


def differences(table: Table) -> dict[str, float]:
    """Return each row's largest difference from the reference."""
    found = {UNLIMITED: abs(table[UNLIMITED]["all"].recall - UNLIMITED_RECALL)}
    for name, cells in REFERENCE.items():
        found[name] = max(
            abs(ours - int(theirs) / 1000)
            for cell, capacity in zip(cells.split(), CAPACITIES, strict=True)
            for ours, theirs in zip(
                table[name][str(capacity)].figures, cell.split("/"), strict=True
            )
        )
    return {name: round(value, 4) for name, value in found.items()}


def run_worlds(args: argparse.Namespace) -> int:
    """Train, fit, evaluate every seed, and test the claims; resumes in ``--output_dir``."""
    if args.quick:
        args.seeds, args.n, args.capacities, args.processes = 1, 6, [2], 1
    out: Path = args.output_dir.absolute()
    first, chosen, columns = out / "policy_0", args.n // 3, worlds.make_columns(args.capacities)
    out /= "binding" if args.binding else ""
    if not (first / "summary.json").is_file():
        words = ["demo", "--bounded", "--output_dir", str(first), *["--quick"] * args.quick]
        subprocess.run([sys.executable, "-m", "atommem.cli", *words], check=True)
    recipe = quick(BOUNDED) if args.quick else replace(BOUNDED, updates=args.updates)
    recipe = replace(recipe, binding=args.binding)
    trained = {out / f"policy_{seed}": (seed, recipe) for seed in range(args.seeds)}
    special = [] if args.binding else args.capacities
    for capacity in special:
        own = replace(recipe, settings={"capacities": (str(capacity),)})
        trained[out / f"specialist_{capacity}"] = (0, own)
    calls = [(first, folder, *how) for folder, how in trained.items()]
    worlds.run_parallel(args.processes, worlds.train_from, calls)
    worlds.fit_linear(columns, chosen, out / "linear.json")
    arms = worlds.make_arms(out / "linear.json")
    runs: list[tuple[Any, ...]] = [
        (out / f"policy_{seed}" / "grpo", out / f"seed_{seed}", columns, arms, args.n)
        for seed in range(args.seeds)
    ]
    runs.append((first / "grpo", out / "scripted", columns, arms, args.n, True))
    for capacity in special:
        column = worlds.Column("announced", capacity)
        own_arm = {worlds.OWN: arms[worlds.OWN]}
        folder = out / f"specialist_{capacity}" / "grpo"
        runs.append((folder, out / "special", [column], own_arm, args.n))
    results = worlds.run_parallel(args.processes, worlds.run_arms, runs)
    policies, (scripted, *specials) = results[: args.seeds], results[args.seeds :]
    found: dict[str, Any] = {}
    for writer, of in (("policy", policies), ("scripted", [scripted])):
        together: dict[str, worlds.Arms] = {}
        for column in columns:
            records = worlds.as_samples([run[column.name] for run in of])
            figures = worlds.ArmComparison(records, chosen).figures(column.world)
            found.setdefault(column.name, {})[writer] = figures
            for arm, every in records.items():
                together.setdefault(column.world, {}).setdefault(arm, []).extend(every)
        for world, records in together.items():
            figures = worlds.ArmComparison(records, chosen).figures(world)
            found.setdefault(f"{world} all", {})[writer] = figures
    for result in specials:
        ((name, records),) = result.items()
        pair = policies[0][name][worlds.OWN], records[worlds.OWN]
        found[name]["specialist"] = worlds.near_specialist(*pair, chosen)
    write_json(out / "claims.json", found)
    print(worlds.format_em(found))
    print(f"every figure: {out / 'claims.json'}")
    verdict = worlds.verdicts(found)
    print(json.dumps(verdict))
    return 0 if verdict["holds"] else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Compare retention rules at equal capacity: fit|table|turns|worlds."""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from atommem.config import EmbedderConfig
from atommem.demo.recipe import BOUNDED, Recipe, quick
from atommem.embedding import make_embedder
from atommem.envs.task_files import write_json
from atommem.errors import ConfigError, check_writable
from atommem.eval.suite import load_suite
from papers.cli import print_progress, run_safely
from papers.inputs import default_embedder_model
from papers.journal import resumable, settings_of
from papers.retention.claims import CLOSED, LEAST
from papers.retention.comparison import Comparison
from papers.retention.fitting import fit, save
from papers.retention.streams import Embedded, Stream, embed_streams, read_streams
from papers.retention.table import (
    ALL_READ,
    CAPACITIES,
    ORACLE,
    RULES,
    UNLIMITED,
    Cell,
    draw_random,
    fill,
    markdown,
)
from papers.training import load_demo

TOLERANCE, MAX_SECONDS = 0.02, 120.0
REFERENCE = {
    "fifo": "014/020/012 072/094/058 151/210/111 292/390/189",
    "reject": "033/076/040 085/155/080 167/261/121 327/437/199",
    "random": "027/046/030 049/091/054 121/215/104 255/402/183",
    "type_prior": "031/046/031 072/110/062 138/214/110 297/454/198",
    "redundancy": "038/057/041 095/155/089 182/294/155 350/499/236",
    ALL_READ[0]: "053/108/060 110/210/107 208/348/167 426/577/268",
    "length": "073/150/089 200/330/191 325/487/255 584/722/377",
    "linear": "108/181/118 244/373/230 441/607/350 662/794/437",
    ALL_READ[1]: "098/168/112 236/368/229 397/559/310 676/796/418",
    ORACLE: "222/348/250 458/619/409 744/832/517 1000/1000/560",
}
"""Independent figures in thousandths, by capacity: all / any evidence kept / evidence recall."""
UNLIMITED_RECALL = 0.423
RANDOM, DRAWS, MAX_DEVIATIONS = "random", 40, 3.0
"""The reference's random row is one draw; it may lie 3 standard deviations from 40 of ours."""
SUITE = Path(__file__).with_name("suite.yaml")
OWN_ROW = "atommem, own reject"
CHARTED = (OWN_ROW, *(f"atommem, writes {rule}" for rule in ("fifo", "lru", "random", "oracle")))


def main(argv: list[str] | None = None) -> int:
    """Run a part; returns 1 if a bar is missed."""
    args = make_parser().parse_args(argv)
    check_writable("out", getattr(args, "out", None), folder=args.part == "worlds")
    return int(args.run(args))


def make_parser() -> argparse.ArgumentParser:
    """Define the four parts."""
    parser = argparse.ArgumentParser(prog="python -m papers.retention", description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True, metavar="fit|table|turns|worlds")
    for name, run, summary in (
        ("fit", run_fit, "Fit the linear scorer on texts labelled with how often they are needed."),
        ("table", run_table, "What each rule keeps at each capacity."),
    ):
        part = parts.add_parser(name, help=summary, description=summary)
        part.add_argument("data", type=Path, help="LoCoMo, or rows with stream, text and needed.")
        for item in fields(EmbedderConfig):
            if item.name in EMBEDDER_FLAGS:
                flag = f"--{item.name}"
                part.add_argument(flag, default=item.default, help=item.metadata["help"])
        part.add_argument("--out", type=Path, help="JSON file.", required=name == "fit")
        part.set_defaults(run=run)
        if name == "fit":
            part.add_argument("--exclude", nargs="*", default=(), help="Streams held out.")
            part.add_argument("--with_embedding", action="store_true", help="Use vectors too.")
            part.add_argument("--ridge", type=float, default=1.0, help="L2 penalty.")
        else:
            part.add_argument("--capacities", type=int, nargs="+", default=CAPACITIES)
            part.add_argument("--rules", nargs="+", default=RULES)
            part.add_argument("--cache", type=Path, default=Path("runs/retention"))
            part.add_argument("--equal", choices=("entries", "words"), default="entries")
    data = Path(os.environ.get("ATOMMEM_DATA", "../shared/data")) / "locomo" / "locomo10.json"
    part = parts.add_parser("turns", help="The table on LoCoMo against independent figures.")
    part.add_argument("--data", type=Path, default=data)
    part.add_argument("--embedder_model")
    part.add_argument("--quick", action="store_true", help="Synthetic turns, as a smoke test.")
    part.set_defaults(run=run_turns)
    part = parts.add_parser("worlds", help="Claims 1 to 4: trained policies against rules.")
    part.add_argument("--out", type=Path, default=Path("runs/retention"))
    part.add_argument("--seeds", type=int, default=3, help="Number of trained policies.")
    part.add_argument("--n", type=int, default=300, help="Tasks a column; a third selects rules.")
    part.add_argument("--capacities", type=int, nargs="+", default=[2, 3, 5, 8, 20])
    part.add_argument("--no_specialists", dest="specialists", action="store_false")
    part.add_argument("--processes", type=int, default=os.cpu_count())
    part.add_argument("--quick", action="store_true", help="The shortest form, as a smoke test.")
    part.set_defaults(run=run_worlds)
    return parser


EMBEDDER_FLAGS = ("embedder", "embedder_model", "embedder_url")


async def _embed(args: argparse.Namespace) -> list[Embedded]:
    config = EmbedderConfig(**{name: getattr(args, name) for name in EMBEDDER_FLAGS})
    return await embed_streams(read_streams(args.data), make_embedder(config))


def run_fit(args: argparse.Namespace) -> int:
    """Fit weights for ``--retention linear(weights=FILE)``."""
    streams = asyncio.run(_embed(args))
    names = {each.stream.name for each in streams}
    if unknown := set(args.exclude) - names:
        raise ConfigError(
            f"exclude={' '.join(sorted(unknown))}: not a stream. Choose of "
            f"{', '.join(sorted(names))}."
        )
    chosen = [each for each in streams if each.stream.name not in args.exclude]
    weights = fit(chosen, embedding=args.with_embedding, ridge=args.ridge)
    save(weights, args.out)
    print(json.dumps({name: value for name, value in weights.items() if name != "vector"}))
    print(f'use it: --retention "linear(weights={args.out})"')
    return 0


def run_table(args: argparse.Namespace) -> int:
    """Print the table for a file of streams."""
    with resumable(args.cache, "table", settings_of(args), print_progress) as journal:

        async def run() -> dict[str, dict[str, Cell]]:
            streams = await _embed(args)
            return await fill(
                streams, args.capacities, args.rules, equal=args.equal, journal=journal
            )

        table = asyncio.run(run())
    print("all evidence kept / any kept / evidence recall, means over questions\n")
    print(markdown(table))
    if args.out is not None:
        values = {name: {k: asdict(cell) for k, cell in row.items()} for name, row in table.items()}
        write_json(args.out, values)
    return 0


def run_turns(args: argparse.Namespace) -> int:
    """Fill the table on LoCoMo's turns and compare it with `REFERENCE`."""
    warnings.filterwarnings("ignore", message=".*no turn of the conversation")
    if args.quick:
        embedder = make_embedder(EmbedderConfig(embedder="hashing"))
        streams = asyncio.run(embed_streams(synthetic_streams(), embedder))
    else:
        model = args.embedder_model or default_embedder_model()
        embedder = make_embedder(EmbedderConfig(embedder_model=model))
        streams = asyncio.run(embed_streams(read_streams(args.data), embedder))
    start = time.process_time()
    table = asyncio.run(fill(streams))
    deviations = {} if args.quick else random_deviations(streams)
    seconds = time.process_time() - start
    print(markdown(table))
    above_oracle = [
        f"{name} at {column}"
        for name, row in table.items()
        for column, cell in row.items()
        if name != UNLIMITED and cell.references > table[ORACLE][column].references
    ]
    largest = {} if args.quick else differences(table)
    beyond = [name for name, value in largest.items() if value > TOLERANCE]
    if any(abs(value) > MAX_DEVIATIONS for row in deviations.values() for value in row):
        beyond.append(RANDOM)
    holds = not beyond and not above_oracle and seconds <= MAX_SECONDS
    result = {
        "cpu_seconds": round(seconds, 1),
        "questions": sum(len(each.stream.questions) for each in streams),
        "largest_difference": largest,
        "deviations_of_random": deviations,
        "above_oracle": above_oracle,
        "beyond": beyond,
        "holds": holds,
    }
    print(json.dumps(result))
    return 0 if holds else 1


def synthetic_streams() -> list[Stream]:
    """Make two small streams for the shortest form."""
    texts = tuple(
        f"in {1990 + i} Ann moved to {i} with her dog" if i % 3 == 0 else f"oh well {i}"
        for i in range(60)
    )
    evidence = tuple((place,) for place in range(0, 60, 3))
    questions = tuple(f"where did Ann move in {1990 + place}?" for (place,) in evidence)
    return [Stream(name, texts, questions, evidence) for name in ("one", "two")]


def _figures(cell: Cell) -> tuple[float, float, float]:
    return cell.all_kept, cell.any_kept, cell.recall


def _reference(name: str) -> list[list[float]]:
    return [[int(number) / 1000 for number in cell.split("/")] for cell in REFERENCE[name].split()]


def random_deviations(streams: list[Embedded]) -> dict[str, list[float]]:
    """Return the standard deviations of the reference's random draw, by capacity."""
    found = {}
    for capacity, wanted in zip(CAPACITIES, _reference(RANDOM), strict=True):
        drawn = np.array([_figures(cell) for cell in draw_random(streams, capacity, DRAWS)])
        mean, deviation = drawn.mean(axis=0), drawn.std(axis=0, ddof=1)
        off = (np.array(wanted) - mean) / np.maximum(deviation, 1e-9)
        found[str(capacity)] = [round(float(value), 2) for value in off]
    return found


def differences(table: dict[str, dict[str, Cell]]) -> dict[str, float]:
    """Return each row's largest difference from the reference."""
    found = {UNLIMITED: abs(table[UNLIMITED]["all"].recall - UNLIMITED_RECALL)}
    for name in REFERENCE.keys() - {RANDOM}:
        found[name] = max(
            abs(ours - theirs)
            for capacity, cell in zip(CAPACITIES, _reference(name), strict=True)
            for ours, theirs in zip(_figures(table[name][str(capacity)]), cell, strict=True)
        )
    return {name: round(value, 4) for name, value in found.items()}


def run_worlds(args: argparse.Namespace) -> int:
    """Train, fit, run the suite for each seed, and test the claims; resumes in ``--out``."""
    if args.quick:
        args.seeds, args.n, args.capacities, args.processes = 1, 6, [2], 1
    out: Path = args.out
    out.mkdir(parents=True, exist_ok=True)
    text = SUITE.read_text(encoding="utf-8")
    text = text.replace("runs/retention/", f"{out}/").replace("n: 300", f"n: {args.n}")
    (out / "suite.yaml").write_text(text, encoding="utf-8")
    suite = load_suite(out / "suite.yaml")
    columns = [
        column.name for column in suite.columns if int(column.name.split()[1]) in args.capacities
    ]
    recipe = quick(BOUNDED) if args.quick else BOUNDED
    first = run_demo(out, args.quick)
    trained = {out / f"policy_{seed}": (seed, recipe) for seed in range(1, args.seeds)}
    special = {
        capacity: out / f"specialist_{capacity}" for capacity in args.capacities if args.specialists
    }
    for capacity, folder in special.items():
        trained[folder] = (0, replace(recipe, settings={"capacities": (str(capacity),)}))
    runs = [(first, folder, seed, each) for folder, (seed, each) in trained.items()]
    run_parallel(args.processes, train_from, runs)
    policies = [out / f"policy_{seed}" / "grpo" for seed in range(args.seeds)]
    comparison = Comparison(suite.select(columns), policies, out, args.n // 3)
    comparison.prepare()
    evaluations: list[tuple[Any, ...]] = [
        (policy, out / f"seed_{seed}") for seed, policy in enumerate(policies)
    ]
    evaluations += [
        (folder / "grpo", out / "special", [OWN_ROW], [f"announced {capacity}"])
        for capacity, folder in special.items()
    ]
    run_parallel(args.processes, comparison.run, evaluations)
    comparison.run_scripted()
    page = comparison.write_page(CHARTED)
    found = comparison.claims()
    (out / "claims.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(format_em(found))
    print(f"{page}; every figure: {out / 'claims.json'}")
    result = verdicts(found)
    print(json.dumps(result))
    return 0 if result["holds"] else 1


def run_demo(out: Path, quick: bool) -> Path:
    """Run ``atommem demo --bounded`` with seed 0 unless its result exists."""
    folder = out / "policy_0"
    if not (folder / "summary.json").is_file():
        command = [sys.executable, "-m", "atommem.cli", "demo", "--bounded", "--out", str(folder)]
        subprocess.run([*command, *["--quick"] * quick], check=True)
    return folder


def train_from(first: Path, folder: Path, seed: int, recipe: Recipe) -> None:
    """Train by GRPO from the cold start of `first`, unless the result exists."""
    if not (folder / "grpo" / "model.safetensors").is_file():
        load_demo(first / "cold_start", replace(recipe, heldout=1), folder, seed).grpo()


def run_parallel(
    processes: int, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]
) -> None:
    """Make the calls in several processes."""
    if processes == 1:
        for call in calls:
            function(*call)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in [pool.submit(function, *call) for call in calls]:
            future.result()


def format_em(found: dict[str, Any]) -> str:
    """Format EM in percent of every arm, a column for each world and capacity."""
    lines = []
    for writer in ("policy", "scripted"):
        columns = {name: part[writer] for name, part in found.items() if writer in part}
        if columns:
            lines += [f"| {writer} | {' | '.join(columns)} |", f"| --- |{' --- |' * len(columns)}"]
            for row in next(iter(columns.values()))["rows"]:
                cells = " | ".join(f"{100 * part['rows'][row]:.1f}" for part in columns.values())
                lines.append(f"| {row} | {cells} |")
            lines.append("")
    return "\n".join(lines)


def verdicts(found: dict[str, Any]) -> dict[str, Any]:
    """Return whether claims 1 to 4 of docs/bounded_memory.md hold, and the control's bar."""
    announced = {name: part for name, part in found.items() if name.startswith("announced")}
    spare = {name: part["policy"] for name, part in found.items() if name.startswith("spare")}
    shares = {name: part["policy"]["share"] for name, part in announced.items()}
    result: dict[str, Any] = {
        "claim_1": {
            name: part["policy"]["difference"] >= LEAST and part["policy"]["p_holm"] < 0.01
            for name, part in found.items()
            if not name.startswith("spare")
        },
        "claim_2": {name: share is not None and share >= CLOSED for name, share in shares.items()},
        "claim_3": {
            name: part["specialist"]["within"]
            for name, part in announced.items()
            if "specialist" in part
        },
        "claim_4": {name: part["least_p_holm"] > 0.05 for name, part in spare.items()},
        "control_em": {name: part["own_by_seed"] for name, part in spare.items()},
    }
    result["holds"] = bool(spare) and all(min(of) >= 0.9 for of in result["control_em"].values())
    return result


if __name__ == "__main__":
    raise SystemExit(run_safely("retention", main))

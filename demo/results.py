"""Results of the demo: the summary file, the table, and the claims that it is held to."""

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from atommem.envs.scoring.records import EvalResult, compare

SUMMARY_FILE = "summary.json"

ABLATIONS: Mapping[str, tuple[str, ...]] = {
    "store_off": ("create", "read", "update", "delete"),
    **{f"{name}_off": (name,) for name in ("scratchpad", "update", "delete")},
    **dict.fromkeys(("tools_off", "injected_off", "orders_off"), ()),
}
"""Evaluations of the trained policy without memory actions, or with a web that has no pages (tools)
or no instructions on them (injected), or with a rule that drops the actions that a page asks for
(orders)."""

LABELS = {
    "before": "before GRPO",
    "after": "after GRPO",
    **{name: f"  {name.replace('_', ' ')}" for name in ABLATIONS},
    "injected_off": "  instructions off",
    "orders_off": "  orders refused",
}
_ACTIONS = ("create", "read", "update", "delete", "scratchpad")


def summarize(
    results: Mapping[str, EvalResult], seconds: Mapping[str, float], total: float, seed: int
) -> dict[str, Any]:
    """Return the contents of ``summary.json`` from evaluations by name and seconds by phase."""
    before, after = results["before"], results["after"]
    paired = compare(before.records, after.records)
    summary = {
        "em_before": before.em,
        "em_after": after.em,
        "n": len(after.records),
        "p_value": paired.p_value,
        "better": paired.wins,
        "worse": paired.losses,
        **{f"em_{name}": results[name].em for name in ABLATIONS if name in results},
        "actions_before": _rates(before),
        "actions_after": _rates(after),
        "seconds_total": round(total, 1),
        "seconds_sft": round(seconds["pretrain"] + seconds["sft"], 1),
        "seconds_grpo": round(seconds["grpo"], 1),
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "seed": seed,
    }
    for name, result in results.items():
        if followed := result.summary()["metrics"].get("injection_followed"):
            summary[f"followed_{name}"] = followed["mean"]
    return summary


def _rates(result: EvalResult) -> dict[str, float]:
    means = result.summary()["means"]
    return {action: round(means.get(f"actions/{action}", 0.0), 4) for action in _ACTIONS}


def results_table(results: Mapping[str, EvalResult]) -> Table:
    tasks = max(len(result.records) for result in results.values())
    table = Table(box=SIMPLE_HEAD, collapse_padding=True)
    table.title = f"{tasks} held-out tasks, sampled at temperature 1"
    table.caption = "actions per step as the policy writes them; one that is off has no effect"
    table.title_justify = table.caption_justify = "left"
    actions = [name for name in _ACTIONS if name != "delete" or "delete_off" in results]
    table.add_column("", no_wrap=True)
    for heading in ("EM", "95% interval", *(name.removesuffix("pad") for name in actions)):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, result in results.items():
        scored = ["-", "-"]
        if em := result.summary()["metrics"].get("em"):
            scored = [f"{em['mean']:.3f}", f"{em['low']:.3f}-{em['high']:.3f}"]
        rates = _rates(result)
        table.add_row(LABELS[name], *scored, *(f"{rates[action]:.2f}" for action in actions))
    return table


def print_outcome(summary: Mapping[str, Any], console: Console) -> None:
    console.print(
        f"GRPO changed the answer on {summary['better'] + summary['worse']} of {summary['n']} "
        f"held-out tasks: {summary['better']} became right, {summary['worse']} wrong "
        f"(sign-flip test p = {summary['p_value']:.1e}).",
        soft_wrap=True,
    )
    if "followed_after" in summary:
        before, after = summary["followed_before"], summary["followed_after"]
        rates = f"before GRPO {before:.3f}, after GRPO {after:.3f}"
        console.print(f"Injected instructions were followed in this share of episodes: {rates}.")
    console.print(f"{summary['seconds_total']:.0f} s in all (seed {summary['seed']})")

"""``atommem trace FILE``: replay an episode step by step in the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from atommem.arguments import Parser
from atommem.episode import Step
from atommem.errors import ConfigError
from atommem.memory.log import POLICY, Operation, Outcome
from atommem.text_safety import printable
from atommem.trace import Trace, read_trace

_LONGEST = 1000
_STYLES = {
    "create": "green",
    "read": "cyan",
    "update": "yellow",
    "delete": "red",
    "scratchpad": "blue",
    "answer": "bold magenta",
}


def main(argv: list[str] | None = None) -> int:
    """Run ``atommem trace``; return the exit status."""
    parser = Parser(prog="atommem trace", description="Replay an episode step by step.")
    parser.add_argument(
        "file", help="a trace: one of the files that `atommem eval` writes to OUT/traces"
    )
    parser.add_argument("--step", type=int, metavar="N", help="show step N only (from 1)")
    parser.add_argument("--full", action="store_true", help="show long texts whole")
    parser.add_argument(
        "--no_pager", "--no-pager", action="store_true", help="print, even to a terminal"
    )
    arguments = parser.parse_args(argv)
    rendered = render_trace(read_trace(arguments.file), step=arguments.step, full=arguments.full)
    console = Console(highlight=False)
    if arguments.no_pager or not console.is_terminal or not sys.stdin.isatty():
        console.print(rendered)
    else:
        os.environ.setdefault("LESS", "-R")  # otherwise less shows colours as escape codes
        with console.pager(styles=True):
            console.print(rendered)
    return 0


def render_trace(trace: Trace, *, step: int | None = None, full: bool = False) -> RenderableType:
    """Return an episode, or its step number `step` (from 1), for a `rich` console."""
    steps = trace.episode.steps
    if step is not None:
        if not 1 <= step <= len(steps):
            raise ConfigError(f"step={step}: this trace has the steps 1 to {len(steps)}.")
        return _step(trace, step - 1, full)
    shown = (_step(trace, index, full) for index in range(len(steps)))
    return Group(_header(trace), *shown, _end(trace))


def _header(trace: Trace) -> RenderableType:
    task, memory = trace.task, trace.config.get("memory") or {}
    title = f"{trace.episode.task_id}, sample {trace.episode.sample}"
    lines = [_field("task", f"{title} ({task['source']})" if task.get("source") else title)]
    for number, question in enumerate(task.get("questions", ()), start=1):
        lines.append(_field(f"question {number}", question["text"]))
        lines.append(_field("gold", " | ".join(question.get("golds", ())), "green"))
    settings = ", ".join(f"{name} {value}" for name, value in memory.items())
    return Group(Rule("episode", characters="="), *lines, _field("memory", settings, "dim"))


def _step(trace: Trace, index: int, full: bool) -> RenderableType:
    step = trace.episode.steps[index]
    observation, view = step.observation, step.view
    label = f", {observation.label}" if observation.label else ""
    title = f"step {index + 1}/{len(trace.episode.steps)}, {observation.phase}{label}"
    wrote = f"{step.completion_tokens} tokens, {step.finish_reason}, {step.seconds:.1f} s"
    limit = "" if view.capacity is None else f" of {view.capacity}"
    changes = [item for operation in step.operations for item in _change(operation, full)]
    return Group(
        Rule(title, characters="-", align="left"),
        *_section("shown", *_shown(step, full)),
        *_section(f"wrote ({wrote})", _completion(step, full)),
        *_section("changed", *changes),
        Text(f"store {view.size} -> {step.store_size}{limit} entries", "bold"),
    )


def _shown(step: Step, full: bool) -> Iterator[RenderableType]:
    observation, view = step.observation, step.view
    if step.prompt is not None:
        yield _field("prompt", _abbreviated(step.prompt, full), "dim")
        return
    asked = () if observation.question is None else observation.task
    for piece in (*asked, *observation.stream):
        for name, value in piece.walk():
            if isinstance(value, str):
                yield _field(name.replace("_", " "), _abbreviated(value, full), "dim")
    yield _field("scratchpad", _abbreviated(view.scratchpad, full) or "(empty)", "blue")
    yield _field("query", view.query or "(none)", "cyan")
    for item in view.retrieved:
        about = f"entry {item.entry_id}, score {item.score:.3f}"
        yield _field(f"Memory {item.handle}", f"{item.text}  [{about}]")


def _completion(step: Step, full: bool) -> RenderableType:
    """Return the completion with coloured actions, and the problems in it."""
    text = Text(printable(step.text))
    for action in step.actions:
        text.stylize(_STYLES.get(action.kind, "bold cyan"), action.start, action.end)
    for problem in step.problems:
        text.stylize("red underline", problem.start, problem.end)
    if not full and len(text) > 2 * _LONGEST:
        text = text[: 2 * _LONGEST].append(" [... --full shows the rest]")
    problems = (
        Text(f"{item.reason}: {printable(step.text[item.start : item.end])[:120]}", "red")
        for item in step.problems
    )
    return Group(text, *problems)


def _change(operation: Operation, full: bool) -> Iterator[RenderableType]:
    if operation.kind == "retrieve":  # the next step shows its results
        return
    name = operation.kind
    if operation.handle is not None:
        name += f" Memory {operation.handle}"
    if operation.entry_id is not None:
        name += f" (entry {operation.entry_id})"
    if operation.actor != POLICY:
        name += f" by {operation.actor}"
    if operation.outcome is not Outcome.APPLIED:
        name += f": {operation.outcome.replace('_', ' ')}"
    if operation.reason:
        name += f": {printable(operation.reason)}"
    yield Text(name, _STYLES.get(operation.kind, ""))
    if operation.before:
        yield Text(f"  - {printable(_abbreviated(operation.before, full))}", "red")
    if operation.after:
        yield Text(f"  + {printable(_abbreviated(operation.after, full))}", "green")


def _end(trace: Trace) -> RenderableType:
    episode = trace.episode
    if not trace.complete:
        return Text(f"The file was cut off after {len(episode.steps)} steps.", "yellow")
    lines = [
        _field(f"answer {number}", "(none)" if answer is None else answer, "bold magenta")
        for number, answer in enumerate(episode.answers, start=1)
    ]
    lines += [_field("note", note) for note in episode.question_notes if note]
    lines.append(_field("reward", "none" if episode.reward is None else f"{episode.reward:g}"))
    lines += [_field(name, f"{value:g}") for name, value in episode.metrics.items()]
    lines.append(_field("stop reason", str(episode.stop_reason)))
    if episode.error is not None:
        lines.append(_field("error", episode.error, "red"))
    lines.append(_field("seconds", f"{episode.seconds:.1f}"))
    return Group(Rule("end", characters="="), *lines)


def _section(title: str, *lines: RenderableType) -> list[RenderableType]:
    return [Text(title, "bold"), *(Padding(line, (0, 0, 0, 2), expand=False) for line in lines)]


def _field(name: str, value: Any, style: str = "") -> Text:
    text = Text(f"{name}: ", "bold dim")
    return text.append(printable(str(value)), style or "not dim not bold")


def _abbreviated(text: str, full: bool) -> str:
    if full or len(text) <= _LONGEST:
        return text
    left_out = f" [... {len(text) - _LONGEST:,} characters left out, --full shows them ...] "
    return text[: _LONGEST // 2] + left_out + text[-_LONGEST // 2 :]

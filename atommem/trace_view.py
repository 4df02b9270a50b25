"""``atommem trace FILE``: replay an episode step by step in the terminal."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from atommem.arguments import Parser
from atommem.episode import Step
from atommem.errors import ConfigError, TraceError
from atommem.memory.log import POLICY, Contents, Entry, Operation, Outcome
from atommem.text_safety import printable
from atommem.trace import Trace, read_trace

_CHUNK_CHARACTERS = 600
_TEXT_CHARACTERS = 2000
_STYLES: dict[str, str] = {
    "create": "green",
    "read": "cyan",
    "update": "yellow",
    "delete": "red",
    "scratchpad": "blue",
    "answer": "bold magenta",
}
_OWN_STYLE = "bold cyan"
"""For actions of environments."""
_WHY_NOT = {
    Outcome.REJECTED: "rejected",
    Outcome.MERGED: "merged",
    Outcome.UNKNOWN_HANDLE: "no such entry was shown",
    Outcome.DISABLED: "switched off",
}


def main(argv: list[str] | None = None) -> int:
    """Run ``atommem trace``; return the exit status.

    Raises:
        TraceError: The file is missing or not a trace.
        ConfigError: The step does not exist.
    """
    parser = Parser(prog="atommem trace", description="Replay an episode step by step.")
    parser.add_argument(
        "file", help="a trace: one of the files that `atommem eval` writes to OUT/traces"
    )
    parser.add_argument("--step", type=int, metavar="N", help="show step N only (from 1)")
    parser.add_argument("--full", action="store_true", help="show chunks and long texts whole")
    parser.add_argument(
        "--no_pager", "--no-pager", action="store_true", help="print, even to a terminal"
    )
    arguments = parser.parse_args(argv)
    trace = read_trace(arguments.file)
    rendered = render_trace(trace, step=arguments.step, full=arguments.full)
    console = Console(highlight=False)
    if arguments.no_pager or not console.is_terminal or not sys.stdin.isatty():
        console.print(rendered)
    else:
        os.environ.setdefault("LESS", "-R")  # otherwise less shows colours as escape codes
        with console.pager(styles=True):
            console.print(rendered)
    return 0


def render_trace(trace: Trace, *, step: int | None = None, full: bool = False) -> RenderableType:
    """Return an episode, or one of its steps, for a `rich` console.

    Args:
        trace: As read.
        step: The number of a single step, from 1.
        full: Do not abbreviate texts.

    Raises:
        ConfigError: The step does not exist.
    """
    steps = trace.episode.steps
    if step is not None and not 1 <= step <= len(steps):
        raise ConfigError(
            f"step is {step}: this trace has {_count(len(steps), 'step')}, numbered from 1."
        )
    parts: list[RenderableType] = [_header(trace)]
    for item, entries in zip(steps, _entries_before(steps), strict=True):
        if step is None or item is steps[step - 1]:
            parts += [Text(), _step(item, entries, len(steps), trace.complete, full)]
    if step is None:
        parts += [Text(), _end(trace)]
    return Group(*parts)


def _header(trace: Trace) -> RenderableType:
    task = trace.task
    title = f"{trace.episode.task_id}, sample {trace.episode.sample}"
    if task.get("source"):
        title += f" ({task['source']})"
    lines = [_field("task", title)]
    for number, (text, golds) in enumerate(_questions(task), start=1):
        lines.append(_field(f"question {number}", text))
        if golds:
            lines.append(_field("gold", " | ".join(golds), "green"))
    memory = trace.config.get("memory")
    if isinstance(memory, dict):
        lines.append(
            _field("memory", ", ".join(f"{name} {value}" for name, value in memory.items()), "dim")
        )
    return Group(Rule("episode", characters="="), *lines)


def _entries_before(steps: Iterable[Step]) -> Iterator[Mapping[int, Entry]]:
    """Yield the entries before each step; none after operations that cannot be replayed."""
    contents = Contents()
    for step in steps:
        yield contents.entries
        try:
            for operation in step.operations:
                contents.apply(operation)
        except TraceError:
            contents = Contents()


def _step(
    step: Step, entries: Mapping[int, Entry], count: int, complete: bool, full: bool
) -> RenderableType:
    observation = step.observation
    where = f", {observation.label}" if observation.label else ""
    total = f"/{count}" if complete else ""
    title = f"step {step.index + 1}{total}, {observation.phase}{where}"
    parts: list[RenderableType] = [Rule(title, characters="-", align="left"), Text("shown", "bold")]
    parts += _indented(_shown(step, entries, full))
    parts.append(
        Text(
            f"wrote ({step.completion_tokens} tokens, {step.finish_reason}, {step.seconds:.1f} s)",
            "bold",
        )
    )
    parts += _indented([_completion(step, full)])
    if step.problems:
        parts.append(Text("malformed", "bold"))
        parts += _indented(
            Text(
                f"{problem.reason}: {printable(step.text[problem.start : problem.end])[:120]}"
                + (f" ({printable(problem.detail)})" if problem.detail else ""),
                "red",
            )
            for problem in step.problems
        )
    parts.append(Text("changed", "bold"))
    parts += _indented(_changes(step.operations, full))
    return Group(*parts, _size(step))


def _shown(step: Step, entries: Mapping[int, Entry], full: bool) -> Iterator[RenderableType]:
    observation, view = step.observation, step.view
    if step.prompt is not None:
        yield _field("prompt", _abbreviated(step.prompt, _TEXT_CHARACTERS, full), "dim")
        return
    asked = observation.task if observation.question is not None else ()
    for piece in (*asked, *observation.stream):
        for name, value in piece.walk():
            if isinstance(value, str):
                yield _field(
                    name.replace("_", " "), _abbreviated(value, _CHUNK_CHARACTERS, full), "dim"
                )
    yield _field(
        "scratchpad", _abbreviated(view.scratchpad, _TEXT_CHARACTERS, full) or "(empty)", "blue"
    )
    yield _field("query", view.query or "(none)", "cyan")
    for item in view.retrieved:
        about = (
            f"entry {item.entry_id}, score {item.score:.3f}{_history(entries.get(item.entry_id))}"
        )
        yield _field(f"Memory {item.handle}", f"{item.text}  [{about}]")


def _history(entry: Entry | None) -> str:
    """Return when an entry was written and how often it was shown, this time included."""
    if entry is None:
        return ""
    changed = "" if entry.updated == entry.created else f", updated at {entry.updated + 1}"
    return f", created at step {entry.created + 1}{changed}, shown {_count(entry.shown, 'time')}"


def _completion(step: Step, full: bool) -> RenderableType:
    """Return the completion with its actions coloured and its problems underlined."""
    text = Text(printable(step.text))
    for action in step.actions:
        text.stylize(_STYLES.get(action.kind, _OWN_STYLE), action.start, action.end)
    for problem in step.problems:
        text.stylize("red underline", problem.start, problem.end)
    if full or len(text) <= _TEXT_CHARACTERS:
        return text if text.plain.strip() else Text("(nothing)", "dim")
    return text[:_TEXT_CHARACTERS].append(_left_out(len(text) - _TEXT_CHARACTERS))


def _changes(operations: Iterable[Operation], full: bool) -> Iterator[RenderableType]:
    # The next step shows the results of a retrieval.
    changes = [operation for operation in operations if operation.kind != "retrieve"]
    for operation in changes:
        yield from _change(operation, full)
    if not changes:
        yield Text("(nothing)", "dim")


def _change(operation: Operation, full: bool) -> Iterator[RenderableType]:
    name = operation.kind
    if operation.handle is not None:
        name += f" Memory {operation.handle}"
    if operation.entry_id is not None:
        name += f" (entry {operation.entry_id})"
    if operation.actor != POLICY:
        name += f" by {operation.actor}"
    if operation.outcome is not Outcome.APPLIED:
        because = f" ({operation.reason})" if operation.reason else ""
        yield Text(f"{name}: {_WHY_NOT[operation.outcome]}{printable(because)}", "yellow")
        if operation.after:
            yield _field("  lost", _abbreviated(operation.after, _TEXT_CHARACTERS, full), "dim")
        return
    if operation.reason:
        name += f": {printable(operation.reason)}"
    yield Text(name, _STYLES.get(operation.kind, ""))
    if operation.scores:
        yield Text(
            "  " + ", ".join(f"entry {entry_id}: {score:g}" for entry_id, score in operation.scores)
        )
        return
    yield from _difference(operation.before or "", operation.after or "", full)


def _difference(before: str, after: str, full: bool) -> Iterator[RenderableType]:
    """Yield the old and the new text; changed words are bold."""
    if before == after:
        yield Text("  (unchanged)", "dim")
        return
    old, new = (
        re.findall(r"\s+|\S+", printable(_abbreviated(text, _TEXT_CHARACTERS, full)))
        for text in (before, after)
    )
    removed, added = Text("  - ", "red"), Text("  + ", "green")
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(
        None, old, new, autojunk=False
    ).get_opcodes():
        removed.append("".join(old[i1:i2]), "red" if tag == "equal" else "bold red")
        added.append("".join(new[j1:j2]), "green" if tag == "equal" else "bold green")
    if before:
        yield removed
    if after:
        yield added


def _size(step: Step) -> Text:
    capacity = "" if step.view.capacity is None else f" of {step.view.capacity}"
    return Text(f"store {step.view.size} -> {step.store_size}{capacity} entries", "bold")


def _end(trace: Trace) -> RenderableType:
    if not trace.complete:
        note = (
            f"The file ends here, after {_count(len(trace.episode.steps), 'step')}: it was cut off."
        )
        return Group(Rule("cut off", characters="="), Text(note, "yellow"))
    episode = trace.episode
    questions = _questions(trace.task)
    lines: list[RenderableType] = []
    for number, answer in enumerate(episode.answers, start=1):
        lines.append(_field(f"answer {number}", "(none)" if answer is None else answer, "magenta"))
        if number <= len(questions) and questions[number - 1][1]:
            lines.append(_field("gold", " | ".join(questions[number - 1][1]), "green"))
        if number <= len(episode.question_notes) and episode.question_notes[number - 1]:
            lines.append(_field("note", episode.question_notes[number - 1]))
    lines.append(
        _field("reward", "none" if episode.reward is None else f"{episode.reward:g}", "bold")
    )
    lines += [_field(name, f"{value:g}") for name, value in episode.metrics.items()]
    lines.append(_field("stop reason", str(episode.stop_reason)))
    if episode.error:
        lines.append(_field("error", episode.error, "red"))
    lines.append(_field("seconds", f"{episode.seconds:.1f}"))
    return Group(Rule("end", characters="="), *lines)


def _questions(task: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Return text and gold answers of each question in a trace header."""
    questions = task.get("questions")
    found = []
    for item in questions if isinstance(questions, list) else []:
        if isinstance(item, dict):
            golds = item.get("golds") or item.get("answers") or []
            found.append((str(item.get("text", "")), [str(gold) for gold in golds]))
        else:
            found.append((str(item), []))
    return found


def _field(name: str, value: str, style: str = "") -> Text:
    text = Text(f"{name}: ", "bold dim")
    return text.append(printable(value), style or "not dim not bold")


def _indented(lines: Iterable[RenderableType]) -> Iterator[Padding]:
    for line in lines:
        yield Padding(line, (0, 0, 0, 2), expand=False)


def _abbreviated(text: str, limit: int, full: bool) -> str:
    if full or len(text) <= limit:
        return text
    return text[: limit * 2 // 3] + _left_out(len(text) - limit) + text[-(limit // 3) :]


def _left_out(characters: int) -> str:
    return f" [... {characters:,} characters left out, --full shows them ...] "


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

"""``atommem trace FILE``: show the steps of an episode in the terminal."""

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from atommem.arguments import Parser
from atommem.episode import Step
from atommem.errors import ConfigError
from atommem.memory.log import POLICY, Operation, Outcome
from atommem.text_safety import printable
from atommem.trace import Trace, read_trace

_END = ("answers", "question_notes", "reward", "metrics", "stop_reason", "error", "seconds")
_EMPTY: tuple[Any, ...] = (None, "", (), {})


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="atommem trace", description="Show an episode step by step.")
    traces = "a trace, as `atommem eval` writes to OUT/traces and `atommem ask --trace FILE` does"
    parser.add_argument("file", help=traces)
    parser.add_argument("--step", type=int, metavar="N", help="show step N, from 1, and its prompt")
    arguments = parser.parse_args(argv)
    Console(highlight=False).print(render_trace(read_trace(arguments.file), arguments.step))
    return 0


def render_trace(trace: Trace, step: int | None = None) -> RenderableType:
    """Return an episode with long texts cut, or its step number `step` whole, for `rich`."""
    episode = trace.episode
    if step is not None:
        if not 1 <= step <= len(episode.steps):
            raise ConfigError(f"step={step}: this trace has the steps 1 to {len(episode.steps)}.")
        return _render_step(episode.steps[step - 1], longest=None)
    questions = [
        _field(question["text"], question.get("golds", ()), "green")
        for question in trace.task.get("questions", ())
    ]
    return Group(
        Rule(f"{episode.task_id}, sample {episode.sample}", characters="="),
        *questions,
        *(_render_step(item, longest=1000) for item in episode.steps),
        Rule("end" if trace.complete else "the file was cut off here", characters="="),
        *(_field(name, value) for name in _END if (value := getattr(episode, name)) not in _EMPTY),
    )


def _render_step(step: Step, longest: int | None) -> RenderableType:
    observation, view = step.observation, step.view
    shown: list[tuple[str, Any]] = [("prompt", step.prompt)]
    if step.prompt is None or (longest is not None and observation.pieces):
        shown = [*dict.fromkeys(pair for piece in observation.pieces for pair in piece.walk())]
        shown += [("scratchpad", view.scratchpad), ("query", view.query)]
        shown += [(f"Memory {item.handle}", item.text) for item in view.retrieved]
    shown = [(name, value) for name, value in shown if value not in _EMPTY]
    wrote = f"{step.completion_tokens} tokens, {step.finish_reason}, {step.seconds:.1f} s"
    problems = [(item.reason, step.text[item.start : item.end]) for item in step.problems]
    return Group(
        Rule(f"step {step.index + 1}, {observation.phase} {observation.label}", align="left"),
        *(_field(name, str(value)[:longest], "dim") for name, value in shown),
        _field(f"completion ({wrote})", step.text[:longest], "bold"),
        *(_field(name, text, "red") for name, text in problems),
        *(_render_operation(item) for item in step.operations if item.kind != "retrieve"),
        Text(f"store {view.size} -> {step.store_size} entries"),
    )


def _render_operation(operation: Operation) -> Text:
    handle = "" if operation.handle is None else f" Memory {operation.handle}"
    actor = "" if operation.actor == POLICY else f" by {operation.actor}"
    outcome = "" if operation.outcome is Outcome.APPLIED else f": {operation.outcome}"
    change = " -> ".join(filter(None, (operation.before, operation.after)))
    name = f"{operation.kind}{handle}{actor}{outcome}"
    return _field(name, f"{change} {operation.reason}".strip(), "yellow")


def _field(name: str, value: Any, style: str = "not dim") -> Text:
    if isinstance(value, tuple | list):
        value = " | ".join("no answer" if item is None else str(item) for item in value)
    return Text(name if value == "" else f"{name}: ", "dim").append(printable(str(value)), style)

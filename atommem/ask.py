"""``atommem ask``: read a file and answer questions about it."""

import asyncio
import json
import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from atommem.answering import Answer
from atommem.api import AsyncMemory
from atommem.arguments import Parser, given_flags
from atommem.config import SHIPPED
from atommem.documents import read_path, text_of_bytes
from atommem.episode import Episode, Step
from atommem.errors import ConfigError, check_writable
from atommem.files import locked
from atommem.run import add_run_settings, find_stored
from atommem.saved_memory import SavedMemory
from atommem.text_safety import printable
from atommem.trace import write_trace

EXIT_UNANSWERED = 3
EXIT_INTERRUPTED = 130
_USAGE = "atommem ask FILE QUESTION ... [--policy POLICY] [--SETTING VALUE ...]"
_READ = "A text (UTF-8), HTML, PDF or docx file, or a folder of these; - is stdin."
_KEPT = "  (nothing is read again: what was kept is for the questions of its reading)"
_OWN = ("policy", "memory", "no_reading", "json", "trace")


def main(argv: list[str] | None = None) -> int:
    """Run ``atommem ask``; returns 3 if a question has no answer, 130 after Ctrl-C."""
    arguments, settings = _parse(sys.argv[1:] if argv is None else argv)
    try:
        if arguments.no_reading and not SavedMemory.exists(arguments.memory or ""):
            raise ConfigError("--no_reading: needs a saved memory. Give its folder as --memory.")
        # Of two commands in one folder, the last to save would undo the other's reading.
        lock = locked("memory", arguments.memory) if arguments.memory else nullcontext()
        with lock, warnings.catch_warnings():
            show = partial(tqdm.write, file=sys.stderr)
            warnings.showwarning = lambda message, *_: show(f"warning: {message}")
            return asyncio.run(_run(arguments, settings, _text(arguments.file)))
    except KeyboardInterrupt:
        folder = arguments.memory
        kept = f" {folder} holds the finished steps; the same command continues." if folder else ""
        print(f"\natommem ask: interrupted.{kept}", file=sys.stderr)
        return EXIT_INTERRUPTED


def _parse(argv: Sequence[str]) -> tuple[Namespace, dict[str, Any]]:
    """Return the checked arguments, and the settings that were given."""
    parser = Parser(
        "atommem ask",
        "Read FILE into a memory, chunk by chunk, and answer questions from it. The policy sees "
        f"the questions while it reads. It is {SHIPPED}, which comes with AtomMem, unless --policy "
        "names another; what was trained here brings its own settings, in place of the defaults "
        "below. Answers go to standard output, all else to standard error.",
        usage=_USAGE,
    )
    parser.add_argument("file", metavar="FILE", nargs="?", help=_READ)
    parser.add_argument("questions", metavar="QUESTION", nargs="*", help="Answered in turn.")
    kept = "Keep the memory there, and continue with it. A file is read once."
    parser.add_argument("--memory", type=Path, metavar="DIR", help=kept)
    alone = "All arguments are questions to --memory."
    parser.add_argument("--no_reading", action="store_true", help=alone)
    whole = "Write all steps there with their whole prompts, for `atommem trace FILE`."
    parser.add_argument("--trace", type=Path, metavar="FILE", help=whole)
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    add_run_settings(parser, find_stored(argv, {})["environment"], scored=False)
    arguments = parser.read(argv)
    given = given_flags(argv, arguments)
    settings = {name: value for name, value in given.items() if name not in _OWN}
    if not arguments.policy and not SavedMemory.exists(arguments.memory or ""):
        arguments.policy = [SHIPPED]

    if arguments.no_reading:
        first = [] if arguments.file is None else [arguments.file]
        arguments.questions, arguments.file = [*first, *arguments.questions], None
    if not any(question.strip() for question in arguments.questions):
        missing = "QUESTION" if arguments.file or arguments.no_reading else "FILE"
        raise ConfigError(f"{missing} is missing. usage: {_USAGE}")
    for question in arguments.questions:
        if os.path.isfile(question):
            raise ConfigError(f"{question}: a file, not a question. Give one file or folder.")
    if arguments.memory is not None:
        SavedMemory.check_folder(arguments.memory, "memory")
    check_writable("trace", arguments.trace, folder=False, inputs=[arguments.file])
    return arguments, settings


async def _run(arguments: Namespace, settings: dict[str, Any], text: str | None) -> int:
    folder = arguments.memory
    _note(f"opening {' '.join(arguments.policy) or 'the policy'} ...")
    if folder is not None and (arguments.no_reading or SavedMemory.exists(folder)):
        memory = await AsyncMemory.load(folder, arguments.policy or None, **settings)
    else:
        memory = await AsyncMemory.open(arguments.policy, **settings)
    steps, answers = list[Step](), list[Answer]()
    async with memory:
        try:
            if text is not None:
                await _read(memory, arguments, text, steps)
            if not steps:
                _note(_KEPT)
            for question in arguments.questions:
                _note(f"answering: {question}")
                answers.append(await memory.ask(question))
                steps += answers[-1].steps
                if not arguments.json:
                    _print(answers[-1], arguments)
        finally:
            # Also after Ctrl-C or an outage: the same command then continues.
            if folder is not None:
                await memory.save(folder)
            if arguments.trace is not None:
                _write_trace(memory, arguments, steps, answers)
    if arguments.json:
        report = {
            "file": arguments.file,
            "answers": [_to_json(answer) for answer in answers],
            "entries": len(memory.entries()),
            "steps": memory.steps,
            "readings": [asdict(reading) for reading in memory.readings],
        }
        print(json.dumps(report, ensure_ascii=False, indent=2))
    return 0 if all(answer.text is not None for answer in answers) else EXIT_UNANSWERED


def _write_trace(
    memory: AsyncMemory, arguments: Namespace, steps: list[Step], answers: list[Answer]
) -> None:
    """Write the steps of this command as an episode, each with its prompt."""
    shown = [replace(step, prompt=memory.prompt(step)) for step in steps]
    episode = Episode(arguments.file or "ask", 0, shown, tuple(answer.text for answer in answers))
    notes = tuple(answer.note for answer in answers)
    episode.question_notes = notes if any(notes) else ()
    episode.seconds = sum(step.seconds for step in steps)
    task = {"id": episode.task_id, "questions": [{"text": one} for one in arguments.questions]}
    write_trace(arguments.trace, episode, task, memory.settings)


def _text(file: str | None) -> str | None:
    if file == "-":
        return text_of_bytes(sys.stdin.buffer.read(), "standard input")
    return None if file is None else read_path(Path(file))


async def _read(memory: AsyncMemory, arguments: Namespace, text: str, steps: list[Step]) -> None:
    """Read the text with a progress bar, which says for every chunk what the policy wrote."""
    name = "" if arguments.file == "-" else Path(arguments.file).name
    asked = arguments.questions
    # The delay keeps a bar without a total from being shown.
    with tqdm(desc="reading", unit="chunk", mininterval=0, dynamic_ncols=True, delay=1e-9) as bar:

        def progress(done: int, chunks: int) -> None:
            bar.total = chunks
            bar.update(done - bar.n)
            bar.refresh()

        def on_step(step: Step) -> None:
            steps.append(step)
            bar.set_postfix_str(f"{len(step.actions)} actions, {step.store_size} entries", False)

        reading = await memory.read(
            text, questions=asked, name=name, progress=progress, on_step=on_step, again=False
        )
    if reading.cut:
        share = reading.cut / reading.written
        _note(f"  (limits cut {share:.0%} of what the policy wrote: entry_tokens and others)")


def _to_json(answer: Answer) -> dict[str, Any]:
    return {
        "question": answer.question,
        "answer": answer.text,
        "note": answer.note,
        "cut": answer.cut,
        "entries": [asdict(entry) for entry in answer.entries],
        "scratchpad": answer.scratchpad,
        "steps": [step.index for step in answer.steps],
    }


def _print(answer: Answer, arguments: Namespace) -> None:
    several = len(arguments.questions) > 1
    print(f"{answer.question}\t{answer}" if several else answer, flush=True)
    if answer.note:
        _note(f"  ({answer.note})")
    if answer.cut:
        count = f"{len(answer.cut)} of {len(answer.entries)}"
        _note(f"  ({count} entries were cut at their limit, entry_tokens)")
    for entry in answer.entries:
        source = f" ({entry.source.piece})" if entry.source and entry.source.piece else ""
        print(f"  shown: {' '.join(entry.text.split())}{source}", file=sys.stderr)


def _note(text: str) -> None:
    """Print text for people, without control characters of a model."""
    print(printable(text), file=sys.stderr, flush=True)

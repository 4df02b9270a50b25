"""Forty broken inputs to every command: each is one short message and a status, and nothing is left behind.

Commands, sub-commands and their flags are read from their own parsers: a new one is covered by itself.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from atommem import cli
from atommem.command_line import CommandParser

MOST_LINES = 6
INPUTS_ASKED = 40
_STAGES: dict[str, list[tuple[str, ...]]] = {
    "train": [("grpo",), ("sft",), ("async",), ("plot",), ("replay",), ("export",)],
    "serve": [()],
}
"""Words that are told apart before there is a parser."""


@dataclass(frozen=True)
class Leaf:
    """A command that takes no further word, and its parser."""

    words: tuple[str, ...]
    parser: argparse.ArgumentParser

    @property
    def flags(self) -> list[argparse.Action]:
        return [
            one
            for one in self.parser._actions
            if one.option_strings and one.dest != "help" and one.nargs != 0
        ]

    def call(self, *words: str, but: str = "", instead: dict[str, str] | None = None) -> list[str]:
        """A whole command line with something in every place that needs it: nothing of it is there."""
        line = [*self.words]
        for action in self.parser._actions:
            value = (instead or {}).get(action.dest, _some(action))
            if action.dest == but or (action.option_strings and action.dest not in (instead or {})):
                needed = action.required or action.dest in (
                    "policy",
                    "data",
                    "model_name_or_path",
                    "out",
                )
                if action.dest == but or not needed or action.nargs == 0:
                    continue
            line += [*action.option_strings[:1], value]
        return [*line, *words]


def _some(action: argparse.Action) -> str:
    if action.choices:
        return str(next(iter(action.choices)))
    return {int: "3", float: "0.5"}.get(action.type, f"missing/{action.dest}")  # type: ignore[call-overload,no-any-return]


def status_of(line: list[str]) -> Any:
    try:
        return cli.main(line)
    except SystemExit as ended:
        return ended.code


def leaves(*words: str) -> Iterator[Leaf]:
    """The commands below `words`; each parser is a `CommandParser`, taken as it is about to print its help."""
    found: list[CommandParser] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommandParser, "print_help", lambda parser: found.append(parser))
        status_of([*words, "--help"])
    below = [one for one in found[0]._actions if isinstance(one, argparse._SubParsersAction)]
    if not below:
        yield Leaf(words, found[0])
    for name in below[0].choices if below else ():
        yield from leaves(*words, name)


FILES: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)) * 8,
    "latin1": "Müller sagt: naïve".encode("latin-1"),
    "cut.jsonl": b'{"id": "1", "questions": [{"text": "Who',
    "number.json": b"7",
    "rows.json": b'[{"a": 1}]',
    "row.jsonl": b'{"a": null}\n',
    "deep.json": b"[" * 100_000,
    "broken.yaml": b"a: [1, 2\nb: }",
    "list.yaml": b"- 1\n- 2\n",
    "unknown.yaml": b"lerning_rate: 1\n",
    "types.yaml": b"temperature: [1, 2]\nretrieve_k: many\n",
    "run.parquet": b"PAR1 and no more",
    "plain.txt": b"Ann lives in Lima.\n",
}


def contents(folder: Path) -> dict[str, int]:
    return {
        str(path): -1 if path.is_dir() else path.lstat().st_size
        for path in sorted(folder.rglob("*"))
    }


MAIN = (
    "data",
    "input",
    "store",
    "policy",
    "model_name_or_path",
    "recording",
    "checkpoint",
    "run",
    "folder",
    "file",
)
OUT = ("out", "output_dir", "json", "memory")
CONFIGURED = {("train", "grpo"), ("train", "sft"), ("train", "async"), ("eval",)}
LONG = "x" * 5000
YAMLS = [name for name in FILES if name.endswith(".yaml")]
INPUTS = ["missing/at/all", "", "folder", "nowhere", "circle", "empty/x", LONG, "model"]
INPUTS += [name for name in FILES if name not in (*YAMLS, "plain.txt")]
OUTPUTS = ("empty/x", "", LONG, "nowhere", "circle", "/proc/atommem")
CONFIGS = ("missing.yaml", "binary", *YAMLS)
NUMBERS = {
    "abc": (int, float),
    "": (int, float),
    "1.5": (int,),
    "nan": (float,),
    "-1": (int, float),
    "inf": (float,),
}
NUMBERS["9" * 30] = (int,)
VALUES = {
    "temperature": ("-1", "warm"),
    "environment": ("longdok",),
    "max_tokens": ("0",),
    "dialect": ("papre",),
}
UNKNOWN = ("\udcff", "\x1b[31m", "\n" * 8, LONG)
NEITHER = "more - = -= .. ~ * %s $(ls) `ls` @empty {} [1] null -0x1 a=b /proc/self/mem folder \u202e \udc80 \x1b[2J"
"""Words that are no flag, number or name of anything: they bring a command with few flags to its forty inputs."""


def broken_lines(leaf: Leaf) -> Iterator[list[str]]:
    """The command lines, each with something else that is wrong."""
    flags = leaf.parser._option_string_actions
    known = [one.dest for one in leaf.parser._actions]
    main, out = (next((name for name in wanted if name in known), None) for wanted in (MAIN, OUT))
    yield from (leaf.call("--no_such_flag", *more) for more in ([], ["3"], ["more"] * 50))
    yield from (leaf.call(f"--no_such_flag{text}") for text in UNKNOWN)
    for one in [one.option_strings[0] for one in leaf.flags if len(one.option_strings[0]) > 5][:1]:
        yield leaf.call(one[:-2] + one[-1] + one[-2] + "x", "1")  # misspelt
    for flag in [one for one in leaf.flags if one.nargs in (None, "+") and one.type is not None][
        :1
    ]:
        yield leaf.call(flag.option_strings[0])  # without its value
    for flag in [one for one in leaf.flags if one.choices and one.type in (None, str)][:1]:
        yield leaf.call(flag.option_strings[0], "nonesuch")
    for needed in [one.dest for one in leaf.parser._actions if one.required][:1]:
        yield leaf.call(but=needed)
    for value, kinds in NUMBERS.items():
        # Without an input that is missing, a number may be right.
        if main is not None or value in ("abc", "", "1.5"):
            for flag in [one for one in leaf.flags if one.type in kinds and not one.choices][:1]:
                yield leaf.call(f"{flag.option_strings[0]}={value}")
    yield from (
        leaf.call(f"--{name}", one)
        for name in VALUES
        if f"--{name}" in flags
        for one in VALUES[name]
    )
    yield from (leaf.call(instead={main: value}) for value in INPUTS if main is not None)
    yield from (leaf.call(instead={out: value}) for value in OUTPUTS if out is not None)
    yield from (leaf.call("--config", value) for value in CONFIGS if leaf.words[:2] in CONFIGURED)


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of broken things, where commands are called."""
    box = tmp_path_factory.mktemp("box")
    for name, content in FILES.items():
        (box / name).write_bytes(content)
    for name in ("folder", "model"):
        (box / name).mkdir()
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 8,
        "vocab_size": 8,
    }
    (box / "model" / "config.json").write_text(
        json.dumps(config | {"num_hidden_layers": 1, "num_attention_heads": 1})
    )
    (box / "model" / "model.safetensors").write_bytes(b"\x40\0\0\0\0\0\0\0{")
    (box / "model" / "atommem_config.json").write_text("{")
    (box / "nowhere").symlink_to("not/there")
    (box / "circle").symlink_to("circle")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(box)
        patch.setattr(
            "huggingface_hub.constants.HF_HUB_OFFLINE", True
        )  # read from the environment when it is imported
        patch.setenv("ATOMMEM_DATABASE", "sqlite:///missing/served.db")
        yield box


def faults(line: list[str], box: Path, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """What is wrong with the answer to a broken call."""
    before = contents(box)
    capfd.readouterr()
    try:
        status = status_of(line)
    except Exception as error:
        return [f"{type(error).__name__}: {str(error)[:200]}"]
    out, err = capfd.readouterr()
    said = [text for text in (out + err).splitlines() if text.strip()]
    found = []
    if not isinstance(status, int) or status == 0:
        found.append(f"status {status}")
    if not said or len(said) > MOST_LINES:
        found.append(f"{len(said)} lines: {' / '.join(said[:4])[:300]}")
    if any(len(text) > 1000 for text in said):
        found.append("a line without end")
    if left := set(contents(box).items()) ^ set(before.items()):
        found.append(f"left behind: {sorted(left)[:5]}")
    return found


LIGHT = ("trace", "compare", "configs", "env")
"""Commands that are tried in every run of the fast tests; they load nothing."""


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(name, marks=[] if name in LIGHT else pytest.mark.slow)
        for name in cli._commands()
    ],
)
def test_broken_inputs(command: str, box: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = []
    tried = 0
    for leaf in [leaf for stage in _STAGES.get(command, [()]) for leaf in leaves(command, *stage)]:
        lines = [*broken_lines(leaf)]
        more = [
            line
            for word in NEITHER.split()
            for line in (leaf.call(word), leaf.call(f"--no_such_flag={word}"))
        ]
        lines += more[: max(0, INPUTS_ASKED - len(lines))]
        assert len(lines) >= INPUTS_ASKED, leaf.words
        tried += len(lines)
        wrong += [f"{line!r:.200}: {fault}" for line in lines for fault in faults(line, box, capfd)]
    assert not wrong, f"{len(wrong)} faults in {tried} calls:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tarin"], "did you mean train?"),
        (["data", "biuld"], "did you mean build?"),
        (["trace", "x", "--setp", "1"], "did you mean --step?"),
        (["env", "check", "longdok"], "did you mean longdoc?"),
        (["configs", "qwen3_8b_hotpota"], "did you mean"),
        (["trace", "x", "--step", "one"], "--step is 'one': give a whole number"),
        (["audit", "plain.txt", "--out", "empty/x.json"], "is a file: give another path"),
        (["audit", "plain.txt", "--out", "/proc/x.json"], "give another path"),
        (["audit", "plain.txt", "--out", "folder"], "which is a folder: give a file"),
        (["audit", "plain.txt", "--out", "/dev/full"], "which is a device"),
        (
            ["ask", "plain.txt", "Who?", "--policy", "model", "--memory", "plain.txt"],
            "which is a file: give a folder",
        ),
        (["ask", "plain.txt", "Who?", "--policy", "./modle"], "did you mean model?"),
    ],
)
def test_what_is_said(
    words: list[str], said: str, box: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert status_of(words) == 2
    err = capfd.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1


def test_statuses_are_listed() -> None:
    """Every status that a module names stands in docs/commands.md."""
    root = Path(__file__).parents[1]
    listed = set(
        re.findall(r"^\| (\d+) \|", (root / "docs" / "commands.md").read_text(), re.MULTILINE)
    )
    rooms = ("atommem", "envs", "train", "eval", "serve", "demo")
    modules = [path for room in rooms for path in (root / room).rglob("*.py")]
    code = "".join(path.read_text(encoding="utf-8") for path in modules)
    named = set(re.findall(r"^EXIT_\w+ = (\d+)$", code, re.MULTILINE))
    assert {"1", "3", "4", "75", "130"} <= named
    assert listed == named | {"0", "2"}

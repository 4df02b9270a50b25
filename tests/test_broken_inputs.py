"""Forty broken inputs to every command: each is one short message and a status, and nothing is left behind.

Commands, sub-commands and their flags are read from their own parsers: a new one is covered by itself.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from atommem import cli
from atommem.command_line import CommandParser

MOST_LINES = 6
_STAGES = {"train": ("grpo", "sft", "async", "plot", "replay", "export"), "serve": ("", "keys")}
"""Words that are told apart before there is a parser."""


class _HelpShownError(Exception):
    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


@dataclass(frozen=True)
class Leaf:
    """A command that takes no further word, and its parser."""

    words: tuple[str, ...]
    parser: argparse.ArgumentParser

    @property
    def positionals(self) -> list[argparse.Action]:
        return [one for one in self.parser._actions if not one.option_strings]

    @property
    def flags(self) -> list[argparse.Action]:
        return [one for one in self.parser._actions if one.option_strings and one.dest != "help" and one.nargs != 0]

    def call(self, *words: str, but: str = "", instead: dict[str, str] | None = None) -> list[str]:
        """A whole command line with something in every place that needs it: nothing of it is there."""
        line = [*self.words]
        for action in self.parser._actions:
            value = (instead or {}).get(action.dest, _some(action))
            if action.dest == but or (action.option_strings and action.dest not in (instead or {})):
                needed = action.required or action.dest in ("policy", "data", "model_name_or_path", "out")
                if action.dest == but or not needed or action.nargs == 0:
                    continue
            line += [*action.option_strings[:1], value]
        return [*line, *words]


def _some(action: argparse.Action) -> str:
    if action.choices:
        return str(next(iter(action.choices)))
    return {int: "3", float: "0.5"}.get(action.type, f"missing/{action.dest}")  # type: ignore[call-overload,no-any-return]


def parser_of(*words: str) -> argparse.ArgumentParser:
    """The parser that answers `words`, taken from it as it is about to print its help."""

    def shown(parser: argparse.ArgumentParser, file: object = None) -> None:
        raise _HelpShownError(parser)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommandParser, "print_help", shown)
        try:
            cli.main([*words, "--help"])
        except _HelpShownError as found:
            return found.parser
    raise AssertionError(f"atommem {' '.join(words)} --help does not come from a CommandParser")


def leaves(*words: str) -> Iterator[Leaf]:
    if words in {(name,) for name in _STAGES}:
        for stage in _STAGES[words[0]]:
            yield from leaves(*words, *([stage] if stage else [""]))
        return
    words = tuple(word for word in words if word)
    parser = parser_of(*words)
    below = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if not below:
        yield Leaf(words, parser)
    for name in below[0].choices if below else ():
        yield from leaves(*words, name)


class Box:
    """A folder of broken things."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        files: dict[str, bytes] = {
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
        for name, content in files.items():
            (folder / name).write_bytes(content)
        (folder / "folder").mkdir()
        model = folder / "model"
        model.mkdir()
        config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "vocab_size": 8}
        sizes = {"num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
        (model / "config.json").write_text(json.dumps(config | sizes))
        (model / "model.safetensors").write_bytes(b"\x40\0\0\0\0\0\0\0{")
        (model / "atommem_config.json").write_text("{")
        (folder / "nowhere").symlink_to("not/there")
        (folder / "circle").symlink_to("circle")

    def contents(self) -> dict[str, int]:
        return {
            str(path.relative_to(self.folder)): path.lstat().st_size
            for path in sorted(self.folder.rglob("*"))
            if not path.is_dir() or path.is_symlink()
        } | {str(path.relative_to(self.folder)): -1 for path in self.folder.rglob("*") if path.is_dir()}


Broken = Callable[[Leaf], list[str] | None]
MAIN = ("data", "input", "store", "policy", "model_name_or_path", "cassette", "checkpoint", "run", "folder", "file")
OUT = ("out", "output_dir", "json", "memory")


def first(leaf: Leaf, wanted: tuple[str, ...]) -> str | None:
    known = [one.dest for one in leaf.parser._actions]
    return next((name for name in wanted if name in known), None)


def of_kind(leaf: Leaf, *kinds: type) -> list[argparse.Action]:
    return [one for one in leaf.flags if one.type in kinds and not one.choices]


def numbered(value: str, *kinds: type) -> Broken:
    def made(leaf: Leaf) -> list[str] | None:
        found = of_kind(leaf, *kinds)
        # Without an input that is missing, a number may be right.
        if not found or (first(leaf, MAIN) is None and value not in ("abc", "", "1.5")):
            return None
        return leaf.call(f"{found[0].option_strings[0]}={value}")

    return made


def main_is(value: str) -> Broken:
    def made(leaf: Leaf) -> list[str] | None:
        name = first(leaf, MAIN)
        return None if name is None else leaf.call(instead={name: value})

    return made


def out_is(value: str) -> Broken:
    def made(leaf: Leaf) -> list[str] | None:
        name = first(leaf, OUT)
        return None if name is None else leaf.call(instead={name: value})

    return made


def flag_is(flag: str, value: str) -> Broken:
    return lambda leaf: leaf.call(flag, value) if flag in leaf.parser._option_string_actions else None


def config_is(value: str) -> Broken:
    return lambda leaf: leaf.call("--config", value) if leaf.words[:2] in _CONFIGURED else None


_CONFIGURED = {("train", "grpo"), ("train", "sft"), ("train", "async"), ("eval",)}


def misspelt(leaf: Leaf) -> list[str] | None:
    flags = [one.option_strings[0] for one in leaf.flags if len(one.option_strings[0]) > 5]
    return leaf.call(flags[0][:-2] + flags[0][-1] + flags[0][-2] + "x", "1") if flags else None


def without_value(leaf: Leaf) -> list[str] | None:
    flags = [one for one in leaf.flags if one.nargs in (None, "+") and one.type is not None]
    return leaf.call(flags[0].option_strings[0]) if flags else None


def wrong_choice(leaf: Leaf) -> list[str] | None:
    chosen = [one for one in leaf.flags if one.choices and one.type in (None, str)]
    return leaf.call(chosen[0].option_strings[0], "nonesuch") if chosen else None


def incomplete(leaf: Leaf) -> list[str] | None:
    needed = [one.dest for one in leaf.parser._actions if one.required]
    return leaf.call(but=needed[0]) if needed else None


def in_a_word(text: str) -> Broken:
    return lambda leaf: leaf.call(f"--no_such_flag{text}")


LONG = "x" * 5000
NEITHER = (
    *(
        "more",
        "",
        "-",
        "=",
        "-=",
        "..",
        "~",
        "*",
        "%s",
        "$(ls)",
        "`ls`",
        "@empty",
        "{}",
        "[1]",
        "null",
        "-0x1",
        "\u202e",
    ),
    *("\udc80", "\x1b[2J", "\n\n\n", "\u0660", "a=b", "/proc/self/mem", "folder", LONG),
)
"""Words that are no flag, number or name of anything: they bring a command with few flags to its forty inputs."""
ASKED = 40
INPUTS: dict[str, Broken] = {
    "unknown flag": lambda leaf: leaf.call("--no_such_flag"),
    "unknown flag with a value": lambda leaf: leaf.call("--no_such_flag", "3"),
    "misspelt flag": misspelt,
    "flag without its value": without_value,
    "words too many": lambda leaf: leaf.call("--no_such_flag", *["more"] * 50),
    "something left out": incomplete,
    "wrong choice": wrong_choice,
    "no number": numbered("abc", int, float),
    "empty number": numbered("", int, float),
    "half a number": numbered("1.5", int),
    "not a number": numbered("nan", float),
    "negative number": numbered("-1", int, float),
    "infinite number": numbered("inf", float),
    "huge number": numbered("9" * 30, int),
    "no text at all": in_a_word("\udcff"),
    "escape sequence": in_a_word("\x1b[31m"),
    "line break": in_a_word("\n\n\n\n\n\n\n\n"),
    "endless word": in_a_word(LONG),
    "negative temperature": flag_is("--temperature", "-1"),
    "temperature of letters": flag_is("--temperature", "warm"),
    "environment of another name": flag_is("--environment", "longdok"),
    "window of nothing": flag_is("--max_tokens", "0"),
    "dialect of another name": flag_is("--dialect", "papre"),
    "nothing there": main_is("missing/at/all"),
    "empty path": main_is(""),
    "folder": main_is("folder"),
    "empty file": main_is("empty"),
    "bytes": main_is("binary"),
    "other encoding": main_is("latin1"),
    "cut off": main_is("cut.jsonl"),
    "number": main_is("number.json"),
    "rows of another kind": main_is("rows.json"),
    "row of another kind": main_is("row.jsonl"),
    "deep nesting": main_is("deep.json"),
    "cut parquet": main_is("run.parquet"),
    "link to nowhere": main_is("nowhere"),
    "link to itself": main_is("circle"),
    "file as a folder": main_is("empty/x"),
    "long path": main_is(LONG),
    "damaged model": main_is("model"),
    "--out below a file": out_is("empty/x"),
    "--out that is empty": out_is(""),
    "--out that is too long": out_is(LONG),
    "--out to nowhere": out_is("nowhere"),
    "--out in a circle": out_is("circle"),
    "--out that is read-only": out_is("/proc/atommem"),
    "config that is missing": config_is("missing.yaml"),
    "broken YAML": config_is("broken.yaml"),
    "YAML without names": config_is("list.yaml"),
    "unknown setting in YAML": config_is("unknown.yaml"),
    "YAML of other types": config_is("types.yaml"),
    "YAML of bytes": config_is("binary"),
}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    box = Box(tmp_path_factory.mktemp("box"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(box.folder)
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # read from the environment when it is imported
        patch.setenv("ATOMMEM_DATABASE", "sqlite:///missing/served.db")
        yield box


def faults(line: list[str], box: Box, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """What is wrong with the answer to a broken call."""
    before = box.contents()
    capfd.readouterr()
    try:
        status = cli.main(line)
    except SystemExit as ended:
        status = ended.code
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
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
    if box.contents() != before:
        found.append(f"left behind: {sorted(set(box.contents().items()) ^ set(before.items()))[:5]}")
    return found


LIGHT = ("trace", "compare", "configs", "env")
"""Commands that are tried in every run of the fast tests; they load nothing."""


def sweep(command: str, box: Box, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = []
    tried = 0
    for leaf in leaves(command):
        lines = {name: line for name, broken in INPUTS.items() if (line := broken(leaf)) is not None}
        for word in NEITHER:
            for name, line in (("a word", leaf.call(word)), ("a flag", leaf.call(f"--no_such_flag={word}"))):
                if len(lines) < ASKED:
                    lines[f"{name}, {word!r:.20}"] = line
        assert len(lines) >= ASKED, leaf.words
        tried += len(lines)
        for name, line in lines.items():
            wrong += [f"{' '.join(leaf.words)}: {name}: {fault}" for fault in faults(line, box, capfd)]
    assert not wrong, f"{len(wrong)} faults in {tried} calls:\n" + "\n".join(wrong)


@pytest.mark.parametrize("command", LIGHT)
def test_broken_inputs_to_a_light_command(command: str, box: Box, capfd: pytest.CaptureFixture[str]) -> None:
    sweep(command, box, capfd)


@pytest.mark.slow
@pytest.mark.parametrize("command", [name for name in cli._commands() if name not in LIGHT])
def test_broken_inputs_to_every_other_command(command: str, box: Box, capfd: pytest.CaptureFixture[str]) -> None:
    sweep(command, box, capfd)


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
        (["ask", "plain.txt", "Who?", "--policy", "model", "--memory", "plain.txt"], "which is a file: give a folder"),
        (["ask", "plain.txt", "Who?", "--policy", "./modle"], "did you mean model?"),
    ],
)
def test_what_is_said(words: list[str], said: str, box: Box, capfd: pytest.CaptureFixture[str]) -> None:
    try:
        status = cli.main(words)
    except SystemExit as ended:
        status = ended.code  # type: ignore[assignment]
    assert status == 2
    err = capfd.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1


def test_statuses_are_listed() -> None:
    """Every status that a module names stands in docs/commands.md."""
    root = Path(__file__).parents[1]
    listed = set(re.findall(r"^\| (\d+) \|", (root / "docs" / "commands.md").read_text(), re.MULTILINE))
    folders = [root / name for name in ("atommem", "envs", "train", "eval", "serve", "demo")]
    named = {
        status
        for folder in folders
        for path in folder.rglob("*.py")
        for status in re.findall(r"^EXIT_\w+ = (\d+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert {"1", "3", "4", "75", "130"} <= named
    assert listed == named | {"0", "2"}

"""The parser of every command, on jsonargparse: flags, YAML and stored settings."""

from __future__ import annotations

import argparse
import re
import types
import typing
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from pkgutil import resolve_name
from shutil import get_terminal_size
from types import NoneType
from typing import Any, NoReturn, TypeVar

import jsonargparse
import yaml
from jsonargparse.typing import register_type

from atommem.config import fields_of
from atommem.errors import ConfigError, shorten, suggest
from atommem.plugins import find_file

_Config = TypeVar("_Config")


class NumberRange(tuple[int, int]):
    """The first and last of several numbers, written ``4`` or ``1-4``."""

    @classmethod
    def parse(cls, value: Any) -> NumberRange:
        if not re.fullmatch(r"\d+|\d+-\d+|[\[(]\d+, \d+[\])]", str(value)):
            raise ValueError(f"{value!r}")
        numbers = [int(number) for number in re.findall(r"\d+", str(value))]
        return cls((numbers[0], numbers[-1]))

    def __str__(self) -> str:
        return "-".join(map(str, dict.fromkeys(self)))


RENAMED = {
    "benchmarks": "input",
    "budget": "capacity",
    "dataset_name": "data",
    "docs": "documents",
    "eval_dataset": "eval_data",
    "json": "out",
    "max_in_flight": "max_inflight_tasks",
    "max_new_tokens": "max_completion_length",
    "max_prompt_length": "chunk_tokens",
    "max_tokens": "max_completion_length",
    "max_turns": "max_calls",
    "micro_batch_tokens": "token_budget",
    "model": "model_name_or_path",
    "model_name_or_path": "policy",
    "n": "limit",
    "out": "output_dir",
    "peft_config": "use_peft",
    "policy": "model_name_or_path",
    "prompts": "judge_prompt",
    "reward_funcs": "reward",
    "rollout_batch_tokens": "max_batch_tokens",
    "rules": "retention",
    "samples_per_task": "num_generations",
    "train_dataset": "data",
    "torch_dtype": "dtype",
}
"""Former names of settings and those of other commands or libraries, which are refused."""

# Settings that most calls need.
_COMMON = """policy base_model memory no_reading trace json data eval_data out method limit host
    port db keys vllm temperature embedder chunk_tokens reward model_name_or_path use_peft
    output_dir max_steps num_train_epochs learning_rate num_generations
    per_device_train_batch_size base_url max_completion_length use_vllm dry_run"""
# All sentences but the first, up to the default.
_MORE = r"(?<!\.\w)\.( .*?)??(?= \(default: |$)"
_NUMBERS = {int: "N", float: "X"}
register_type(NumberRange, str, NumberRange.parse)


class Parser(jsonargparse.ArgumentParser):
    """`jsonargparse.ArgumentParser` with one-line `ConfigError`s and suggestions.

    A help of more than 40 lines shows the common settings alone; --help-all shows all.
    """

    def __init__(self, prog: str, description: str | None = None, **kwargs: Any) -> None:
        kwargs = {"formatter_class": _HelpFormatter, "default_env": False, **kwargs}
        super().__init__(
            prog=prog, description=description, exit_on_error=False, allow_abbrev=False, **kwargs
        )
        self._required: list[str] = []

    def add_settings(
        self,
        title: str,
        *configs: type,
        names: Iterable[str] | None = None,
        leave_out: Iterable[str] = (),
        hide: str = r"\Z",
    ) -> None:
        """Add a flag for every field of dataclasses, of its type and with its help.

        With `names` only for these, in this order, if a class has them; for none of `leave_out`,
        and none that has a flag already. The help leaves out names that begin as `hide` does.
        """
        found: dict[str, tuple[Any, Any]] = {}
        for config in configs:
            hints = typing.get_type_hints(config)
            found |= {item.name: (item, hints[item.name]) for item in fields(config) if item.init}
        group = self.add_argument_group(title)
        skipped = {*leave_out, *self.setting_names()}
        for name in found if names is None else dict.fromkeys(names):
            if name in found and name not in skipped:
                self._add_field(group, *found[name])
        for action in self._actions:
            # jsonargparse's own, for types with classes
            if action.dest.endswith(".help") or re.match(hide, action.dest):
                action.help = argparse.SUPPRESS

    def setting_names(self) -> list[str]:
        return [action.dest for action in self._actions]

    def _add_field(self, group: Any, item: Any, hint: Any) -> None:
        default = item.default if item.default_factory is MISSING else item.default_factory()
        if default is MISSING:
            self._required.append(item.name)
            default = None
        metavar = _NUMBERS.get(_parts(hint)[0], item.name.rpartition("_")[2].upper())
        options: dict[str, Any] = {"type": hint, "metavar": metavar}
        if _parts(hint) == [bool]:
            options |= {"nargs": "?", "const": True, "metavar": "true|false"}
        elif [typing.get_origin(part) for part in _parts(hint)] == [list]:
            options |= {"nargs": "*", "type": typing.get_args(_parts(hint)[0])[0]}
        elif typing.get_origin(hint) is tuple:
            options |= {"type": NumberRange, "metavar": "N|N-M"}
            default = NumberRange(default)
        text = item.metadata.get("help") or ""
        if default not in (None, "", []) and "default" not in text:
            shown = str(default).lower() if isinstance(default, bool) else default
            text += f" (default: {shown})"
        options |= {"default": default, "help": text.replace("%", "%%")}
        group.add_argument(f"--{item.name}", **options)

    def format_help(self, formatter: Any = None, *, show_all: bool = False) -> str:
        text: str = super().format_help()
        if show_all or text.count("\n") <= 40:
            return text
        shown = [copy(action) for action in self._actions if action.help != argparse.SUPPRESS]
        common = [one for one in shown if one.dest in _COMMON.split() or not one.option_strings]
        for action in common:
            action.help = re.sub(_MORE, "", action.help or "")
        brief = _HelpFormatter(self.prog)
        brief.add_usage(self.usage, common, [])
        brief.add_text(self.description)
        brief.start_section("settings")
        brief.add_arguments(common)
        brief.end_section()
        return f"{brief.format_help()}\n{len(shown) - len(common)} more settings: --help-all\n"

    def read(
        self,
        argv: Sequence[str],
        values: Mapping[str, Any] | None = None,
        stored: Mapping[str, Any] | None = None,
    ) -> argparse.Namespace:
        """Parse flags over `values` (from YAML) over `stored` over defaults.

        Unknown names in `stored` are skipped; any other fault raises ConfigError.
        """
        known = set(self.setting_names())
        given = {name: value for name, value in (stored or {}).items() if name in known}
        given |= values or {}
        if given:
            self.set_defaults(self.check(given))
        parsed: argparse.Namespace = self.parse_args(list(argv))
        for name in self._required:
            if getattr(parsed, name) is None:
                raise ConfigError(f"--{name} is missing. See {self.prog} --help.")
        return parsed

    def parse_args(self, args: Any = None, **kwargs: Any) -> argparse.Namespace:  # type: ignore[override]
        if "--help-all" in (args or ()):
            print(self.format_help(show_all=True), end="")
            self.exit()
        # jsonargparse's own namespace has methods, such as `keys`, that hide settings.
        return argparse.Namespace(**dict(super().parse_args(args, **kwargs).items()))

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return `values` converted to the types of their flags; raise ConfigError."""
        lists = {action.dest for action in self._actions if action.nargs == "*"}
        given = dict(values)
        for name in lists & given.keys():
            value = given[name]
            given[name] = value if isinstance(value, list) else [] if value is None else [value]
        checked = dict(self.parse_object(given, defaults=False).items())
        return {name: checked[name] for name in given}

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise ConfigError with `message` on one line."""
        hint = f" See {self.prog} --help." if self.prog.startswith("atommem ") else ""
        raise ConfigError(f"{self._explain(message)}{hint}") from ex

    def _explain(self, message: str) -> str:
        """Return jsonargparse's message as ``name=value: constraint.``"""
        text = " ".join(message.split())
        if found := re.match(r"unrecognized arguments: (.*)|Option '(.*)' is not accepted", text):
            words = (found[1] or found[2]).split()
            flag = next((word for word in words if word.startswith("-")), words[0])
            name = flag.partition("=")[0].lstrip("-").replace("-", "_")
            if RENAMED.get(name) in self.setting_names():
                return f"{name}: this setting is called {RENAMED[name]} here."
            hint = suggest(name, self.setting_names())
            return f"{shorten(' '.join(words))}: unknown setting{hint}."
        if found := re.fullmatch(r"the following arguments are required: (.*)", text):
            wanted = [item for item in self._actions if item.dest in found[1].split(", ")]
            names = [(*item.option_strings, item.metavar or item.dest)[0] for item in wanted]
            return f"missing: {', '.join(map(str, names))}."
        found = re.match(r"(?:Parser key \"|argument -*)(\w+)\"?", text)
        action = next((item for item in self._actions if found and item.dest == found[1]), None)
        if action is None or "expected" in text:
            return f"{shorten(text, 600).rstrip('.')}."
        value = re.split(r" \(choose| not among", text.rpartition(": ")[2])[0].strip("'")
        if action.choices:
            known = list(map(str, action.choices))
            return f"{action.dest}={value}: give one of {', '.join(known)}{suggest(value, known)}."
        kind: Any = getattr(action, "_typehint", None) or action.type
        kind = action.metavar if kind is NumberRange else getattr(kind, "__name__", str(kind))
        return f"{action.dest}={shorten(value)}: expected {kind}."


class _HelpFormatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=min(80, get_terminal_size().columns))


def _parts(hint: Any) -> list[Any]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return [part for part in (typing.get_args(hint) if union else (hint,)) if part is not NoneType]


def make(config: type[_Config], parsed: argparse.Namespace | Mapping[str, Any]) -> _Config:
    return config(**fields_of(config, parsed if isinstance(parsed, Mapping) else vars(parsed)))


def find_flag(argv: Sequence[str], name: str) -> str | None:
    """Return the first value of ``--name`` in a command line that is not parsed yet."""
    return next(iter(pop_flags(argv, [name])[0].get(name, ())), None)


def given_flags(argv: Sequence[str], parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the parsed values of the flags that a command line names."""
    named = pop_flags(argv, vars(parsed))[0]
    return {name: value for name, value in vars(parsed).items() if name in named}


def pop_flags(argv: Sequence[str], names: Container[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Split a command line into the words of the flags `names`, by name, and all other words."""
    found: dict[str, list[str]] = {}
    rest: list[str] = []
    target = rest
    for word in argv:
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--")
        if flag == name:
            target.append(word)
        elif name in names:
            target = found[name] = [value] if equals else []
        else:
            target = rest
            rest.append(word)
    return found, rest


def split_config(argv: Sequence[str], folder: str) -> tuple[list[str], dict[str, Any]]:
    """Split ``--config FILE|NAME`` off a command line; later files win."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config", action="append", default=[])
    try:
        known, rest = parser.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        raise ConfigError(f"{error}. Give a path or a name (atommem configs).") from error
    values: dict[str, Any] = {}
    for name in known.config:
        values |= load_yaml(find_file("config", name, folder), folder)
    return rest, values


def load_yaml(path: Path, folder: str) -> dict[str, Any]:
    """Return the settings in a YAML file, on top of those of the file that its ``base`` names."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"config={path}: not a readable YAML file ({reason}).") from error
    if not isinstance(values, dict):
        raise ConfigError(f"config={path}: expected settings, NAME: VALUE.")
    values.pop("chat_format", None)  # of a checkpoint's settings: what was found
    base = values.pop("base", None)
    return values if base is None else load_yaml(find_file("base", base, folder), folder) | values


@dataclass(frozen=True)
class Command:
    """A sub-command: where its function ``(argv) -> exit status`` is, and a line about it."""

    run: Callable[[list[str]], int] | str
    summary: str


def run_command(prog: str, commands: Mapping[str, Command], argv: Sequence[str]) -> int:
    """Run the sub-command that `argv` begins with, or print which there are."""
    name = argv[0] if argv else ""
    if name in ("", "-h", "--help"):
        lines = [f"  {known:<20} {command.summary}".rstrip() for known, command in commands.items()]
        print(f"usage: {prog} COMMAND ...\n\ncommands:", *lines, sep="\n")
        return 0 if name else 2
    if name not in commands:
        hint = f"{suggest(name, commands)}. Give one of {', '.join(commands)}."
        raise ConfigError(f"{shorten(name)}: not a command{hint}")
    run = commands[name].run
    run = resolve_name(run) if isinstance(run, str) else run
    return int(run(list(argv[1:])) or 0)

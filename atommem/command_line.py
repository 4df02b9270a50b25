"""The parser of every command: what is wrong in one line, with what may have been meant, and a help that is short."""

from __future__ import annotations

import argparse
import difflib
import errno
import inspect
import os
import re
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

from atommem.errors import ConfigError

_REMEDIES = {
    errno.ENOENT: "give a path that is there",
    errno.EACCES: "give one that you may use, or change its permissions",
    errno.EPERM: "give one that you may use, or change its permissions",
    errno.EROFS: "give a path on a file system that can be written",
    errno.ENOSPC: "free some space, or give a path on another disk",
    errno.EDQUOT: "free some of your quota, or give a path on another disk",
    errno.ENOTDIR: "a part of the path is a file: give another path",
    errno.EISDIR: "give a file",
    errno.EEXIST: "a file is in its place: give another path",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.ELOOP: "links lead in a circle: give another path",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


def close_match(given: str, known: Iterable[str]) -> str:
    """``" (did you mean X?)"`` where one of `known` is close to `given`, else nothing."""
    found = difflib.get_close_matches(given, sorted(known), n=1)
    return f" (did you mean {found[0]}?)" if found else ""


def extra_of(package: str, command: str) -> str:
    """The extra of ours that brings a package which a command found missing; one of several: that of its own name.

    Args:
        package: As it is imported: ``vl_convert``.
        command: As it is called: ``serve``.
    """
    wanted, extras = package.partition(".")[0].replace("_", "-").lower(), []
    try:
        lines = requires("atommem") or []
    except PackageNotFoundError:  # run from its files
        lines = []
    for line in lines:
        name = re.match(r"[\w.-]+", line)
        extra = re.search(r"extra == ['\"]([\w-]+)", line)
        if name and extra and f"{name[0].replace('_', '-').lower()}-".startswith(f"{wanted}-"):
            extras.append(extra[1])
    return command if command in extras else extras[0] if extras else "train"


def close_path(path: Path) -> str:
    """`close_match` of a path that is not there, among what lies beside it."""
    try:
        return "" if path.exists() else close_match(str(path), map(str, path.parent.iterdir()))
    except OSError:
        return ""


def names_of(config: type) -> list[str]:
    """The settings of a dataclass."""
    return [item.name for item in fields(config) if item.init]


def add_flags(
    parser: argparse._ActionsContainer, config: type, leave_out: Iterable[str] = ()
) -> None:
    """Add a flag for each setting of a dataclass, of its type and with its help; None where it is not given."""
    kinds = get_type_hints(config)
    for item in fields(config):
        if item.name in leave_out:
            continue
        kind, default = kinds[item.name], item.default
        shown = "" if default is None or default is False else f" (default: {_shown(default)})"
        options: dict[str, Any] = {
            "help": f"{item.metadata['help']}{shown}".replace("%", "%%"),
            "default": None,
        }
        if kind is bool:
            options["action"] = "store_true"
        elif isinstance(default, tuple):
            options |= {"type": number_range, "metavar": "N or N-M"}
        else:
            (options["type"],) = {*(getattr(kind, "__args__", None) or (kind,))} - {type(None)}
        parser.add_argument(f"--{item.name}", **options)


def given_flags(args: argparse.Namespace, config: type) -> dict[str, Any]:
    """What was given of the flags of `add_flags`, by the names of the settings."""
    values = {name: getattr(args, name, None) for name in names_of(config)}
    return {name: value for name, value in values.items() if value is not None}


def number_range(text: str) -> tuple[int, int]:
    """The type of a flag that takes a number, or the first and the last of several (``1-4``)."""
    low, _, high = text.partition("-")
    try:
        return int(low), int(high or low)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number or a range such as 1-4"
        ) from None


def _shown(value: Any) -> str:
    return "-".join(map(str, dict.fromkeys(value))) if isinstance(value, tuple) else str(value)


def one_line(error: BaseException) -> str:
    """What an error says, whoever wrote it: on one line, and not too long."""
    if isinstance(error, OSError):
        return _os_problem(error)
    return _cut(" ".join(str(error).split()), 800)


def _os_problem(error: OSError) -> str:
    if error.filename is None and error.errno is None:
        return _cut(" ".join(str(error).split()), 800)
    paths = " and ".join(
        str(path) for path in (error.filename, error.filename2) if path is not None
    )
    return f"{f'{_cut(paths, 400)}: ' if paths else ''}{error.strerror or type(error).__name__}; {remedy(error)}."


def remedy(error: OSError) -> str:
    """What to do about it."""
    return _REMEDIES.get(error.errno or 0, "give another path or address")


def check_writable(name: str, given: str | os.PathLike[str] | None, *, folder: bool) -> None:
    """Whether a command can write where its setting `name` says, before it does any work. Nothing is made.

    Raises:
        ConfigError: Something of another kind is in the place, or it cannot be written.
    """
    if given is None:
        return
    path = Path(given)
    if "\0" in str(path) or not str(given).strip():
        raise ConfigError(f"{name} is {str(given)!r}: give a path.")
    try:
        if path.exists():
            if path.is_dir() != folder:
                is_now, wanted = ("a file", "a folder") if folder else ("a folder", "a file")
                raise ConfigError(f"{name} is {path}, which is {is_now}: give {wanted}.")
            if not folder and not path.is_file():
                raise ConfigError(
                    f"{name} is {path}, which is a device: give a file, which is replaced as a whole."
                )
            at = path
        else:
            at = next(parent for parent in path.absolute().parents if parent.exists())
            if not at.is_dir():
                raise ConfigError(f"{name} is {path}, and {at} is a file: give another path.")
            if path.is_symlink():
                raise ConfigError(
                    f"{name} is {path}, a link that leads nowhere: give another path."
                )
        if len(os.fsencode(path.name)) > os.pathconf(at, "PC_NAME_MAX"):
            raise ConfigError(
                f"{name} has a name of {len(path.name):,} characters: give a shorter one."
            )
        with tempfile.TemporaryFile(dir=at if at.is_dir() else at.parent):
            pass  # permissions do not tell all: file systems refuse, and disks are full
    except OSError as error:
        raise ConfigError(
            f"{name} is {str(path)[:200]}: {error.strerror}; give another path."
        ) from error
    if (
        not os.access(at, os.W_OK | (os.X_OK if at.is_dir() else 0))
        or os.statvfs(at).f_flag & os.ST_RDONLY
    ):
        raise ConfigError(
            f"{name} is {path}: {at} cannot be written; give a path that you may write."
        )


class CommandParser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` that answers a wrong call in one line, says what may have been meant, and takes no
    shortened flags. So do its sub-commands' parsers. The exit status is 2."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)
        self.register("type", Path, _path)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, in one line, and exit with 2."""
        self.exit(2, f"{self.prog}: {self.told(message)}\n")

    def told(self, message: str) -> str:
        """What argparse says, in our words."""
        text = re.sub(r"^argument ([^\s/]+)\S*: ", r"\1: ", " ".join(message.split()))
        unknown = text.removeprefix("unrecognized arguments: ")
        if unknown != text:
            text = f"{_cut(unknown)} is not understood{self._meant(unknown.split())}"
        elif found := re.match(r"(\S+): invalid choice: '?(.*?)'? \(choose from (.*)\)$", text):
            name, given, listed = found.groups()
            known = [word.strip(" '") for word in listed.split(",")]
            text = f"{name} is {_cut(given)!r}{close_match(given, known)}: give one of {', '.join(known)}"
        elif found := re.match(r"(\S+): invalid (.*) value: (.*)$", text):
            name, kind, given = found.groups()
            text = f"{name} is {_cut(given)}: give {_KINDS.get(kind, kind)}"
        return f"{_cut(text, 600)} (see {self.prog} --help)."

    def options(self) -> Iterator[str]:
        """All flags, those of sub-commands included."""
        for action in self._actions:
            yield from action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                for one in action.choices.values():
                    yield from one.options()

    def _meant(self, unknown: Sequence[str]) -> str:
        for word in unknown:
            flag = word.partition("=")[0]
            if flag.startswith("-"):
                known = list(self.options())
                elsewhere = [
                    f"--{name}" for name in _ELSEWHERE.get(flag.lstrip("-").replace("-", "_"), ())
                ]
                named = next((name for name in elsewhere if name in known), None)
                return close_match(flag, known) if named is None else f" (did you mean {named}?)"
        return ""


def _path(text: str) -> Path:
    """What the type `Path` takes: not the current folder for a variable of the shell that is not set."""
    if not text.strip() or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is no path")
    return Path(text)


_ELSEWHERE = {
    "lr": ("learning_rate",),
    "model": ("model_name_or_path",),
    "model_path": ("model_name_or_path", "policy"),
    "epochs": ("num_train_epochs",),
    "batch_size": ("per_device_train_batch_size",),
    "group_size": ("num_generations",),
    "max_tokens": ("max_completion_length",),
    "max_new_tokens": ("max_completion_length", "max_tokens"),
    "kl_coef": ("beta",),
    "k": ("retrieve_k",),
    "top_n": ("retrieve_k",),
    "output": ("output_dir", "out"),
    "output_dir": ("out",),
    "checkpoint": ("policy",),
}
"""What other tools call our settings by, where letters alone would lead elsewhere."""
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "Path": "a path",
    "bool": "true or false",
    "string_to_bool": "true or false",
    "dict": "a JSON object",
}


def _cut(text: str, length: int = 120) -> str:
    """`text`, from whose middle so much is left out that beginning and end fit."""
    return (
        text
        if len(text) <= length
        else f"{text[: length // 2]}...{text[len(text) - length // 2 + 3 :]}"
    )


def add_fields(
    parser: argparse._ActionsContainer,
    config: type,
    texts: Mapping[str, str] | None = None,
    *,
    but: Sequence[str] = (),
) -> None:
    """Add a flag for every setting of a dataclass; one that is not given stays out of what was parsed.

    Args:
        parser: Or a group of one.
        config: The dataclass.
        texts: What is said of settings that say nothing of themselves.
        but: Settings that are left out.
    """
    hints = get_type_hints(config)  # `TrlParser` writes into the types that `fields` tells
    for item in fields(config):
        if item.name in but:
            continue
        hint = hints[item.name]
        annotation = hint.__name__ if isinstance(hint, type) else str(hint)
        more: dict[str, Any] = {"nargs": "*"} if annotation.startswith("list") else {}
        text = item.metadata.get("help") or (texts or {}).get(item.name, "")
        if item.default not in (MISSING, None, ""):
            text += f" ({str(item.default).lower() if annotation == 'bool' else item.default})"
        parser.add_argument(
            f"--{item.name}",
            type=reader(annotation),
            default=argparse.SUPPRESS,
            metavar="true|false" if "bool" in annotation else item.name.rpartition("_")[2].upper(),
            help=text.replace("%", "%%"),
            **more,
        )


_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "dict": (dict,),
}


def reader(annotation: str) -> Callable[[str], Any]:
    """What reads a value of this type: numbers, true, false and null as YAML has them, and text as it is.

    It raises ValueError for a value of another type; the message says what to give.
    """
    kind, optional = (
        next((kind for kind in _TYPES if kind in annotation), "str"),
        "None" in annotation,
    )

    def read(text: str) -> Any:
        import yaml

        if kind == "str":
            return None if text == "null" and optional else text
        try:
            found = yaml.safe_load(text)
        except yaml.YAMLError:
            found = text
        right = (
            isinstance(found, _TYPES[kind])
            and (kind == "bool" or not isinstance(found, bool))
            and found == found
        )
        if right or (found is None and optional):
            return found
        raise ValueError(f"give {_KINDS[kind]}")

    read.__name__ = kind  # which argparse tells
    return read


class SettingsParser(CommandParser):
    """To be mixed in before TRL's `TrlParser`: flags of dataclasses, of which ``--help`` shows those that are ours.

    Args:
        dataclass_types: As `TrlParser` takes them.
        groups: Title -> the settings under it, in the order of the help. All others are told by ``--help-all``.
    """

    def __init__(
        self, dataclass_types: Iterable[type], groups: Mapping[str, Iterable[str]], **kwargs: Any
    ) -> None:
        self._groups = {title: list(names) for title, names in groups.items()}
        self._hints: dict[str, Any] = {}
        self.whole = False
        super().__init__(dataclass_types, **kwargs)
        self.add_argument(
            "--help-all",
            action=_HelpAll,
            help="show every setting, those of TRL and transformers included, and exit",
        )

    def _add_dataclass_arguments(self, dtype: type) -> None:
        super()._add_dataclass_arguments(dtype)  # type: ignore[misc]  # TrlParser's
        self._hints |= get_type_hints(dtype)

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError: these settings are read by other programs as well (suites, benches)."""
        raise ConfigError(self.told(message))

    def format_help(self) -> str:
        """Our settings, one line each; after ``--help-all``, everything."""
        if self.whole:
            return super().format_help()
        lines = [
            f"usage: {self.prog} [--config FILE|NAME] [--SETTING VALUE ...]",
            "",
            self.description or "",
        ]
        by_name = {action.dest: action for action in reversed(self._actions)}
        for title, names in self._groups.items():
            lines += ["", f"{title}:"]
            lines += [_line(by_name[name]) for name in names if name in by_name]
        more = len(by_name.keys() - {name for names in self._groups.values() for name in names})
        return "\n".join(
            [
                *lines,
                "",
                f"--help-all shows {more} more, of TRL and transformers, and all in full.",
                "",
            ]
        )

    def set_defaults_with_config(self, **given: Any) -> list[str]:
        """As TRL's; values that a flag could not have are refused here.

        Raises:
            ConfigError: A setting is unknown, or has a value of another type.
        """
        for name, value in given.items():
            if name not in self._hints:
                if name == "env":
                    continue
                raise ConfigError(
                    f"{name} is no setting{close_match(name, self._hints)} (see {self.prog} --help)."
                )
            self._check(name, value)
        return super().set_defaults_with_config(**given)  # type: ignore[misc]  # TrlParser's

    def _check(self, name: str, value: Any) -> None:
        action = next(one for one in self._actions if one.dest == name)
        hint = str(self._hints[name])
        if value is None or "dict" in hint:
            return
        if isinstance(value, (list, dict)) and "list" not in hint:
            raise ConfigError(f"{name} is {_cut(str(value))}: give one value.")
        for one in value if isinstance(value, list) else [value]:
            try:
                if action.type in (int, float) or inspect.isfunction(action.type):
                    action.type(str(one))
            except (ValueError, TypeError, argparse.ArgumentTypeError):
                kind = getattr(action.type, "__name__", "value")
                raise ConfigError(
                    f"{name} is {_cut(repr(one))}: give {_KINDS.get(kind, kind)}."
                ) from None

    def parse_args_into_dataclasses(self, args: Sequence[str], **kwargs: Any) -> Any:
        """As transformers' own, but what is not understood is a wrong call before any setting is looked at."""
        if not kwargs.get("return_remaining_strings"):
            _, unknown = self.parse_known_args(list(args))
            if unknown:
                self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return super().parse_args_into_dataclasses(list(args), look_for_args_file=False, **kwargs)  # type: ignore[misc]


class _HelpAll(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        super().__init__(
            option_strings,
            argparse.SUPPRESS,
            nargs=0,
            default=argparse.SUPPRESS,
            help=kwargs["help"],
        )

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> NoReturn:
        parser.whole = True
        parser.print_help()
        raise SystemExit(0)


def _line(action: argparse.Action) -> str:
    """A flag, the first sentence on it, and its default."""
    text = re.split(r"(?<=[a-z)])[.;] ", str(action.help or "").replace("%%", "%"), maxsplit=1)[
        0
    ].rstrip(".;")
    default = action.default
    shown = "" if default in (None, "", [], argparse.SUPPRESS) else f" ({default})"
    return f"  --{action.dest:<29} {textwrap.shorten(text, 118 - 34 - len(shown), placeholder=' ...')}{shown}"

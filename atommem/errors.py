"""Errors and their messages. Every error raised on purpose derives from `AtomMemError`."""

import difflib
import errno
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path


class AtomMemError(Exception):
    """Base class. Its message names what is wrong, with the value, and what to do."""


class ConfigError(AtomMemError):
    """A setting is missing, unknown or contradicts another."""


class DialectError(AtomMemError):
    """A dialect or template file is unknown or incomplete."""


class DataError(AtomMemError):
    """A data file is broken. The message names the file, the row and the field."""


class TraceError(AtomMemError):
    """A trace, or a saved session or memory, is missing, damaged or another's."""


class PolicyError(AtomMemError):
    """The policy back end refused a request for good (bad model name, bad sampling value)."""


class PromptTooLongError(PolicyError):
    """The prompt does not fit the policy's context window."""


class UnknownModelError(PolicyError):
    """The server does not serve a model of this name."""


class JudgeError(AtomMemError):
    """The judge of answers refuses every request, or too many of its verdicts cannot be read."""


class OutageError(AtomMemError):
    """Something outside the policy failed (server gone, time-out) and its retries are used up.

    The episode loop turns it into a failed episode: counted and reported, never scored 0. `status`
    is HTTP's, where a server answered with one.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class BudgetSpentError(AtomMemError):
    """The budget is exhausted. Finished episodes are stored and count on resuming."""


_REMEDIES = {
    errno.ENOENT: "Give an existing path",
    errno.EACCES: "Give a path that you may use, or change its permissions",
    errno.ENOSPC: "Free some space, or give a path on another disk",
    errno.EDQUOT: "Free some space, or give a path on another disk",
    errno.EFBIG: "Raise the limit of file sizes, or give a path on another disk",
    errno.EROFS: "Give a path on a disk that can be written",
    errno.ENOTDIR: "A part of the path is a file: give another path",
}


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean X?)"`` if one of `known` begins so or is close, else nothing."""
    names = sorted(known)
    found = [one for one in names if len(name) > 3 and one.startswith(name)]
    found = found or difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {found[0]}?)" if found else ""


def suggest_path(path: Path) -> str:
    """`suggest` for a missing path, among the files beside it."""
    try:
        return "" if path.exists() else suggest(str(path), map(str, path.parent.iterdir()))
    except OSError:
        return ""


def format_error(error: BaseException) -> str:
    """Return the message of any error on one line of at most 800 characters."""
    if isinstance(error, OSError) and (error.errno or error.filename):
        paths = [str(path) for path in (error.filename, error.filename2) if path is not None]
        place = f"{shorten(' and '.join(paths), 400)}: " if paths else ""
        return place + explain(error)
    return shorten(" ".join(str(error).split()), 800)


def explain(error: OSError) -> str:
    """Return the system's message and what to do."""
    remedy = _REMEDIES.get(error.errno or 0, "Give another path or address")
    return f"{error.strerror or error}. {remedy}."


def shorten(text: str, length: int = 120) -> str:
    """Return `text` without its middle if it is longer than `length`."""
    half = length // 2
    return text if len(text) <= length else f"{text[:half]}...{text[-half + 3 :]}"


def check_writable(
    name: str,
    path: str | os.PathLike[str] | None,
    *,
    folder: bool,
    inputs: Iterable[str | os.PathLike[str] | None] = (),
) -> None:
    """Raise ConfigError if setting `name` is a path that cannot be written, or one of `inputs`.

    Creates nothing.
    """
    if path is None:
        return
    place, kind = Path(path), "folder" if folder else "file"
    try:
        if not str(path).strip() or (
            place.exists() and not (place.is_dir() if folder else place.is_file())
        ):
            raise ConfigError(f"{name}={path}: not a {kind}. Give a {kind}.")
        parents = (parent for parent in place.absolute().parents if parent.exists())
        with tempfile.TemporaryFile(dir=place if place.is_dir() else next(parents)):
            pass
    except OSError as error:
        raise ConfigError(f"{name}={shorten(str(path))}: {explain(error)}") from error
    for source in inputs if place.is_file() else ():
        if source and place.resolve().is_relative_to(Path(source).resolve()):
            raise ConfigError(
                f"{name}={path}: would overwrite the input {source}. Give another name."
            )

"""What the user gives to be read: a text, pieces of one, or a file."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from pathlib import Path

from atommem.errors import DataError

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def text_of(source: str | Path | Iterable[str]) -> tuple[str | list[str], str]:
    """The text, or its pieces, and its name: a file's, and otherwise none.

    Raises:
        DataError: There is no such file, it is no text file, or there is no text in it.
    """
    if isinstance(source, Path):
        return read_file(source), source.name
    if isinstance(source, str):
        if "\n" not in source and len(source) < 4096 and _is_file(source):
            raise DataError(
                f"{source!r} is the path of a file, and would be read as a text: give Path({source!r})."
            )
        return _not_blank(source, "the text"), ""
    if isinstance(source, (bytes, bytearray)):
        raise DataError("bytes were given to be read: decode them first.")
    pieces = list(source)
    for number, piece in enumerate(pieces, 1):
        if not isinstance(piece, str):
            raise DataError(f"piece {number} to be read is a {type(piece).__name__}: give strings.")
    pieces = [piece for piece in pieces if piece.strip()]
    if not pieces:
        raise DataError("there is nothing to read: every piece is empty.")
    return pieces, ""


def read_file(path: Path) -> str:
    """The text of a file: UTF-8, or what its byte order mark says.

    Raises:
        DataError: As of `text_of`.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error
    return decoded(raw, str(path))


def decoded(raw: bytes, name: str) -> str:
    """Bytes as text; `name` for the error.

    Raises:
        DataError: They are no text, or there are none.
    """
    encoding = next((encoding for mark, encoding in _MARKS if raw.startswith(mark)), "utf-8")
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name} is no {encoding} text (byte {raw[error.start]:#04x} at {error.start}): convert it to UTF-8; of a "
            "PDF or an office file, extract the text first."
        ) from error
    if "\0" in text:
        raise DataError(
            f"{name} is a binary file (a NUL at {text.index(chr(0))}): give plain text."
        )
    return _not_blank(text, name)


def _not_blank(text: str, name: str) -> str:
    if not text.strip():
        raise DataError(f"{name} is empty: there is nothing to read.")
    return text


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False

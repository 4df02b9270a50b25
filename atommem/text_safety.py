r"""Text from outside is data: it never becomes a control token or part of a prompt's structure.

`clean` and `clean_json` apply on entry, `SegmentEncoder` and `Headings` in prompts, `guard_text`
for servers whose tokenizer is unknown, `printable` for terminals. Memory, records and traces hold
text as it came. `insert_backslashes` inserts every backslash, so different texts stay different.
"""

import copy
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache, lru_cache, partial
from itertools import pairwise
from math import isfinite
from typing import Any, NamedTuple

from atommem.errors import DialectError
from atommem.tokens import Tokenizer

REPLACEMENT = "\ufffd"
_NOTHING = "(?!)"  # matches nowhere
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def clean(text: str) -> str:
    """Replace lone surrogates and NUL by U+FFFD.

    UTF-8 and JSON cannot carry a surrogate, and C programs end a text at NUL. Two surrogates that
    belong together become their character.
    """
    try:
        text.encode()  # an order of magnitude faster than a search for surrogates
    except UnicodeEncodeError:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.replace("\0", REPLACEMENT)


def clean_json(value: Any, max_depth: int) -> Any:
    r"""Return a value of JSON with its texts cleaned: ``\ud800`` spells what `clean` has removed.

    ValueError or RecursionError: not JSON, NaN or infinity, or nested deeper than `max_depth`.
    """
    if max_depth < 0:
        raise ValueError("nested too deeply")
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [clean_json(item, max_depth - 1) for item in value]
    if isinstance(value, dict):
        return {clean(name): clean_json(item, max_depth - 1) for name, item in value.items()}
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    return value


def printable(text: str) -> str:
    """Replace every character that a terminal would obey by U+FFFD; the length stays."""
    return _UNPRINTABLE.sub(REPLACEMENT, text)


def insert_backslashes(text: str, find: Callable[[str], Iterable[int]]) -> str:
    """Insert one backslash at each place that `find` returns for `text` without its backslashes.

    Injective: removing one backslash at each of those places restores `text`.
    """
    places = sorted(set(find(text.replace("\\", ""))))
    if not places:
        return text
    others = [at for at, character in enumerate(text) if character != "\\"] + [len(text)]
    cuts = [others[place] for place in places]
    return "\\".join(text[start:end] for start, end in pairwise([0, *cuts, len(text)]))


# Forms of control tokens, for servers whose tokenizer is unknown ---------------------------------

_NAMES = (
    r"s|unk|pad|eos|bos|eot|eod|eom|bot|mask|cls|sep|sop|eop|sys|system|user|assistant|"
    r"think|thinking|thought|reasoning|tools?|functions?|functioncall|"
    r"image|img|audio|video|filename|reponame|seed:\w{1,20}|minimax:\w{1,20}|(?:unused|extra|reserved|special)\d{1,5}|"
    r"[^\W_]{1,20}(?:_[^\W_]{1,20}){1,6}"  # <start_of_turn>, <extra_id_0>: HTML has no such names
)
_BRACKETED = (
    r"inst|system_prompt|available_tools|tool_calls|tool_results|tool_content|think|args|call_id|model_settings|"
    r"img|img_break|img_end|audio|begin_audio|prefix|middle|suffix|cls|sep|pad|unk|mask|bos|eos|sys|gmask|smask|"
    r"(?:control|unused)_?\d{1,5}"
)
# The first character of a form, and how it goes on.
_FORM = re.compile(
    r"<(?=\|[^\s<>|]{1,80}\|?>|[^\s<>|]{1,80}\|>)"
    rf"|<(?=/?(?:{_NAMES})>|</?sys>>)"
    rf"|\[(?=/?(?:{_BRACKETED})\]|e~\[)"
    r"|◁(?=/?\w{1,40}▷)"
    r"|\](?=~!?b[\[\]])",
    re.IGNORECASE,
)
_MARKUP = re.compile(r"<<?[^\s<>]{1,80}>>?|\[[^\s\[\]]{1,80}\]|◁[^\s▷]{1,80}▷")


def guard_text(text: str, words: Collection[str] = ()) -> str:
    r"""Break the control tokens of all model families in `text`, for an unknown tokenizer.

    `words` and forms like ``<|im_end|>``, ``[INST]`` or ``<think>`` get a backslash behind their
    first character (``<\|im_end|>``), also in full width or with invisible characters in them.
    """
    find_words = _word_finder(words)
    return insert_backslashes(clean(text), lambda base: {*_find_forms(base), *find_words(base)})


def forms_in(text: str) -> list[str]:
    """Return the control forms in `text`, for example those of a chat template.

    Models are trained on ``[INST]`` or ``<|user|>`` also where these are not tokens.
    """
    return [match[0] for match in _MARKUP.finditer(text) if _FORM.search(match[0])]


def _find_forms(text: str) -> Iterator[int]:
    if text.isascii():
        return (match.end() for match in _FORM.finditer(text))
    parts = [_compatible(character) for character in text]
    origins = [at for at, part in enumerate(parts) for _ in part]
    return (origins[match.start()] + 1 for match in _FORM.finditer("".join(parts)))


def _word_finder(words: Collection[str]) -> Callable[[str], Iterator[int]]:
    """Find the places behind the first character of each of `words`."""
    texts = sorted({text for word in words if len(text := word.replace("\\", "")) > 1})
    patterns = (f"{re.escape(text[0])}(?={re.escape(text[1:])})" for text in texts)
    pattern = re.compile("|".join(patterns) or _NOTHING)
    return lambda text: (found.end() for found in pattern.finditer(text))


@lru_cache(maxsize=4096)
def _compatible(character: str) -> str:
    """Return a character as a normalising tokenizer may see it: NFKC, without invisible marks."""
    return "".join(
        part
        for part in unicodedata.normalize("NFKC", character)
        if part.isspace() or unicodedata.category(part) not in ("Cf", "Mn", "Me", "Cc")
    )


# Headings: the structure of a prompt ------------------------------------------------------------

_BREAKS = r"\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""All that a tokenizer, a chat template or a reader may take for the end of a line."""
_NUMBER = "\0"


class TemplatePart(NamedTuple):
    """A literal run of a template and the placeholder behind it, empty at the end."""

    literal: str
    placeholder: str
    is_number: bool = False


class Headings:
    r"""The literal texts that structure a prompt, kept apart from data.

    A heading is how a template begins, or goes on at the start of a line (without `lines`: of a
    word) after data; numbers in it are any numbers. Data that has one there gets a backslash in
    front: ``\Memory 2: x``. A heading without a letter (``1.``) is too common for that: it counts
    in data of its own template, and at the start of other data. A literal that goes on behind data
    on its line gets a backslash inside where that data holds it. DialectError: a template begins
    with a placeholder for text.
    """

    def __init__(self, templates: dict[str, list[TemplatePart]], lines: bool, empty: str) -> None:
        self._lines = lines
        self._empty = _pattern(empty)
        self._lettered: set[str] = set()
        self._bare: dict[str, set[str]] = {}
        self._stops: dict[tuple[str, str], re.Pattern[str]] = {}
        self._finder = cache(self._make_finder)
        for name, parts in templates.items():
            heading = self._heading(parts)
            if heading.strip():
                self._add(name, heading)
            elif text := parts[0].placeholder:
                raise DialectError(
                    f"template {name} begins with text, {{{text}}}. Put a word before it, or write "
                    f"{{{text}:d}} for a number."
                )
            for at in range(1, len(parts)):
                if not all(part.is_number for part in parts[:at]):  # data stands before it
                    self._add_literal(name, parts[at:], parts[at - 1])

    def guard(self, text: str, template: str, placeholder: str) -> str:
        return insert_backslashes(text, self._finder(template, placeholder))

    def _add_literal(self, name: str, parts: Sequence[TemplatePart], before: TemplatePart) -> None:
        """Add the heading that `parts` begin with, or the literal that goes on behind data."""
        words = parts[0].literal.lstrip()
        gap = parts[0].literal.removesuffix(words)
        if words and ("\n" in gap if self._lines else gap):
            self._add(name, self._heading(parts))
        elif words and parts[0].placeholder and not before.is_number:
            line, newline, _ = words.partition("\n")
            end = rf"[^\S{_BREAKS}]*+(?:[{_BREAKS}]|\Z)" if newline else ""
            stop = re.sub(r"\\?\s", r"(?:\\s|\\Z)", re.escape(line.replace("\\", "")))
            self._stops[name, before.placeholder] = re.compile(stop + end)

    def _heading(self, parts: Sequence[TemplatePart]) -> str:
        """The literal text up to the end of the line or the first data, with marks for numbers."""
        text = ""
        for part in parts:
            text = (text + part.literal).lstrip()
            if "\n" in text and self._lines:
                return text.partition("\n")[0] + "\n"
            if not part.is_number:
                return text if part.placeholder else text + "\n"
            text += _NUMBER
        return text

    def _add(self, name: str, heading: str) -> None:
        is_word = heading[-1:].isspace() and (not self._lines or heading.rstrip()[-1:].isalnum())
        end = (r"(?!\w)" if self._lines else r"(?!\S)") if is_word else ""
        lettered = any(map(str.isalpha, heading))
        found = self._lettered if lettered else self._bare.setdefault(name, set())
        found.add(_pattern(heading) + end)

    def _make_finder(self, template: str, placeholder: str) -> Callable[[str], Iterator[int]]:
        own = self._lettered | self._bare.get(template, set())
        anywhere = "|".join(sorted(own)) or _NOTHING
        at_start = "|".join(sorted(self._lettered.union(*self._bare.values()))) or _NOTHING
        empty = rf"|(?={self._empty}\s*+\Z)" if self._empty else ""
        first = re.compile(rf"\s*+(?:(?={at_start}){empty})")
        between = rf"[{_BREAKS}][^\S{_BREAKS}]*+" if self._lines else r"\s++"
        later = re.compile(rf"{between}(?={anywhere})")
        stop = self._stops.get((template, placeholder), re.compile(_NOTHING))

        def find(text: str) -> Iterator[int]:
            if found := first.match(text):
                yield found.end()
            yield from (found.end() for found in later.finditer(text))
            yield from (found.start() + 1 for found in stop.finditer(text))

        return find


def _pattern(literal: str) -> str:
    """Return a regular expression for a literal text, with any white space and any numbers."""
    words = literal.replace("\\", "").split()
    return r"\s++".join("[0-9]++".join(map(re.escape, word.split(_NUMBER))) for word in words)


# Segments of a prompt, for a tokenizer that is at hand -------------------------------------------

_ANCHORS = ("\ue000", ".")  # hardly any tokenizer merges these with what follows


class SegmentEncoder:
    """Encodes the segments of a prompt, data without control tokens.

    Data goes through a copy of the tokenizer that matches no control token. Text that still gives
    one (a vocabulary may hold it as a word, or in the place of a byte as SmolLM2's) is broken by a
    backslash or becomes U+FFFD. `markers` are texts that the model takes for control tokens though
    they are not tokens (`forms_in`).
    """

    def __init__(self, tokenizer: Tokenizer, markers: Collection[str] = ()) -> None:
        tokens = control_tokens(tokenizer)
        self._controls = tokens.keys() - _unknown_word(tokenizer)
        self._encode = partial(tokenizer.encode, add_special_tokens=False)
        self._encode_data = _data_encoder(tokenizer, tokens.values())
        # SentencePiece puts a blank before each text: in the middle of a prompt there is none.
        first = "".join(getattr(tokenizer, "tokenize", str)("x"))
        unknown = getattr(tokenizer, "unk_token_id", None)
        anchors = (text for text in _ANCHORS if unknown not in self._encode(text))
        self._anchor = next(anchors, "") if first.startswith(("▁", "Ġ")) else ""
        words = {
            text
            for text in tokens.values()
            if any(self.controls(self._encode_data(form)) for form in (text, f" {text} "))
        }
        words |= set(markers) - set(tokens.values())
        self._find_words = _word_finder(words)

    def template(self, text: str, first: bool = False) -> list[int]:
        """Encode template text; `first` where a prompt begins with it."""
        return self._encode(text) if first else self._inner(self._encode, text)

    def data(self, text: str) -> list[int]:
        """Encode data (`clean`): no control token is among the ids."""
        text = insert_backslashes(text, self._find_words)
        token_ids = self._inner(self._encode_data, text)
        if self.controls(token_ids):
            unwritable = {part for part in set(text) if self.controls(self._encode_data(part))}
            text = "".join(REPLACEMENT if part in unwritable else part for part in text)
            token_ids = self._inner(self._encode_data, text)
        if self.controls(token_ids):  # a normaliser sees a token that the text does not show
            token_ids = self._inner(self._encode_data, "\\".join(text))
        return [token for token in token_ids if token not in self._controls]

    def controls(self, token_ids: Sequence[int]) -> list[int]:
        return [token for token in token_ids if token in self._controls]

    def _inner(self, encode: Callable[[str], list[int]], text: str) -> list[int]:
        """Return the ids of a text that other text comes before."""
        if not self._anchor:
            return encode(text)
        before, token_ids = encode(self._anchor), encode(self._anchor + text)
        return token_ids[len(before) :] if token_ids[: len(before)] == before else encode(text)


def control_tokens(tokenizer: Any) -> dict[int, str]:
    """Return the special and added tokens of a tokenizer by id, without ordinary text.

    Ordinary are runs of white space (Phi and GPT-NeoX have such tokens), and words of letters and
    digits that were added to a vocabulary and are not special.
    """
    found: dict[int, str] = {}
    for token_id, token in getattr(tokenizer, "added_tokens_decoder", {}).items():
        text = str(token)
        ordinary = not getattr(token, "special", True) and all(map(str.isalnum, text.split()))
        if not ordinary and text.replace("▁", " ").strip():
            found[int(token_id)] = text
    # A vocabulary may hold special tokens that were never added.
    ids = getattr(tokenizer, "all_special_ids", ())
    for text, token_id in zip(getattr(tokenizer, "all_special_tokens", ()), ids, strict=False):
        if str(text).strip():
            found[int(token_id)] = str(text)
    return found


def _unknown_word(tokenizer: Any) -> set[int]:
    """Return the id of unknown words, unless it is a control token too (as SmolLM2's)."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    if unknown is None:
        return set()
    words = unknown in tokenizer.encode("qzxj vwkq", add_special_tokens=False)
    return {unknown} if words or "unk" in str(tokenizer.unk_token).lower() else set()


def _data_encoder(tokenizer: Any, tokens: Iterable[str]) -> Callable[[str], list[int]]:
    """Return a function from text to token ids that takes `tokens` for ordinary text."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if hasattr(backend, "encode_special_tokens"):
        twin = copy.deepcopy(backend)
        # Qwen's ``<tool_call>`` is an added token and not special.
        twin.add_special_tokens(list(tokens))
        twin.encode_special_tokens = True
        twin.no_truncation()
        twin.no_padding()
        return lambda text: twin.encode_batch_fast([text], add_special_tokens=False)[0].ids
    options = {"add_special_tokens": False}
    if hasattr(tokenizer, "split_special_tokens"):  # transformers' tokenizers in Python
        options["split_special_tokens"] = True
    return partial(tokenizer.encode, **options)

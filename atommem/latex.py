r"""The text of an answer that a model wrote as LaTeX, such as ``\text{Paris}`` in its box."""

from __future__ import annotations

import re
from unicodedata import normalize

_ACCENTS = str.maketrans(
    "`'^~=u.\"Hvck", "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030b\u030c\u0327\u0328"
)
_LETTERS = {
    **{"ss": "ß", "o": "ø", "O": "Ø", "l": "ł", "L": "Ł", "ae": "æ", "AE": "Æ"},
    **{"oe": "œ", "OE": "Œ", "aa": "å", "AA": "Å", "pounds": "£", "euro": "€", "degree": "°"},
    **{"ldots": "...", "dots": "...", "quad": " ", "qquad": " ", "left": "", "right": ""},
    **dict.fromkeys(("bf", "rm", "it", "sf", "tt", "em", "displaystyle", "textstyle"), ""),
}
# Other commands stay. `\"` also escapes quotation marks: without braces it is an accent only
# within a word.
_TOKEN = re.compile(
    r"""
    (?P<grouped> (?<=\d) (?: \\[,;:!\ ] | \{,\} | ~ ) (?=\d{3}(?!\d)) )
    | \\{1,2} (?P<wrapper> (?:text|math)[a-z]*+ (?<!color) | emph | operatorname\*? | [mhf]box | bm
        | underline | overline | boldsymbol ) \s*+ \{
    | (?P<colour> \\ (?:text)?color \s*+ \{ [^{}]*+ \} )
    | (?P<degree> \^ (?: \\circ(?![A-Za-z]) | \{\\circ\} ) )
    | \\ (?P<accent> [`'^"~=.uvHck] ) \{ \\?+ (?P<braced> [A-Za-z] ) \}
    | \\ (?: (?P<over> [`'^~] ) | (?<=[^\W\d_]\\) (?P<umlaut> ") ) (?P<letter> [A-Za-z] )
    | \\ (?P<name> [A-Za-z]++ ) (?: \{\} | (?P<gap> \s++ ) )?+
    | \\ (?P<escaped> [&%$\#_{}] )
    | (?P<nothing> \\[!()\[\]] )
    | (?P<blank> \\[,;:>\ ] | \\\\ | (?<=[\w.,)])~(?=[\w(]) )
    | (?P<brace> [{}] )
    """,
    re.VERBOSE,
)


def plain_text(latex: str) -> str:
    r"""Return text without the LaTeX around it: commands of text and spaces, escapes, accents.

    Braces of no such command stay, as those of a set do. Text without LaTeX stays as it is.
    """
    if not re.search(r"[\\~$]|\{,\}", latex):
        return latex
    parts: list[str] = []
    drops: list[bool] = []  # of each open brace, whether it is a command's
    end = 0
    for match in _TOKEN.finditer(latex):
        parts.append(latex[end : match.start()])
        end = match.end()
        if match["wrapper"]:
            drops.append(True)
        elif match["brace"] == "{":
            drops.append(False)
            parts.append("{")
        elif match["brace"]:
            if not drops or not drops.pop():
                parts.append("}")
        else:
            parts.append(_replacement(match))
    text = "".join((*parts, latex[end:])).strip()
    inner = text[1:-1].strip()
    return inner if len(text) > 2 and text[0] == text[-1] == "$" and "$" not in inner else text


def _replacement(match: re.Match[str]) -> str:
    if match["grouped"]:
        return ","
    if match["degree"]:
        return "°"
    if match["blank"]:
        return " "
    if match["escaped"]:
        return match["escaped"]
    accent = match["accent"] or match["over"] or match["umlaut"]
    if accent:
        return normalize("NFC", (match["braced"] or match["letter"]) + accent.translate(_ACCENTS))
    if match["name"] in _LETTERS:
        return _LETTERS[match["name"]]
    return match[0] if match["name"] else ""

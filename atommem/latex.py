r"""The text of an answer that a model wrote as LaTeX, such as ``\text{Paris}`` in its box."""

import re
from contextlib import suppress
from unicodedata import category, lookup, normalize

_ACCENTS = str.maketrans(
    "`'^~=u.\"Hvck", "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030b\u030c\u0327\u0328"
)
_SYMBOLS = dict(
    re.findall(
        r"(\S+)=(\S*)",
        """ss=ß o=ø O=Ø l=ł L=Ł ae=æ AE=Æ oe=œ OE=Œ aa=å AA=Å pounds=£ euro=€ degree=° ldots=...
        dots=... textendash=\u2013 textemdash=— times=\u00d7 pm=± cdot=· approx=≈ sim=~ to=→
        rightarrow=→ infty=∞ left= right= bf= rm= it= sf= tt= em= bfseries= itshape= displaystyle=
        textstyle= small= large= Large= huge=""",
    )
) | dict.fromkeys(("quad", "qquad"), " ")
# `\"` also escapes quotation marks: without braces it is an accent only within a word.
_TOKEN = re.compile(
    r"""
    (?P<grouped> (?<=\d) (?: \\[,;:!\ ] | \{,\} | ~ ) (?=\d{3}(?!\d)) )
    | (?P<dropped> \\ (?:(?:text)?color|href|[hv]space\*?|phantom|begin|end) \s*+ \{ [^{}]*+ \} )
    | \\ [dtc]?frac \s*+ \{ (?P<over> [^{}]*+ ) \} \s*+ \{ (?P<under> [^{}]*+ ) \}
    | \\{1,2} (?P<wrapper> (?! [dtc]?frac | sqrt | d?binom | .\{ ) [A-Za-z]++ \*? ) \s*+ \{
    | (?P<degree> \^ (?: \\circ(?![A-Za-z]) | \{\\circ\} ) )
    | \\ (?P<accent> [`'^"~=.uvHck] ) \{ \\?+ (?P<braced> [A-Za-z] ) \}
    | \\ (?: (?P<above> [`'^~] ) | (?<=[^\W\d_]\\) (?P<umlaut> ") ) (?P<letter> [A-Za-z] )
    | \\ (?P<name> [A-Za-z]++ ) (?: \{\} | (?P<gap> \s++ ) )?+
    | \\ (?P<escaped> [&%$\#_{}] )
    | (?P<nothing> \\[!()\[\]] )
    | (?P<blank> \\[,;:>\ ] | \\\\ | (?<=[\w.,)}])~(?=[\w(\\{$]) )
    | (?P<brace> [{}] )
    """,
    re.VERBOSE,
)


def plain_text(latex: str) -> str:
    r"""Return text without the LaTeX around it: commands, escapes and accents.

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
    accent = match["accent"] or match["above"] or match["umlaut"]
    if accent:
        return normalize("NFC", (match["braced"] or match["letter"]) + accent.translate(_ACCENTS))
    if match["under"]:
        return f"{match['over']}/{match['under']}"
    name = match["name"] or ""
    size = "CAPITAL" if name[:1].isupper() else "SMALL"
    with suppress(KeyError):
        symbol = _SYMBOLS.get(name) or lookup(f"GREEK {size} LETTER {name}")
        return symbol + (match["gap"] or "") if category(symbol[0]) == "Sm" else symbol
    return "" if name in _SYMBOLS or not name else match[0]

r"""The text of an answer that a model wrote as LaTeX, such as ``\text{Paris}`` in its box."""

import re
from contextlib import suppress
from unicodedata import category, lookup, normalize

from atommem.files import load_beside

_ACCENTS = str.maketrans(
    "`'^~=u.\"Hvckrdb",
    "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030b\u030c\u0327\u0328\u030a\u0323\u0331",
)
_TEXTS: dict[str, str] = load_beside(__file__, "latex.yaml")
_SWITCHES = _TEXTS["switches"].split()
_SYMBOLS = (
    dict(re.findall(r"(\S+)=(\S+)", _TEXTS["symbols"]))
    | dict.fromkeys(_TEXTS["spaces"].split(), " ")
    | dict.fromkeys([*_SWITCHES, *_TEXTS["empty"].split()], "")
)
# `\"` also escapes quotation marks: without braces it is an accent only within a word.
_TOKEN = re.compile(
    r"""
    (?P<grouped> (?<=\d) (?: \\[,;:!\ ] | \{,\} | ~ ) (?=\d{3}(?!\d)) )
    | (?<=\d) \{ (?P<sign> [.,] ) \} (?=\d)
    | \\ [bB]igg?[lrm]? (?![A-Za-z])
    | (?P<space> \\[hvm]space\*? \s*+ \{ [^{}]*+ \} )
    | (?P<dropped> \\ (?: (?:text)?color(?:box)? | href | parbox | [hv]?phantom
        | label | cite | footnote | tag | overset | begin (?:\{(?:array|tabular)\})?+ | end )
        \s*+ \{ [^{}]*+ \} ) (?P<wraps> \s*+ \{ )?+
    | \\ (?: (?:[dtcs]|nice)?frac | (?P<quantity> SI | qty ) ) \s*+ (?:
        \{ (?P<over> [^{}]*+ ) \} \s*+ \{ (?P<under> [^{}]*+ ) \}
        | (?P<digit> \d ) \s*+ (?P<digits> \d ) )
    | \\{1,2} (?P<wrapper> (?! (?:[dtcs]|nice)?frac | (?:SI|qty)\{ | sqrt | d?binom | .\{ )
        [A-Za-z]++ \*? ) (?:\[[^\]]*\])?+ \s*+ \{ (?!\})
    | (?P<switched> \{ \s*+ (?= \\ (?: SWITCH | color ) [^A-Za-z] ) )
    | (?:\{\})?+ (?P<degree> \^ (?: \\circ(?![A-Za-z]) | \{\\circ\} ) )
    | \\ (?P<accent> [`'^"~=.uvHckrdb] ) \{ \\?+ (?P<braced> [A-Za-z] ) \}
    | \\ (?: (?P<above> [`'^~] )
        | (?: (?<=[^\W\d_]\\) | (?<=\{\\) | (?<!\S\\)(?="[AOU](?![^\\]*\\")) ) (?P<umlaut> " )
        | (?P<mark> [vHcku] ) \s++ (?: (?=[A-Za-z](?![A-Za-z])) | (?<=[^\W\d_]\\.\s) ) )
        (?: \\ (?= [ij]\b ) )?+ (?P<letter> [A-Za-z] )
    | \\ (?:text)?+ (?P<name> [A-Za-z]++ ) (?: \{\} | (?P<gap> \s++ ) )?+
    | \\ (?P<escaped> [&%$\#_{}/] )
    | (?P<nothing> \\[!()\[\]@-] )
    | (?P<blank> \\[,;:>\ ] | \\\\ (?:\[[\d.a-z]{1,9}\])?+ | (?<=[\w.,)}&%])~(?=[\w(\\{$^]) )
    | (?P<brace> [{}] )
    """.replace("SWITCH", "|".join(_SWITCHES)),
    re.VERBOSE,
)
_RAISED = re.compile(r"(?<=\d)(\$?)\^\{?(st|nd|rd|th)\b\}?\1")  # 2^{nd}
_INDEX = re.compile(r"(?<=[^\W_])(?:_|(\^))\{(\d+)\}")  # CO_{2}, 10^{6}
_MATH = re.compile(r"\$(?=[^\s$])([^$]*+)(?<=\S)\$(?!\d)")  # as pandoc finds it, and not two prices


def plain_text(latex: str) -> str:
    r"""Return text without the LaTeX around it: commands, escapes and accents.

    Braces of no such command stay, as those of a set do. Text without LaTeX stays as it is.
    """
    if not re.search(r"[\\~$]|\{[,.]\}|[_^]\{", latex):
        return latex
    parts: list[str] = []
    braces: list[int] = []  # of each open brace its place in parts, or 0 if it is a command's
    end = 0
    for match in _TOKEN.finditer(latex):
        parts.append(latex[end : match.start()])
        end = match.end()
        if match["wrapper"] or match["wraps"] or match["switched"]:
            braces.append(0)
        elif match["brace"] == "{":
            braces.append(len(parts))
            parts.append("{")
        elif match["brace"]:
            begin = braces.pop() if braces else -1
            inside = "".join(parts[begin + 1 :]) if 0 < begin > len(parts) - 5 else ""
            if len(inside) == 1 and not inside.isascii():
                parts[begin] = ""  # of one accented letter
            elif begin:
                parts.append("}")
        else:
            parts.append(_replacement(match))
    text = _INDEX.sub(r"\1\2", _RAISED.sub(r"\2", "".join((*parts, latex[end:]))))
    return re.sub(" {2,}", " ", _MATH.sub(r"\1", text.replace("$$", "$"))).strip()


def _replacement(match: re.Match[str]) -> str:
    if match["grouped"] or match["sign"]:
        return match["sign"] or ","
    if match["degree"]:
        return "°"
    if match["blank"] or match["space"]:
        return " "
    if match["escaped"]:
        return match["escaped"]
    accent = match["accent"] or match["above"] or match["umlaut"] or match["mark"]
    if accent:
        return normalize("NFC", (match["braced"] or match["letter"]) + accent.translate(_ACCENTS))
    if over := match["over"] or match["digit"]:
        before = match.string[match.start() - 1 : match.start()]
        numbers = map(plain_text, (over, match["under"] or match["digits"]))
        return " " * before.isdigit() + (" " if match["quantity"] else "/").join(numbers)
    name = match["name"] or ""
    if (symbol := _SYMBOLS.get(name)) is None:
        with suppress(KeyError):
            size = "CAPITAL" if name[:1].isupper() else "SMALL"
            symbol = lookup(f"GREEK {size} LETTER {name}")
    if symbol is None:
        return match[0] if name else ""
    return symbol + (match["gap"] or "") if symbol and category(symbol[0]) == "Sm" else symbol

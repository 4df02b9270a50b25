"""The forms of control tokens of all common model families, for text whose reader's tokenizer is not known."""

from __future__ import annotations

import re

from atommem.untrusted.cleaning import clean
from atommem.untrusted.control import find_behind_first
from atommem.untrusted.escaping import Escaper, Fold, compatible

_NAMES = (
    r"s|unk|pad|eos|bos|eot|eod|eom|bot|mask|cls|sep|sop|eop|sys|system|user|assistant|"
    r"think|thinking|thought|reasoning|tools?|functions?|functioncall|"
    r"image|img|audio|video|filename|reponame|seed:\w{1,20}|minimax:\w{1,20}|(?:unused|extra|reserved|special)\d{1,5}|"
    r"[^\W_]{1,20}(?:_[^\W_]{1,20}){1,6}"  # <start_of_turn>, <tool_call>, <extra_id_0>: no word of HTML looks like it
)
_BRACKETED = (
    r"inst|system_prompt|available_tools|tool_calls|tool_results|tool_content|think|args|call_id|model_settings|"
    r"img|img_break|img_end|audio|begin_audio|prefix|middle|suffix|cls|sep|pad|unk|mask|bos|eos|sys|gmask|smask|"
    r"(?:control|unused)_?\d{1,5}"
)
# The first character, and how a form goes on from there. Full-width bars are plain ones once they are folded.
_FORMS = (
    r"<(?=\|[^\s<>|]{1,80}\|?>|[^\s<>|]{1,80}\|>)",
    rf"<(?=/?(?:{_NAMES})>|</?sys>>)",
    rf"\[(?=/?(?:{_BRACKETED})\]|e~\[)",
    r"◁(?=/?\w{1,40}▷)",
    r"\](?=~!?b[\[\]])",
)
_FORM = re.compile("|".join(_FORMS), re.IGNORECASE)
_MARKUP = re.compile(r"<<?[^\s<>]{1,80}>>?|\[[^\s\[\]]{1,80}\]|◁[^\s▷]{1,80}▷")
find_known_forms = find_behind_first(_FORM)
_escape = Escaper("\\", Fold(compatible), [find_known_forms])


def guard_text(text: str) -> str:
    """`text` for a server whose tokenizer is not known: no control token of any model family comes out of it.

    Such forms (``<|im_end|>``, ``<s>``, ``[INST]``, ``<think>``, also in full-width or with invisible characters in
    between) get a backslash behind their first character: ``<\\|im_end|>``. What is such a form but for its
    backslashes gets one more, so different texts stay different; all else stays as it is.
    """
    return _escape(clean(text))


def forms_in(text: str) -> list[str]:
    """The control forms that are written in `text`, say in what a chat template puts around its messages.

    Models are trained on ``[INST]`` or ``<|user|>`` as on tokens, also where their tokenizer has none for it.
    """
    return [match[0] for match in _MARKUP.finditer(text) if _FORM.search(match[0])]

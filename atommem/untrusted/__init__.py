"""Text from outside is data: nothing that it says is read as a control token or as part of a prompt's structure.

- `clean`: what no request can carry becomes U+FFFD. On entry: tasks, pages, tool results, completions.
- `read_json`: the same for JSON and the texts in it.
- `printable`: on its way to a terminal, without what that would obey.
- `PromptGuard`: for prompts whose tokenizer is at hand; with a `Structure`, for prompts of templates.
- `guard_text`: for text that goes to a server whose tokenizer is not known (a judge, a chat endpoint).

Memory, records and traces hold data as it came; it is rewritten where it is put into a prompt, and nowhere else.
"""

from atommem.untrusted.cleaning import clean, printable, read_json
from atommem.untrusted.guard import PromptGuard, Rewrite
from atommem.untrusted.known_forms import forms_in, guard_text
from atommem.untrusted.structure import Structure

__all__ = [
    "PromptGuard",
    "Rewrite",
    "Structure",
    "clean",
    "forms_in",
    "guard_text",
    "printable",
    "read_json",
]

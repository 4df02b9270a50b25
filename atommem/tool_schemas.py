"""Tools as a prompt shows them. What a server says of its tools is a stranger's text: data, as any other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atommem.actions import OUR_KINDS, ActionSpec
from atommem.errors import ConfigError
from atommem.tokens import Tokenizer
from atommem.untrusted import PromptGuard

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_LONGEST_TEXT = 2000
Tools = list[dict[str, Any]]
"""As chat templates and OpenAI's API take them."""
Render = Callable[[Tools], str]


def shown_tools(actions: Sequence[ActionSpec], guard: PromptGuard) -> Tools:
    """The tools among `actions`: every text of a description or schema in one line, at most 2,000 characters of it, no
    control token in it.

    Raises:
        ConfigError: A tool's name is none that could be called, or that of an action of ours.
    """
    for spec in actions:
        if spec.is_tool and not _NAME.fullmatch(spec.name):
            raise ConfigError(
                f"a tool is called {spec.name[:200]!r}: a name has letters, digits, '_', '.', ':', '/' and '-', at "
                "most 128. Leave out the source that it comes from."
            )
        if spec.is_tool and spec.name in OUR_KINDS:
            raise ConfigError(
                f"a tool is called {spec.name}, as an action of ours is: give it another name."
            )

    def rewritten(value: Any) -> Any:
        if isinstance(value, str):
            line = " ".join(value.split())
            return guard.data(line[:_LONGEST_TEXT] + ("..." if len(line) > _LONGEST_TEXT else ""))
        if isinstance(value, Mapping):
            return {rewritten(str(name)): rewritten(item) for name, item in value.items()}
        return [rewritten(item) for item in value] if isinstance(value, list | tuple) else value

    return [
        _function(spec.name, rewritten(spec.description), rewritten(spec.schema or {}))
        for spec in _tools(actions)
    ]


def native_tools(
    actions: Sequence[ActionSpec], tools: Tools, tokenizer: Tokenizer, tag: str, render: Render
) -> Tools:
    """`tools`, if the chat template words tools itself, and asks for calls as they are read here; else none.

    Args:
        actions: That they are of.
        tools: As `shown_tools` gives them.
        tokenizer: Of the policy.
        tag: Of a call.
        render: A prompt with these tools.

    Raises:
        ConfigError: What is said of a tool becomes a control token in this template.
    """
    if not tools or getattr(tokenizer, "chat_template", None) is None:
        return []
    try:
        rendered = render(tools)
    except Exception:  # a template raises what it likes where it takes no tools
        return []
    names = [tool["function"]["name"] for tool in tools]
    if (
        f"<{tag}>" not in rendered
        or f"<{tag}>" in render([])
        or not all(name in rendered for name in names)
    ):
        return []
    guard = PromptGuard(tokenizer)
    bare = render([_function(spec.name, "", {}) for spec in _tools(actions)])
    found, expected = (
        guard.controls(tokenizer.encode(text, add_special_tokens=False))
        for text in (rendered, bare)
    )
    if found != expected:
        raise ConfigError(
            f"what is said of the tools {', '.join(names)} holds control tokens: leave out their source."
        )
    return tools


def schema_text(tool: Mapping[str, Any]) -> str:
    """The JSON schema of a shown tool's arguments, in one line."""
    return json.dumps(tool["function"]["parameters"], ensure_ascii=False)


def _tools(actions: Sequence[ActionSpec]) -> list[ActionSpec]:
    return [spec for spec in actions if spec.is_tool]


def _function(name: str, description: str, parameters: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }

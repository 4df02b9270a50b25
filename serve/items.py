"""Items of conversations: one table of their types, which every route reads and writes."""

import json
import re
import secrets
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from pydantic_core import PydanticCustomError

from atommem.serve.schema import Event, question_id
from atommem.text_safety import clean, clean_json

Item = dict[str, Any]  # as OpenAI's API lists it, without the fields of `_SERVER`

ROLES = ("user", "assistant", "system", "developer")
_TEXT = dict.fromkeys(("text", "input_text", "output_text", "summary_text"), "text")
_TEXT |= {"reasoning_text": "text", "refusal": "refusal"}
"""Types of a part whose text is read, with the field that holds it."""
_UNREAD = ("input_image", "image_url", "input_file", "file", "input_audio")
_SERVER = {"status", "created_at", "incomplete_details", "progress"}  # fields that the server sets
_CHAT = {"refusal", "annotations", "audio", "function_call", "tool_calls", "tool_call_id"}
_CHAT |= {"reasoning_content", "reasoning"}
MAX_DEPTH = 100  # of a request's JSON
_ID = re.compile(r"[A-Za-z]{1,16}_[\w-]{1,60}")  # a column of the database bounds it
_MARKS = re.compile(r"^\s*(?:(?:[>*\-\u2022]|\d+[.)]|\[\d+\]|Memory \d+:)\s+)*")  # not of "-5"
_QUOTES = " \t\"'`\u00ab\u00bb\u2018\u2019\u201c\u201d\u201e"
_VERBS = (
    "is|are|am|was|were|do|does|did|can|could|will|would|shall|should|may|might|must|have|has|had"
)
_BARE = re.compile(
    r"(?:(?:and|in|on|at|by|for|from|to|with|of) )*"
    rf"(?:(?:wh(?:o|om|ose|at|ich|en|ere|y)|how|{_VERBS})\b[^.,;:!?()\n\u2013\u2014]{{0,80}}|\w+)"
    r"\?[?!]*",
    re.IGNORECASE,
)
_TELLS = re.compile(
    r"\b(?:know|remember|recall|note|hear|heard|aware|forget|mind)\b(?! (?:of|wh\w+|how|if)\b|\?)"
    rf"|\b(?!(?:{_VERBS})\b)[\w']+\W+(?:I|we)\b"
    r"|\w\W+\w+\W+(?:who|that|because|since)\b(?!\?)"  # a clause
    r"|\d|\b(?:my|our)\b(?-i:.*\b[A-Z])",  # a date, a name
    re.IGNORECASE,
)
_HOSTED = """
    file_search_call web_search_call image_generation_call code_interpreter_call computer_call
    computer_call_output local_shell_call local_shell_call_output shell_call shell_call_output
    apply_patch_call apply_patch_call_output mcp_list_tools mcp_approval_request
    mcp_approval_response mcp_call tool_search_call tool_search_output compaction
    """.split()  # noqa: SIM905
"""Types of tools that OpenAI runs: kept as they are, and only an ``output`` in words is read."""
TYPES: dict[str, tuple[str, ...]] = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
    "reasoning": (),
    "item_reference": ("id",),
    **dict.fromkeys(_HOSTED, ()),
}
"""Types of items, with their required fields."""


def text_item(text: str, name: str = "") -> Item:
    """Return a text of the user as an item; `name` is its name as a source."""
    named = {"name": name} if name else {}
    return {"type": "message", "role": "user", "content": _parts([text], "input_text", ""), **named}


def parse_items(value: Any) -> list[Item]:
    """Return the items of a text, or of a list of items or chat messages."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise refusal("", "not a text or a list of items")
    found = []
    for number, each in enumerate(value):
        try:
            found += _parse(clean_json(each, MAX_DEPTH), f"[{number}]")
        except PydanticCustomError:
            raise
        except ValueError as error:
            raise refusal(f"[{number}]", str(error)) from error
        except (AttributeError, LookupError, TypeError) as error:
            raise refusal(f"[{number}]", "not of the form of an item") from error
    return found


def _parse(value: Any, place: str) -> list[Item]:
    if not isinstance(value, dict):
        raise refusal(place, "not an object")
    given = {name: part for name, part in value.items() if part is not None}
    calls = given.get("tool_calls") or []
    if given.get("role") in ("tool", "function") and "type" not in given:  # of a chat
        call, output = given.get("tool_call_id") or given.get("name"), given.get("content", "")
        given = {"type": "function_call_output", "call_id": str(call), "output": output}
    elif legacy := given.get("function_call"):
        calls = [{"id": legacy["name"], "function": legacy}]
    found = [_call(call) for call in calls]
    if not found or given.get("content"):
        is_reference = given.keys() == {"id"}
        found.insert(0, {"type": "item_reference" if is_reference else "message", **given})
    return [_checked(item, place) for item in found]


def _checked(given: Item, place: str) -> Item:
    kind = given["type"]
    if kind not in TYPES:
        raise refusal(place, f"items of type {kind!r} are not supported. Leave them out")
    if kind == "message":
        given = _message(given, place)
    for name in TYPES[kind]:
        if name not in given:
            raise refusal(place, f"{name} is missing")
        if not isinstance(given[name], (str, list) if name in ("content", "output") else str):
            raise refusal(f"{place}.{name}", "not a text")
    if "output" in TYPES[kind] and isinstance(given["output"], list):
        given["output"] = _parts(given["output"], "input_text", f"{place}.output")
    if len(str(given.get("name", ""))) > 1000:
        raise refusal(f"{place}.name", "more than 1000 characters")
    if not _ID.fullmatch(str(given.get("id", ""))) and kind != "item_reference":
        given.pop("id", None)
    return {name: part for name, part in given.items() if name not in _SERVER}


def _message(given: Item, place: str) -> Item:
    role = given.setdefault("role", "user")
    if role not in ROLES:
        raise refusal(f"{place}.role", f"{role!r} is not one of {', '.join(ROLES)}")
    content = given.get("content", [])
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if given.get("refusal"):
        content = [*content, {"type": "refusal", "refusal": given["refusal"]}]
    kind = "output_text" if role == "assistant" else "input_text"
    kept = {name: value for name, value in given.items() if name not in _CHAT}
    return {**kept, "content": _parts(content, kind, f"{place}.content")}


def _parts(value: Any, kind: str, place: str) -> list[dict[str, Any]]:
    """Return the parts of a content; texts become those of type `kind`."""
    if not isinstance(value, list):
        raise refusal(place, "not a text or a list of parts")
    parts = []
    for number, part in enumerate(value):
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        found = part.get("type") if isinstance(part, dict) else None
        where = f"{place}[{number}]"
        if found in _TEXT:
            if not isinstance(part.get(_TEXT[found]), str):
                raise refusal(where, f"its {_TEXT[found]} is missing")
            if _TEXT[found] == "text":
                empty: dict[str, Any] = {"annotations": []} if kind == "output_text" else {}
                part = {**empty, **part, "type": kind}
        elif found == "image_url":
            url = part.get("image_url")
            of = url if isinstance(url, dict) else {"url": url}
            shown = {"detail": of.get("detail") or "auto", "image_url": of.get("url")}
            part = {"type": "input_image", **shown}
        elif found not in _UNREAD:
            raise refusal(where, f"parts of type {found!r} are not supported. Leave them out")
        parts.append(part)
    return parts


def _call(call: Any) -> Item:
    """Return the call of a chat's message as an item."""
    kind = "function_call" if "function" in call else "custom_tool_call"
    body, field = call["function" if "function" in call else "custom"], TYPES[kind][-1]
    made = {"call_id": str(call.get("id")), "name": body["name"], field: body[field]}
    return {"type": kind, **made}


def refusal(place: str, problem: str) -> PydanticCustomError:
    message = clean(f"{place}: {problem}.".removeprefix(": "))
    return PydanticCustomError("invalid_item", "{message}", {"message": message})


def texts_of(item: Item) -> list[str]:
    """Return what the policy reads of an item, each text in steps of its own."""
    fields, output = TYPES[item["type"]], item.get("output")
    if "content" in fields:
        role = item["role"]
        is_instruction = role in ("system", "developer")
        speaker = str(item.get("speaker") or role)
        return [] if is_instruction else _after(speaker, _part_texts(item["content"]))
    if "name" in fields:
        return [f"assistant: {item['name']}({item[fields[-1]]})"]
    is_read = "output" in fields or isinstance(output, str)
    return _after("tool", _part_texts(output)) if is_read else []


def _part_texts(parts: Any) -> list[str]:
    if isinstance(parts, str):
        parts = [{"type": "text", "text": parts}]
    texts = [str(part[_TEXT[part["type"]]]) for part in parts if part["type"] in _TEXT]
    return [text for text in texts if text.strip()]


def _after(role: str, texts: list[str]) -> list[str]:
    """Put the role in front of texts that are not the user's."""
    return texts if role == "user" else [f"{role}: {text}" for text in texts[:1]] + texts[1:]


def unread_parts(item: Item) -> list[str]:
    """Return the types of the parts that no policy reads, such as pictures."""
    if item["type"] in _HOSTED:
        return [] if texts_of(item) else [item["type"]]
    parts = item.get("content") or item.get("output") or []
    return [part["type"] for part in parts if isinstance(part, dict) and part["type"] in _UNREAD]


def only_asks(item: Item) -> bool:
    """Return whether the user asks one short question, which tells nothing to remember."""
    texts = _part_texts(item["content"]) if item.get("role") == "user" else []
    text = texts[0].strip() if len(texts) == 1 else ""
    return _BARE.fullmatch(text) is not None and not _TELLS.search(text)


def repeats(item: Item, entries: Iterable[str]) -> bool:
    """Return whether a text without a name says only what entries say, word for word a line.

    Clients give back what they recalled: that is not a new fact.
    """
    texts = [] if "name" in item or item["type"] != "message" else _part_texts(item["content"])
    known = {_bare(entry) for entry in entries}
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    return bool(lines) and all(_bare(line) in known for line in lines)


def _bare(line: str) -> str:
    """Return a line without the marks of lists and quotes around it."""
    return _MARKS.sub("", line).strip(_QUOTES)


def with_id(item: Item) -> Item:
    """Return an item with its id, or a new one."""
    prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}.get(item["type"], "item")
    return {"id": f"{prefix}_{secrets.token_hex(16)}", **item}


def signature(item: Item) -> str:
    """Return what makes two items the same: what they say, not what clients note beside it."""
    names = TYPES[item["type"]] or sorted(item.keys() - {"id"})
    return json.dumps([item["type"], *(_said(item[name]) for name in names)], sort_keys=True)


def _said(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.split())
    if not isinstance(value, list):
        return value
    # Addresses of pictures change from turn to turn.
    return [_said(part.get(_TEXT.get(part["type"], ""), part["type"])) for part in value]


def new_items(held: Sequence[Item], items: Sequence[Item]) -> list[Item]:
    """Return the items of a history that are not held, by a longest common subsequence."""
    places = defaultdict[str, list[int]](list)
    for place, item in enumerate(held):
        places[signature(item)].append(place)
    # ends[k]: ends, there and here, of the k + 1 items that end first in `held`, and those before
    ends, longest = list[tuple[int, int, Any]](), None
    for number, item in enumerate(items):
        for place in reversed(places[signature(item)]):
            at = bisect_left(ends, place, key=itemgetter(0))
            found = place, number, ends[at - 1] if at else None
            longest = found if at == len(ends) else longest
            ends[at : at + 1] = [found]
    known = set[int]()
    while longest:
        _, number, longest = longest
        known.add(number)
    return [item for number, item in enumerate(items) if number not in known]


def item_event(item: Item, goal: str) -> Event:
    """Return the event of an item, read with the questions of `goal` in view."""
    return Event("item", {"item": item, "questions": lines_of(goal)}, item=item["id"])


def ask_event(question: Item, response: str, echo: Mapping[str, Any]) -> Event:
    item = {**question, "id": question_id(response)}
    body = {"item": item, "question": "\n".join(texts_of(item)), "questions": [], "echo": echo}
    return Event("ask", body, response=response, item=item["id"])


def lines_of(goal: str) -> list[str]:
    return [line for line in goal.splitlines() if line.strip()]


def item_of(event: Event) -> Item:
    """Return the item of a text, question or answer in the log."""
    if event.kind != "answer":
        return dict(event.body["item"])
    return answer_item(str(event.item), event.body["text"], event.body.get("note", ""))


def answer_item(item_id: str, text: str | None, note: str = "") -> Item:
    """Return the message of an answer, with a ``note`` if there is one (see `Answer`)."""
    content = [{"type": "output_text", "text": text or "", "annotations": []}]
    item = {"id": item_id, "type": "message", "role": "assistant", "content": content}
    return {**item, "note": note} if note else item


def listed(event: Event, unread: Mapping[int, Any] = {}, stopped: Mapping[int, str] = {}) -> Item:
    """Return an item as the API lists it: ``incomplete`` if some of it was not read."""
    item, status, reason = item_of(event), "completed", stopped.get(event.version)
    if event.version in unread:
        status, (read, chunks) = "in_progress", unread[event.version]
        item["progress"] = {"chunks_read": read, "chunks": chunks}
    elif event.kind == "answer":
        status = "incomplete" if event.body["text"] is None else "completed"
    elif reason is None and (skipped := unread_parts(item)):
        reason = f"not read: {', '.join(skipped)}"
    found = {**item, "status": status}
    if event.kind != "answer":
        found["created_at"] = event.created_at
    if reason is not None:
        found |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
    return found

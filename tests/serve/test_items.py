"""Items: what a route returns every route takes, and it comes back as it went in."""

import json
from functools import partial
from typing import Any

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atommem.files import load_beside
from atommem.serve.items import new_items, only_asks, text_item
from tests.serve.servers import ask, entries, new_conversation, respond

TABLES = load_beside(__file__, "items.yaml")
FACT = {"role": "user", "content": "Ann lives in Rome."}
QUESTION = {"role": "user", "content": "Where does Ann live?"}
JSON = {"Content-Type": "application/json"}
_OWN = ("created_at", "status", "incomplete_details")

text = st.text(max_size=20)
words = st.text(min_size=1, max_size=20).filter(str.strip)


def made(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects whose fields are constants or come from strategies."""
    of = {
        name: st.just(value) if isinstance(value, str) else value for name, value in fields.items()
    }
    return st.fixed_dictionaries(of)


part = (
    made(type="input_text", text=words)
    | made(type="output_text", text=text)
    | made(type="refusal", refusal=text)
    | made(type="input_image", image_url=text)
)
roles = st.sampled_from(["assistant", "system", "developer"])
spoken = st.lists(part, max_size=2).map(lambda parts: [*parts, {"type": "text", "text": "x"}])
items = (
    made(role=roles)
    | made(role=roles, content=st.none() | text | st.lists(part, max_size=3))
    | made(role="user", content=words | spoken)
    | made(type="function_call", call_id=words, name=words, arguments=text)
    | made(type="function_call_output", call_id=words, output=text | st.lists(part, max_size=2))
    | made(type="reasoning", summary=st.just([]))
)


def listed(http: httpx.Client, path: str) -> list[dict[str, Any]]:
    query: dict[str, Any] = {"order": "asc", "limit": 100}
    found = http.get(f"{path}/items", params=query).raise_for_status().json()["data"]
    return [{k: v for k, v in item.items() if k not in _OWN} for item in found]


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(items, max_size=5))
def test_whatever_a_route_returns_every_route_takes(server, new):
    with server.http() as http:
        path = new_conversation(http)
        http.post(f"{path}/items", json={"items": new}).raise_for_status()
        answer = respond(http, path, [*new[:1], FACT, QUESTION]).raise_for_status().json()
        held = listed(http, path)
        history = [*held, *answer["output"], QUESTION]
        copy = new_conversation(http)
        copied = http.post(f"{copy}/items", json={"items": held}).raise_for_status().json()["data"]
        assert [{k: v for k, v in item.items() if k not in _OWN} for item in copied] == held
        assert listed(http, copy) == held
        http.post(f"{copy}/items", json={"items": held}).raise_for_status()
        assert listed(http, copy) == held, "what a conversation has is not added again"
        for route, name in (("responses", "input"), ("chat/completions", "messages")):
            for more in ({}, {"conversation": copy.rpartition("/")[2]}):
                http.post(f"/v1/{route}", json={name: history, **more}).raise_for_status()
        for item in listed(http, path):
            http.delete(f"{path}/items/{item['id']}").raise_for_status()
        assert listed(http, path) == []


def test_output_fed_back_and_previous_response_continue(server):
    create: Any = server.client().responses.create
    first = create(model="scripted", input=[FACT, QUESTION])
    assert (first.output_text, first.conversation) == (FACT["content"], None)
    again = create(model="scripted", input=[FACT, QUESTION, *first.output, QUESTION])
    assert again.output_text == FACT["content"]
    bob, more = "Bob lives in Oslo. Who?", {"previous_response_id": first.id}
    told = create(model="scripted", input=bob, metadata={"a": "b"}, **more)
    assert (told.previous_response_id, told.metadata) == (first.id, {"a": "b"})
    for name, expected in (("Bob", bob), ("Ann", FACT["content"])):
        question = f"Where does {name} live?"
        answer = create(model="scripted", input=question, previous_response_id=told.id)
        assert answer.output_text == expected
    branch = create(model="scripted", input="Where does Bob live?", **more)
    assert branch.output_text == FACT["content"], "a branch does not know what came later"
    reference: Any = [{"type": "item_reference", "id": item.id} for item in first.output]
    answer = create(model="scripted", input=[FACT, *reference, QUESTION])
    assert answer.output_text == FACT["content"]
    with pytest.raises(openai.BadRequestError, match="what continues a response is stored"):
        create(model="scripted", input="Who?", store=False, **more)
    assert server.client().responses.retrieve(told.id).metadata == {"a": "b"}
    server.client().responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        server.client().responses.retrieve(first.id)
    before = len(server.conversations.log.conversations("local", prefix=""))
    answer = create(model="scripted", input=[FACT, QUESTION], store=False)
    assert (answer.output_text, answer.conversation) == (FACT["content"], None)
    assert len(server.conversations.log.conversations("local", prefix="")) == before
    with pytest.raises(openai.NotFoundError):
        create(model="scripted", input="Who?", previous_response_id=answer.id)


@pytest.mark.parametrize(("body", "param"), TABLES["refused"])
def test_parameters_that_change_the_answer_are_refused_by_name(http, body, param):
    for route, name in (("responses", "input"), ("chat/completions", "messages")):
        found = http.post(f"/v1/{route}", json={name: [QUESTION], **body})
        assert (found.status_code, found.json()["error"]["param"]) == (400, param)
    content = '{"input": "Who?", "temperature": 1e999}'
    assert http.post("/v1/responses", content=content, headers=JSON).status_code == 400
    content = '{"input": "Who?", "instructions": "\\ud800"}'
    assert http.post("/v1/responses", content=content, headers=JSON).status_code == 200
    harmless = {"temperature": 0.3, "user": "ann", "n": None, "tools": [], "store": False}
    answer = http.post("/v1/responses", json={"input": "Who?", **harmless})
    assert answer.json()["temperature"] == 0.3


def test_items_that_cannot_be_read_are_refused_by_place(http):
    deep = json.loads("[" * 500 + "]" * 500)
    broken = [*TABLES["broken"], [{"content": "x", "more": deep}, ": nested too deeply"]]
    for item, message in broken:
        content = json.dumps({"items": [FACT, item]})
        answer = http.post("/v1/conversations", content=content, headers=JSON)
        assert f"items[1]{message}" in answer.json()["error"]["message"]
    picture = [{"type": "image_url", "image_url": {"url": "data:,x"}}]
    asked = {"messages": [{"role": "user", "content": picture}]}
    assert http.post("/v1/chat/completions", json=asked).status_code == 400
    path = new_conversation(http)
    body = {"items": [{"role": "user", "content": picture}]}
    (item,) = http.post(f"{path}/items", json=body).json()["data"]
    reason = {"reason": "not read: input_image"}
    assert (item["status"], item["incomplete_details"]) == ("incomplete", reason)


def test_chat_with_tools_and_changing_system_message_is_read_once(server):
    client = server.client()
    conversation = client.conversations.create().id
    extra = {"extra_body": {"conversation": conversation}}
    create: Any = partial(client.chat.completions.create, model="scripted", **extra)
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    history: list[Any] = [
        FACT,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "Bob sings."},
    ]
    for turn in range(3):
        clock = {"role": "system", "content": f"It is 10:0{turn}."}
        answer = create(messages=[clock, *history, QUESTION])
        history += [QUESTION, {"role": "assistant", "content": answer.choices[0].message.content}]
    with server.http() as http:
        held = entries(http, f"/v1/conversations/{conversation}")
        assert [*held.values()] == [FACT["content"], "assistant: look({})", "tool: Bob sings."]
        create(messages=[*history[3:], QUESTION])  # a history without its start
        assert entries(http, f"/v1/conversations/{conversation}") == held


def test_history_is_known_by_what_it_says(http):
    """Whatever clients note beside the words, and in whichever blanks."""
    path, history = new_conversation(http), list[Any]()
    for turn in range(3):
        picture = {"type": "image_url", "image_url": {"url": f"https://a.test/?signed={turn}"}}
        first = {"role": "user", "content": [{"type": "text", "text": "Ann sings."}, picture]}
        marked = {"type": "text", "text": f"Who is {turn}?", "cache_control": {"type": "x"}}
        asked = {"role": "user", "content": [{"type": "text", "text": "I am Ann."}, marked]}
        body = {"messages": [first, *history, asked], "conversation": path.rpartition("/")[2]}
        answer = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
        del marked["cache_control"]
        text = f"{answer['content']}\r\n"
        history += [asked, {**answer, "content": text, "more": {}}]
    said = [item["content"][-1] for item in listed(http, path)]
    assert [part["type"] for part in said][1:] == ["input_text", "output_text"] * 3


@given(st.lists(st.sampled_from("abc"), max_size=7), st.lists(st.sampled_from("abc"), max_size=7))
def test_new_are_the_items_outside_of_a_longest_common_subsequence(old, new):
    def common(old: list[str], new: list[str]) -> int:
        if not old or not new:
            return 0
        if old[-1] == new[-1]:
            return common(old[:-1], new[:-1]) + 1
        return max(common(old[:-1], new), common(old, new[:-1]))

    found = new_items(*([text_item(text) for text in texts] for texts in (old, new)))
    assert len(found) == len(new) - common(old, new)
    assert new_items([text_item(text) for text in [*new, "d"]], [*map(text_item, new)]) == []


def test_speakers_of_a_chat_are_told_apart(http):
    path = new_conversation(http)
    said = [{"role": "user", "name": name, "content": f"I am {name}."} for name in ("Ann", "Bob")]
    body = {"messages": [*said, QUESTION], "conversation": path.rpartition("/")[2]}
    http.post("/v1/chat/completions", json=body).raise_for_status()
    assert [*entries(http, path).values()] == ["Ann: I am Ann.", "Bob: I am Bob."]
    assert [item["speaker"] for item in listed(http, path)[:2]] == ["Ann", "Bob"]


def test_references_stand_for_their_items_on_every_route(http):
    path = new_conversation(http, "Bob sings.")
    (item,) = listed(http, path)
    for reference in ({"id": item["id"]}, {"type": "item_reference", "id": item["id"]}):
        made = http.post("/v1/conversations", json={"items": [reference]}).json()["id"]
        copy = f"/v1/conversations/{made}"
        http.post(f"{copy}/items", json={"items": [reference]}).raise_for_status()
        assert listed(http, copy) == [item]
        asked = {"input": [reference, {"content": "Who sings?"}]}
        answer = http.post("/v1/responses", json=asked).json()["output"][1]["content"]
        assert answer[0]["text"] == "Bob sings."


@pytest.mark.parametrize(("text", "is_bare"), TABLES["questions"])
def test_only_a_short_question_that_tells_nothing_is_not_read(text, is_bare):
    assert only_asks(text_item(text)) == is_bare


def test_what_is_told_in_the_message_that_asks_is_remembered(http):
    path = new_conversation(http)
    ask(http, path, "I live in Rome.")
    (told, _) = http.get(f"{path}/items", params={"order": "asc"}).json()["data"]
    assert told["status"] == "in_progress"
    for _ in range(2):
        assert ask(http, path, "Where do I live?")[1] == "I live in Rome."
    assert entries(http, path) == {1: "I live in Rome."}
    ask(http, path, "Did you know Bob moved to Oslo?")
    assert ask(http, path, "Where is Bob?")[1] == "Did you know Bob moved to Oslo?"
    question = listed(http, path)[0]["id"]
    http.delete(f"{path}/items/{question}").raise_for_status()
    assert "I live in Rome." not in entries(http, path).values()


def test_calls_of_hosted_tools_are_kept_and_their_output_is_read(server):
    call = {"type": "mcp_call", "name": "look", "arguments": "{}", "server_label": "s"}
    new = [
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "Ann"}},
        {**call, "id": "mcp_1", "output": "Bob sings."},
    ]
    with server.http() as http:
        path = new_conversation(http)
        http.post(f"{path}/items", json={"items": new}).raise_for_status()
        assert listed(http, path) == new
        assert [*entries(http, path).values()] == ["tool: Bob sings."]
    found: Any = server.client().conversations.items.list(path.rpartition("/")[2], order="asc")
    assert [item.status for item in found] == ["incomplete", "completed"]


def test_iteration_goes_on_after_items_before_the_cursor_are_deleted(server):
    client = server.client()
    new: Any = [{"role": "user", "content": f"{number} sings."} for number in range(9)]
    conversation = client.conversations.create(items=new).id
    found = 0
    for item in client.conversations.items.list(conversation, limit=2):
        client.conversations.items.delete(str(item.id), conversation_id=conversation)
        found += 1
    assert found == 9
    with server.http() as http:
        query: dict[str, Any] = {"limit": 2, "metadata": "topic=gone"}
        left = {new_conversation(http, topic="gone") for _ in range(5)}
        while left:
            page = http.get("/v1/conversations", params=query).raise_for_status().json()
            for each in page["data"]:
                left.remove(f"/v1/conversations/{each['id']}")
                http.delete(f"/v1/conversations/{each['id']}").raise_for_status()
            query["after"] = page["last_id"]

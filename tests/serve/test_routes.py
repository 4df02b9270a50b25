"""The API's routes: OpenAI's through its client, and AtomMem's own; snippets of docs/serve.md."""

import base64
import json
import re
import subprocess
import time
from typing import Any

import openai
import pytest
import sqlalchemy as sa
import yaml

from atommem.serve import serve_cli
from tests.pages import ADDRESS, ROOT, blocks, run_python
from tests.serve.servers import ask, entries, items, new_conversation, opened, respond, scripted

PARTS = ["Ann lives in Rome.", "Bob lives in Oslo.", "Cid sings."]


def test_conversation_is_created_read_asked_listed_and_deleted(server):
    client = server.client()
    conversation = client.conversations.create(metadata={"goal": "Where does Ann live?"})
    new: Any = items(*PARTS[:2])["items"] + items(PARTS[2])["items"]
    held = client.conversations.items
    created = held.create(conversation.id, items=new).data
    answer: Any = client.responses.create(
        model="scripted", conversation=conversation.id, input="Where does Bob live?"
    )
    assert answer.output_text == "Bob lives in Oslo."
    assert answer.memory[0]["source"]["piece"] == f"{created[0].id}, chunk 2/2"
    listed: Any = held.list(conversation.id, order="asc").data
    assert held.retrieve(listed[-1].id, conversation_id=conversation.id) == listed[-1]
    assert [item.role for item in listed] == ["user", "user", "user", "assistant"]
    assert [part.text for part in listed[0].content] == PARTS[:2]
    assert client.responses.retrieve(answer.id).output_text == answer.output_text
    assert client.conversations.update(conversation.id, metadata={}).metadata == {}
    assert client.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(conversation.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)


def test_streamed_response_has_a_summary_part_for_each_step(server):
    client = server.client()
    conversation = client.conversations.create(**items("Ann lives in Rome.")).id
    with client.responses.stream(
        model="scripted", conversation=conversation, input="Where does Ann live?"
    ) as stream:
        events: list[Any] = list(stream)
        assert stream.get_final_response().output_text == "Ann lives in Rome."
    steps = [event.text for event in events if event.type == "response.reasoning_summary_text.done"]
    assert [text.partition(",")[0] for text in steps] == ["step 2", "step 3"]
    assert "read: Where does Ann live?" in steps[0]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert deltas == ["Ann lives in Rome."]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    again: Any = client.responses.create(
        model="scripted", conversation=conversation, input="Where does Ann live?", stream=True
    )
    for event in again:
        type(event).model_validate(event.model_dump())  # the type of openai.types


def test_chat_answers_at_once_and_in_a_stream(server):
    create: Any = server.client().chat.completions.create
    history = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Ann lives in Rome."},
        {"role": "user", "content": "Where does Ann live?"},
    ]
    once = create(model="scripted", messages=history)
    assert once.choices[0].message.content == "Ann lives in Rome."
    usage = {"include_usage": True}
    streamed = create(model="scripted", messages=history, stream=True, stream_options=usage)
    *chunks, last_chunk = streamed
    assert (last_chunk.usage, last_chunk.choices) == (once.usage, [])
    for answer in (once, *chunks):
        type(answer).model_validate(answer.model_dump())
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(texts) == "Ann lives in Rome."
    assert any(getattr(chunk.choices[0].delta, "reasoning_content", None) for chunk in chunks)


def test_invalid_requests_raise_openai_errors(server, http):
    client = server.client()
    assert client.models.retrieve("scripted").id == "scripted"
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt'"):
        client.responses.create(model="gpt", input="Who?")
    image: Any = [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model="scripted", input=image)
    before = len(server.conversations.log.conversations("local"))
    assert http.post("/v1/conversations", json={"items": [{"content": " "}]}).status_code == 400
    assert len(server.conversations.log.conversations("local")) == before
    body: dict[str, Any] = {"input": "Who?", "conversation": {"name": "x"}}
    assert http.post("/v1/responses", json=body).status_code == 400
    body = {"metadata": {"goal": "x" * 4097}}
    assert "at most 4096 characters" in http.post("/v1/conversations", json=body).text
    found = http.get("/v1/conversations/x/recall", params={"query": "x" * 4001})
    assert "at most 4000 characters" in found.text
    assert http.get("/v1/conversations/%00").status_code == 404, "PostgreSQL refuses NUL"
    path = new_conversation(http)
    (item,) = http.post(f"{path}/items", json=items("x", id="m" * 99 + "_1")).json()["data"]
    assert len(item["id"]) < 80, "PostgreSQL refuses a longer one"
    blank, order = http.post(f"{path}/entries", json={"text": " "}), {"order": "up"}
    assert blank.json()["error"]["message"] == "text: it is blank."
    assert http.get(f"{path}/items", params=order).json()["error"]["param"] == "order"
    for content in (b"{", b"[]"):
        json_type = {"Content-Type": "application/json"}
        found = http.post("/v1/conversations", content=content, headers=json_type)
        assert found.json()["error"]["message"] == "the body is not a JSON object."


def test_owner_edits_and_deletes_entries(http):
    path = new_conversation(http, *PARTS)
    new = {"text": "Bob lives in Bergen.", "reason": "he moved"}
    changed = http.post(f"{path}/entries/2", json=new).json()["data"]
    found = [(line["kind"], line["actor"], line["before"], line["reason"]) for line in changed]
    assert found == [("update", "user", PARTS[1], "he moved")]
    assert ask(http, path, "Where does Bob live?")[1] == "Bob lives in Bergen."
    http.delete(f"{path}/entries/1", params={"reason": "wrong"}).raise_for_status()
    assert entries(http, path) == {2: "Bob lives in Bergen.", 3: PARTS[2]}
    for number, method in ((1, "DELETE"), (1, "POST"), (99, "DELETE")):
        body = {"json": {"text": "x"}} if method == "POST" else {}
        assert http.request(method, f"{path}/entries/{number}", **body).status_code == 404
    misspelt = http.post(f"{path}/entries/2", json={"text": "x", "reasn": "y"})
    assert misspelt.json()["error"]["param"] == "reasn"
    log = http.get(f"{path}/operations", params={"limit": 1000}).json()["data"]
    found = [(line["kind"], line["reason"]) for line in log if line.get("actor") == "user"]
    assert found == [("update", "he moved"), ("delete", "wrong")]
    steps = http.get(f"{path}/steps").json()["data"]
    now = time.time()
    assert all(now - 60 < each["created_at"] <= now for each in (*log, *steps))


def test_text_is_stored_as_it_is_and_goes_with_its_source(http):
    path = new_conversation(http, PARTS[0], name="letter")
    for text, body in ((PARTS[1], {"name": "letter"}), (PARTS[2], {}), ("x " * 999, {})):
        made = http.post(f"{path}/entries", json={"text": text, **body}).raise_for_status()
        (line,) = (each for each in made.json()["data"] if each["kind"] == "create")
        assert (line["actor"], line["after"] == text) == ("user", line.get("reason") != "cut")
    assert [*entries(http, path).values()][:3] == PARTS
    assert ask(http, path, "Who sings?")[1] == PARTS[2]
    query = {"query": "Oslo", "source": "letter", "items": True}
    found = http.get(f"{path}/recall", params=query).json()
    assert found["data"][0]["text"] == found["items"][1]["content"][0]["text"] == PARTS[1]
    copy = http.post(f"{path}/fork").json()["id"]
    first = found["items"][0]["id"]
    http.delete(f"/v1/conversations/{copy}/items/{first}").raise_for_status()
    assert 2 in entries(http, f"/v1/conversations/{copy}"), "the other item of the name stays"
    http.delete(f"{path}/sources/letter").raise_for_status()
    assert [*entries(http, path)] == [3, 4]
    for text in ("Cid hums.", "Cid runs.", "Cid runs."):
        body = {"text": text, "name": "song", "replace": ["song"]}
        once = {"Idempotency-Key": f"{path} {text}"}
        made = http.post(f"{path}/entries", json=body, headers=once).raise_for_status().json()
        assert [line["after"] for line in made["data"] if line["kind"] == "create"] == [text]
    assert [*entries(http, path).values()][2:] == ["Cid runs."]
    songs = http.get(f"{path}/items", params={"name": "song"}).json()["data"]
    assert [item["content"][0]["text"] for item in songs] == ["Cid runs."]


def test_full_memory_says_that_it_takes_no_text(tmp_path):
    with opened(tmp_path, scripted(capacity=1)) as (_, http):
        path = new_conversation(http, PARTS[0])
        refused = http.post(f"{path}/entries", json={"text": PARTS[1]})
        assert refused.status_code == 400
        assert "retention:reject" in refused.json()["error"]["message"]
        assert ask(http, path, "Who?")[1] == PARTS[0]
        assert entries(http, path) == {1: PARTS[0]}


def test_deleted_source_and_item_take_their_entries_along(http):
    path = new_conversation(http, *PARTS[:2], name="https://bad.test/a?b=1")
    for name, left in (("Ann", {2: "Bob."}), ("Ann, Bob", {})):
        if left:
            other = new_conversation(http, "Ann.", name=name)
            http.post(f"{other}/items", json=items("Bob.", name="Ann, Bob")).raise_for_status()
        http.delete(f"{other}/sources/{name}").raise_for_status()
        assert entries(http, other) == left
    new = items(PARTS[2], name="letter")
    item, _ = (http.post(f"{path}/items", json=new).json()["data"][0]["id"] for _ in range(2))
    gone = http.delete(f"{path}/sources/https://bad.test/a%3Fb=1").raise_for_status().json()["data"]
    assert [line["entry_id"] for line in gone if line["kind"] == "delete"] == [1, 2]
    assert entries(http, path) == {3: PARTS[2], 4: PARTS[2]}
    http.delete(f"{path}/items/{item}").raise_for_status()
    assert entries(http, path) == {4: PARTS[2]}, "the other item of the name stays"
    assert item not in http.get(f"{path}/items").text
    assert entries(http, path, at=1) == {1: PARTS[0]}, "the log keeps it"


def test_replaced_text_is_gone_and_recall_ranks_within_a_source(http):
    path = new_conversation(http)
    for number in range(8):
        new = items(f"pizza pizza u{number}", name=f"u{number}/food")
        http.post(f"{path}/items", json=new).raise_for_status()
    for text in ("I like soup.", "I like pizza with olives."):
        body = {**items(text, name="ann/food"), "replace": ["ann/food"]}
        http.post(f"{path}/items", json=body).raise_for_status()
    query = {"query": "soup pizza", "source": "ann/", "items": True}
    found = http.get(f"{path}/recall", params=query).json()
    assert [entry["text"] for entry in found["data"]] == ["I like pizza with olives."]
    assert [item["name"] for item in found["items"]] == ["ann/food"]
    assert len(http.get(f"{path}/recall", params={"query": "pizza", "k": 8}).json()["data"]) == 8
    listed = http.get(f"{path}/items", params={"name": "ann/"}).json()["data"]
    assert [item["content"][0]["text"] for item in listed] == ["I like pizza with olives."]


def test_text_of_a_file_is_extracted_and_what_is_left_out_named(http):
    pytest.importorskip("markdownify")
    page = base64.b64encode(b"<html><p>Ann lives in Rome.</p><img src=x></html>").decode()
    answer = http.post("/v1/extract", json={"name": "a.html", "data": page})
    assert answer.json() == {"text": "Ann lives in Rome.", "left_out": ["pictures: 1"]}
    for data, message in (("AP8=", "a: not utf-8 text, HTML, PDF or docx"), ("?", "not base64")):
        answer = http.post("/v1/extract", json={"name": "a", "data": data})
        assert (answer.status_code, message in answer.json()["error"]["message"]) == (400, True)


def test_scope_lists_recalls_and_erases_what_belongs_to_it(http):
    of_users = (("ann", "1", PARTS[0]), ("ann", "2", PARTS[2]), ("bob", "1", PARTS[1]))
    for user, session, text in of_users:
        new_conversation(http, text, user=user, session=session, **{"thème": "homes"})
    for query, expected in (
        ({"user": "ann"}, {PARTS[0], PARTS[2]}),
        ({"session": "1", "metadata": "thème=homes"}, {PARTS[0], PARTS[1]}),
        ({"user": "ann", "session": "1"}, {PARTS[0]}),
        ({"user": "cid"}, set()),
    ):
        assert len(http.get("/v1/conversations", params=query).json()["data"]) == len(expected)
        query["query"] = "Who lives in Oslo?"
        found = http.get("/v1/recall", params=query).json()["data"]
        assert {entry["text"] for entry in found} == expected
    stored = {"input": [{"role": "user", "content": PARTS[0]}], "metadata": {"user": "dan"}}
    first = http.post("/v1/responses", json=stored).raise_for_status().json()["id"]
    for _ in range(2):  # the second in a copy, of the same user
        http.post("/v1/responses", json={"input": "Who?", "previous_response_id": first})
    assert len(http.get("/v1/export", params={"user": "dan"}).text.splitlines()) == 2
    assert len(http.delete("/v1/conversations", params={"user": "dan"}).json()["ids"]) == 2
    lines = http.get("/v1/export", params={"user": "ann"}).text.splitlines()
    exported = [json.loads(line) for line in lines]
    exported.sort(key=lambda each: each["metadata"]["session"])
    assert [each["items"][0]["content"][0]["text"] for each in exported] == [PARTS[0], PARTS[2]]
    assert [each["entries"][0]["text"] for each in exported] == [PARTS[0], PARTS[2]]
    assert [each["operations"][0]["kind"] for each in exported] == ["create", "create"]
    assert len(http.get("/v1/export").text.splitlines()) >= 3
    assert http.get("/v1/recall", params={"query": "Oslo"}).status_code == 400
    one = {"query": "Oslo", "metadata": "thème=homes", "k": 1}
    best = http.get("/v1/recall", params=one).json()
    assert [entry["text"] for entry in best["data"]] == [PARTS[1]]
    wrongs = "|user=|user=ann&user=bob|usr=ann|metadata=%22=1|user=ann&sesion=1"
    for wrong in (*wrongs.split("|"), "user=ann&metadata=user%3Dbob"):
        assert http.delete(f"/v1/conversations?{wrong}").status_code == 400, wrong
    assert http.delete("/v1/conversations/x/sources/y?z=1").json()["error"]["param"] == "z"
    assert len(http.delete("/v1/conversations", params={"user": "ann"}).json()["ids"]) == 2
    assert http.delete("/v1/conversations", params={"user": "ann"}).status_code == 404
    left = http.get("/v1/conversations", params={"metadata": "thème=homes"}).json()["data"]
    assert [item["metadata"]["user"] for item in left] == ["bob"]


def test_recalled_text_is_no_new_fact_and_cut_entries_are_named(tmp_path):
    with opened(tmp_path, scripted(entry_tokens=6)) as (_, http):
        path = new_conversation(http, PARTS[0])
        long = items("Bob lives in Oslo, in a house by the sea.")
        http.post(f"{path}/items", json=long).raise_for_status()
        for _ in range(5):
            found = http.get(f"{path}/recall", params={"query": "Rome"}).json()["data"]
            quoted = "\n".join(f"- {entry['text']}" for entry in found)
            http.post(f"{path}/items", json=items(quoted)).raise_for_status()
        assert len(entries(http, path)) == 2
        other = new_conversation(http, "5 degrees.")
        for text in ("3.5 degrees.", "-5 degrees.", "1. 5 degrees."):
            http.post(f"{other}/items", json=items(text)).raise_for_status()
        assert len(entries(http, other)) == 3, "a number is no mark of a list"
        answer = respond(http, path, "Bob?").json()
        assert {entry["id"]: entry["cut"] for entry in answer["memory"]} == {1: False, 2: True}


# Snippets of docs/serve.md ---


PAGE = "docs/serve.md"


def snippet(kind: str, server: Any) -> str:
    (block,) = (block for _, block in blocks(PAGE, kind) if f"http://{ADDRESS}" in block)
    block = block.replace(f"http://{ADDRESS}", server.url)
    return re.sub("grpo|smollm2", "scripted", block)


def test_python_snippet_runs(server):
    lines = run_python(snippet("python", server), {}, PAGE).splitlines()
    # The scripted policy answers with the entry nearest to the question, the older of two.
    assert lines[0] == lines[-1] == "Ann lives in Rome."


def test_curl_snippet_runs(server, tmp_path):
    text = snippet("bash", server).replace("curl -s", "curl -sf")
    command = ["bash", "-euo", "pipefail", "-c", text]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert '"deleted":true' in done.stdout
    for comment in ('"written":{"create":1,"update":0,"delete":0}', '"text":"Ann lives in Rome."'):
        assert f"# {comment}" in text
        assert comment in done.stdout


def test_compose_file_parses_and_its_references_exist():
    text = (ROOT / "docs" / "compose.yaml").read_text()
    services = yaml.safe_load(re.sub(r"\$\{(\w+)(?::\?)?\}", r"/\1.test", text))["services"]
    assert set(services) == {"database", "policy", "gateway"}
    program, command, *flags = services["gateway"]["command"]
    assert (program, command) == ("atommem", "serve")
    arguments, _ = serve_cli._arguments(flags)
    assert arguments.policy == ["http://policy:8000"]
    assert f"gateway:{arguments.port}" in text
    assert sa.make_url(services["gateway"]["environment"]["ATOMMEM_DATABASE"]).host == "database"

"""OpenAI's routes, asked by OpenAI's own client."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tests.serve.servers import Running

PARTS = ["Ann lives in Rome.", "Bob lives in Oslo."]


def said(*texts: str) -> dict[str, Any]:
    """A message; its parts are read one after the other."""
    return {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": text} for text in texts],
    }


def test_a_conversation_reads_is_asked_and_deleted(server: Running) -> None:
    client = server.client()
    conversation = client.conversations.create(metadata={"goal": "Where does Ann live?"})
    items = client.conversations.items.create(
        conversation.id, items=[said(*PARTS), said("Cid sings.")]
    )
    assert [item.status for item in items.data] == ["completed", "completed"]
    answer = client.responses.create(
        model="scripted", conversation=conversation.id, input="Where does Bob live?"
    )
    assert answer.output_text == "Bob lives in Oslo."
    assert answer.conversation.id == conversation.id
    assert answer.memory[0]["source"]["piece"] == f"{items.data[0].id}, chunk 2/2"
    held = server.conversations.log.memory_at(conversation.id).entries.values()
    assert [entry.text for entry in held] == [*PARTS, "Cid sings."], "one text after the other"
    listed = client.conversations.items.list(conversation.id, order="asc").data
    assert [item.role for item in listed] == ["user", "user", "user", "assistant"]
    assert [part.text for part in listed[0].content] == PARTS
    again = client.responses.retrieve(answer.id)
    assert (again.status, again.output_text) == ("completed", answer.output_text)
    assert client.conversations.retrieve(conversation.id).metadata == {
        "goal": "Where does Ann live?"
    }
    assert client.conversations.update(conversation.id, metadata={}).metadata == {}
    assert client.conversations.delete(conversation.id).deleted
    for gone in (
        client.conversations.retrieve,
        client.conversations.items.list,
        client.conversations.delete,
    ):
        with pytest.raises(openai.NotFoundError):
            gone(conversation.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)


def test_a_response_is_streamed_step_by_step(server: Running) -> None:
    client = server.client()
    conversation = client.conversations.create(items=[said("Ann lives in Rome.")])
    asked = {"model": "scripted", "conversation": conversation.id, "input": "Where does Ann live?"}
    with client.responses.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == "Ann lives in Rome."
    steps = [event.text for event in events if event.type == "response.reasoning_summary_text.done"]
    assert [text.partition(",")[0] for text in steps] == ["step 1", "step 2"]
    assert "read: Where does Ann live?" in steps[0]
    assert [event.delta for event in events if event.type == "response.output_text.delta"] == [
        "Ann lives in Rome."
    ]
    numbers = [event.sequence_number for event in events if hasattr(event, "sequence_number")]
    assert numbers == sorted(numbers)


def test_a_response_without_conversation_keeps_nothing(server: Running) -> None:
    client = server.client()
    answer = client.responses.create(
        model="scripted", input=[said("Ann lives in Rome."), said("Where does Ann live?")]
    )
    assert answer.output_text == "Ann lives in Rome."
    assert answer.conversation is None
    assert (
        "nothing"
        in client.responses.create(model="scripted", input="Where does Ann live?").output_text
    )


def test_a_chat_s_last_message_asks_and_the_rest_is_read_once(server: Running) -> None:
    client = server.client()
    said_before = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Ann lives in Rome."},
    ]
    asked = {"role": "user", "content": "Where does Ann live?"}
    once = client.chat.completions.create(model="scripted", messages=[*said_before, asked])
    assert once.choices[0].message.content == "Ann lives in Rome."
    conversation = client.conversations.create().id
    kept = {"extra_body": {"conversation": conversation}}
    first = client.chat.completions.create(model="scripted", messages=[*said_before, asked], **kept)
    answer = {"role": "assistant", "content": first.choices[0].message.content}
    more = [
        {"role": "user", "content": text} for text in ("Bob lives in Oslo.", "Where does Bob live?")
    ]
    second = client.chat.completions.create(
        model="scripted", messages=[*said_before, asked, answer, *more], **kept
    )
    assert second.choices[0].message.content == "Bob lives in Oslo."
    listed = client.conversations.items.list(conversation, order="asc").data
    texts = [item.content[0].text for item in listed]
    assert texts[:4] == [
        "system: Be brief.",
        "Ann lives in Rome.",
        asked["content"],
        answer["content"],
    ]
    assert texts[4:] == ["Bob lives in Oslo.", "Where does Bob live?", "Bob lives in Oslo."]
    chunks = list(
        client.chat.completions.create(
            model="scripted", messages=[*said_before, asked], stream=True
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Ann lives in Rome."
    assert any(getattr(chunk.choices[0].delta, "reasoning_content", None) for chunk in chunks)


def test_what_is_wrong_is_told_as_openai_tells_it(server: Running, http: httpx.Client) -> None:
    client = server.client()
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").owned_by == "atommem"
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt'"):
        client.responses.create(model="gpt", input="Who?")
    with pytest.raises(openai.NotFoundError, match="there is no item 'item_9'"):
        client.conversations.items.list(client.conversations.create().id, after="item_9")
    with pytest.raises(openai.NotFoundError, match="there is no conversation"):
        client.responses.create(model="scripted", conversation="conv_other", input="Who?")
    with pytest.raises(openai.BadRequestError, match="blank"):
        client.responses.create(model="scripted", input="  ")
    picture = {"type": "input_image", "image_url": "http://127.0.0.1/secret"}
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model="scripted", input=[{"role": "user", "content": [picture]}])  # type: ignore[list-item]
    before = len(server.conversations.log.conversations())
    assert http.post("/v1/conversations", json={"items": [{"content": " "}]}).status_code == 400
    assert len(server.conversations.log.conversations()) == before, "none is made"
    for path in ("conversations/%00", "responses/%00", "conversations?after=%00"):
        refused = http.get(f"/v1/{path}")
        assert refused.status_code == 404
        assert "\\x00" not in refused.text, "PostgreSQL takes none, and refuses to look for it"

"""OpenAI's routes, through OpenAI's client."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tests.serve.servers import Running

PARTS = ["Ann lives in Rome.", "Bob lives in Oslo."]


def message(*texts: str) -> dict[str, Any]:
    """A user's message in parts."""
    parts = [{"type": "input_text", "text": text} for text in texts]
    return {"type": "message", "role": "user", "content": parts}


def test_conversation_is_created_read_asked_listed_and_deleted(server: Running) -> None:
    client = server.client()
    conversation = client.conversations.create(metadata={"goal": "Where does Ann live?"})
    new: Any = [message(*PARTS), message("Cid sings.")]
    items = client.conversations.items.create(conversation.id, items=new)
    assert [item.status for item in items.data] == ["completed", "completed"]
    answer: Any = client.responses.create(
        model="scripted", conversation=conversation.id, input="Where does Bob live?"
    )
    assert answer.output_text == "Bob lives in Oslo."
    assert answer.conversation.id == conversation.id
    assert answer.memory[0]["source"]["piece"] == f"{items.data[0].id}, chunk 2/2"
    held = server.conversations.log.memory_at(conversation.id).entries.values()
    assert [entry.text for entry in held] == [*PARTS, "Cid sings."]
    listed: Any = client.conversations.items.list(conversation.id, order="asc").data
    assert [item.role for item in listed] == ["user", "user", "user", "assistant"]
    assert [part.text for part in listed[0].content] == PARTS
    again = client.responses.retrieve(answer.id)
    assert (again.status, again.output_text) == ("completed", answer.output_text)
    goal = {"goal": "Where does Ann live?"}
    assert client.conversations.retrieve(conversation.id).metadata == goal
    assert client.conversations.update(conversation.id, metadata={}).metadata == {}
    assert client.conversations.delete(conversation.id).deleted
    for call, name in (
        (client.conversations.retrieve, conversation.id),
        (client.conversations.items.list, conversation.id),
        (client.conversations.delete, conversation.id),
        (client.responses.retrieve, answer.id),
    ):
        with pytest.raises(openai.NotFoundError):
            call(name)


def test_streamed_response_has_a_summary_part_for_each_step(server: Running) -> None:
    client = server.client()
    new: Any = [message("Ann lives in Rome.")]
    conversation = client.conversations.create(items=new).id
    with client.responses.stream(
        model="scripted", conversation=conversation, input="Where does Ann live?"
    ) as stream:
        events: list[Any] = list(stream)
        assert stream.get_final_response().output_text == "Ann lives in Rome."
    steps = [event.text for event in events if event.type == "response.reasoning_summary_text.done"]
    assert [text.partition(",")[0] for text in steps] == ["step 1", "step 2"]
    assert "read: Where does Ann live?" in steps[0]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert deltas == ["Ann lives in Rome."]
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_response_without_conversation_stores_nothing(server: Running) -> None:
    client = server.client()
    before = len(server.conversations.log.conversations())
    question: Any = [message("Ann lives in Rome."), message("Where does Ann live?")]
    answer = client.responses.create(model="scripted", input=question)
    assert (answer.output_text, answer.conversation) == ("Ann lives in Rome.", None)
    answer = client.responses.create(model="scripted", input="Where does Ann live?")
    assert answer.output_text == "nothing"
    assert len(server.conversations.log.conversations()) == before


def test_chat_reads_new_messages_once_and_streams(server: Running) -> None:
    create: Any = server.client().chat.completions.create
    history = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Ann lives in Rome."},
        {"role": "user", "content": "Where does Ann live?"},
    ]
    once = create(model="scripted", messages=history)
    assert once.choices[0].message.content == "Ann lives in Rome."
    chunks = list(create(model="scripted", messages=history, stream=True))
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(texts) == "Ann lives in Rome."
    assert any(getattr(chunk.choices[0].delta, "reasoning_content", None) for chunk in chunks)
    conversation = server.client().conversations.create().id
    body = {"extra_body": {"conversation": conversation}}
    first = create(model="scripted", messages=history, **body).choices[0].message.content
    history += [
        {"role": "assistant", "content": first},
        {"role": "user", "content": "Bob lives in Oslo."},
        {"role": "user", "content": "Where does Bob live?"},
    ]
    second = create(model="scripted", messages=history, **body)
    assert second.choices[0].message.content == "Bob lives in Oslo."
    listed: Any = server.client().conversations.items.list(conversation, order="asc").data
    expected = ["system: Be brief.", *(item["content"] for item in history[1:])]
    assert [item.content[0].text for item in listed] == [*expected, "Bob lives in Oslo."]


def test_invalid_requests_raise_openai_errors(server: Running, http: httpx.Client) -> None:
    client = server.client()
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").owned_by == "atommem"
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt'"):
        client.responses.create(model="gpt", input="Who?")
    with pytest.raises(openai.NotFoundError, match="there is no conversation"):
        client.responses.create(model="scripted", conversation="conv_other", input="Who?")
    with pytest.raises(openai.BadRequestError, match="blank"):
        client.responses.create(model="scripted", input="  ")
    image: Any = [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model="scripted", input=image)
    before = len(server.conversations.log.conversations())
    assert http.post("/v1/conversations", json={"items": [{"content": " "}]}).status_code == 400
    assert len(server.conversations.log.conversations()) == before
    assert http.get("/v1/conversations/%00").status_code == 404, "PostgreSQL refuses NUL"

"""LangChain: chat and responses with a history that holds tool calls, usage when streaming."""

import sys
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

settings: Any = {"base_url": f"{sys.argv[1]}/v1", "api_key": "none", "model": "scripted"}
QUESTION = HumanMessage("Where does Ann live?")
call = {"name": "look", "args": {"name": "Ann"}, "id": "call_1"}
history: list[Any] = [
    HumanMessage("Look Ann up."),
    AIMessage("", tool_calls=[call]),
    ToolMessage("Ann lives in Rome.", tool_call_id="call_1"),
    QUESTION,
]
for responses in (False, True):
    model = ChatOpenAI(use_responses_api=responses, **settings)
    answer = model.invoke(history)
    assert "Rome" in answer.text, answer
    again = model.invoke([HumanMessage("Bob lives in Oslo."), answer, HumanMessage("Bob?")])
    assert again.text, again

chunks: Any = None
for chunk in ChatOpenAI(stream_usage=True, **settings).stream(history):
    chunks = chunk if chunks is None else chunks + chunk
assert chunks.usage_metadata["total_tokens"] > 0, chunks
previous = ChatOpenAI(use_responses_api=True, use_previous_response_id=True, **settings)
first = previous.invoke([HumanMessage("Ann lives in Rome.")])
answer = previous.invoke([HumanMessage("Ann lives in Rome."), first, QUESTION])
assert "Rome" in answer.text, answer

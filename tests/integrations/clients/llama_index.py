"""LlamaIndex: chat with a history, responses that track the earlier ones."""

import sys
from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai import OpenAIResponses
from llama_index.llms.openai_like import OpenAILike

settings: Any = {"api_base": f"{sys.argv[1]}/v1", "api_key": "none", "model": "scripted"}
history = [ChatMessage("Ann lives in Rome."), ChatMessage("Where does Ann live?")]
chat = OpenAILike(is_chat_model=True, **settings)
assert chat.chat(history).message.content == "Ann lives in Rome."
assert "Rome" in "".join(part.delta or "" for part in chat.stream_chat(history))
tracking = OpenAIResponses(track_previous_responses=True, context_window=4096, **settings)
tracking.chat(history[:1])
answer = tracking.chat(history[1:])
assert answer.message.content == "Ann lives in Rome.", answer

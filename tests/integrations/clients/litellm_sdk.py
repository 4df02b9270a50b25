"""LiteLLM's SDK: chat with a history, responses with an earlier one."""

import sys
from typing import Any

import litellm  # LITELLM_LOCAL_MODEL_COST_MAP=True saves a look-up

settings: Any = {"api_base": f"{sys.argv[1]}/v1", "api_key": "none", "model": "openai/scripted"}
fact = {"role": "user", "content": "Ann lives in Rome."}
question = {"role": "user", "content": "Where does Ann live?"}
answer: Any = litellm.completion(messages=[fact, question], **settings)
assert answer.choices[0].message.content == "Ann lives in Rome.", answer
chunks: Any = litellm.completion(messages=[fact, question], stream=True, **settings)
assert "Rome" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
first: Any = litellm.responses(input=[fact], **settings)
second: Any = litellm.responses(
    input="Where does Ann live?", previous_response_id=first.id, **settings
)
assert second.output[-1].content[0].text == "Ann lives in Rome.", second

"""pydantic-ai: two turns over chat completions and over responses."""

import sys
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="none")
for kind in (OpenAIChatModel, OpenAIResponsesModel):
    model: Any = kind("scripted", provider=provider)
    agent = Agent(model)
    first = agent.run_sync("Ann lives in Rome.")
    answer = agent.run_sync("Where does Ann live?", message_history=first.all_messages())
    assert answer.output == "Ann lives in Rome.", answer

"""OpenAI Agents SDK: sessions on the server, a session of its own, and earlier responses."""

import asyncio
import sys
from typing import Any

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

client = AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
set_tracing_disabled(True)


async def main() -> None:
    responses = Agent("memory", model=OpenAIResponsesModel("scripted", client))
    chat = Agent("memory", model=OpenAIChatCompletionsModel("scripted", client))
    for agent in (responses, chat):
        session: Any = SQLiteSession("ann")
        await Runner.run(agent, "Ann lives in Rome.", session=session)
        answer = await Runner.run(agent, "Where does Ann live?", session=session)
        assert answer.final_output == "Ann lives in Rome.", answer.final_output

    first = await Runner.run(responses, "Ann lives in Rome.")
    history: Any = [*first.to_input_list(), {"role": "user", "content": "Where does Ann live?"}]
    assert (await Runner.run(responses, history)).final_output == "Ann lives in Rome."
    previous = first.last_response_id
    answer = await Runner.run(responses, "Where does Ann live?", previous_response_id=previous)
    assert answer.final_output == "Ann lives in Rome.", answer.final_output

    session = OpenAIConversationsSession(openai_client=client)
    fact: Any = {"role": "user", "content": "Bob lives in Oslo."}
    await session.add_items([fact])
    answer = await Runner.run(responses, "Where does Bob live?", session=session)
    assert answer.final_output == "Bob lives in Oslo.", answer.final_output
    items = await session.get_items()
    assert items[0]["content"][0]["text"] == "Bob lives in Oslo.", items
    popped = await session.pop_item()
    assert popped == items[-1], popped
    assert len(await session.get_items()) == len(items) - 1
    await session.clear_session()


asyncio.run(main())

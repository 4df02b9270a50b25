"""Hermes' memory in a served conversation, one for each user: `AtomMemProvider`.

Copy this folder to $HERMES_HOME/plugins/atommem, set ATOMMEM_URL (and ATOMMEM_KEY if the server has
keys), and `memory: {provider: atommem}` in Hermes' config.yaml. ATOMMEM_GOAL has the questions that
matter, one a line: a policy that was trained with the questions in view needs it.
"""

import json
import os
from typing import Any

from agent.memory_provider import MemoryProvider
from openai import OpenAI

ASK = {
    "name": "atommem_ask",
    "description": "Search the memory of earlier sessions, and answer a question from it.",
    "parameters": {
        "type": "object",
        "properties": {"question": {"type": "string"}},
        "required": ["question"],
    },
}


class AtomMemProvider(MemoryProvider):
    """Reads every turn, recalls entries for each message, and answers questions as a tool."""

    name = "atommem"

    def is_available(self) -> bool:
        return "ATOMMEM_URL" in os.environ

    def get_config_schema(self) -> list[dict[str, Any]]:
        key = {"key": "api_key", "description": "The server's key", "secret": True}
        url = {"key": "url", "description": "URL of atommem serve, without /v1", "required": True}
        return [{**url, "env_var": "ATOMMEM_URL"}, {**key, "env_var": "ATOMMEM_KEY"}]

    def initialize(self, session_id: str, **context: Any) -> None:
        key = os.environ.get("ATOMMEM_KEY", "none")
        self._client = OpenAI(base_url=f"{os.environ['ATOMMEM_URL']}/v1", api_key=key, timeout=600)
        self._writes = context.get("agent_context", "primary") == "primary"
        scope = {"user": context.get("user_id") or "hermes"}
        found = self._get("/conversations", limit=1, **scope)
        metadata = {**scope, "goal": os.environ.get("ATOMMEM_GOAL", "")}
        created = None if found else self._client.conversations.create(metadata=metadata)
        self.conversation: str = created.id if created else found[0]["id"]

    def prefetch(self, query: str, *, session_id: str = "") -> str:
        entries = self._get(f"/conversations/{self.conversation}/recall", query=query[:4000])
        return "\n".join(f"- {entry['text']}" for entry in entries)

    def sync_turn(self, user_content: str, assistant_content: str, **context: Any) -> None:
        if self._writes:
            turn = {"user": user_content, "assistant": assistant_content}
            new: Any = [{"role": role, "content": text} for role, text in turn.items() if text]
            self._client.conversations.items.create(self.conversation, items=new)

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return [ASK]

    def handle_tool_call(self, tool_name: str, args: dict[str, Any], **context: Any) -> str:
        answer = self._client.responses.create(
            input=args["question"], conversation=self.conversation
        )
        note = getattr(answer.output[-1], "note", "")  # such as: this is not from the memory
        return json.dumps({"answer": answer.output_text, "note": note})

    def _get(self, path: str, **params: Any) -> Any:
        page: Any = self._client.get(path, cast_to=object, options={"params": params})
        return page["data"]

"""Anthropic's memory tool (``memory_20250818``) over a served conversation: `AtomMemTool`.

Claude writes files below /memories with six commands. Each file is a text of the conversation,
which the policy reads: its memory answers questions about all of them.
"""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from anthropic.lib.tools import BetaFunctionToolResultType, ToolError
from anthropic.tools import BetaLocalFilesystemMemoryTool
from openai import BadRequestError, OpenAI


class AtomMemTool(BetaLocalFilesystemMemoryTool):
    """Files as texts of one conversation; a changed file replaces what was remembered of it.

    Each command runs as Anthropic's own tool runs it, on a folder of the present files. Empty
    folders do not exist, and blank files are refused.

    Args:
        url: The server, without ``/v1``.
        conversation: Its conversation; default: a new one (see the attribute `conversation`).
        api_key: The server's key.
        goal: For a new conversation: the questions that matter, one a line. A policy that was
            trained with the questions in view needs it.

    Raises:
        openai.APIError: The server refuses a request.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8765",
        conversation: str | None = None,
        api_key: str = "none",
        goal: str = "",
    ) -> None:
        self._folder = TemporaryDirectory()
        super().__init__(self._folder.name)
        self._client = OpenAI(base_url=f"{url}/v1", api_key=api_key, timeout=600)
        create = self._client.conversations.create
        self.conversation: str = conversation or create(metadata={"goal": goal}).id

    def execute(self, command: Any) -> BetaFunctionToolResultType:
        """Run a command on the present files, and store what it changed."""
        before, ids = self._load()
        result = super().execute(command)
        files = (path for path in self.memory_root.rglob("*") if path.is_file())
        after = {self._name(path): path.read_bytes().decode() for path in files}
        changed = {name: text for name, text in after.items() if before.get(name) != text}
        new: Any = [{"content": text, "name": name} for name, text in changed.items()]
        gone = [name for name in before if name not in after]
        items = self._client.conversations.items
        for start in range(0, len(new), 20):  # at most 20 a request; the last one takes `gone` away
            part, rest = new[start : start + 20], gone if start + 20 >= len(new) else []
            once = {"Idempotency-Key": str(uuid4())}
            earlier = {"replace": [*(item["name"] for item in part), *rest]}
            try:
                items.create(self.conversation, items=part, extra_headers=once, extra_body=earlier)
            except BadRequestError as error:
                raise ToolError(error.message) from error
        for name in () if new else gone:
            items.delete(ids[name], conversation_id=self.conversation)
        return result

    def clear_all_memory(self) -> str:
        """Delete all files, and what was remembered of them."""
        for item in self._load()[1].values():
            self._client.conversations.items.delete(item, conversation_id=self.conversation)
        return super().clear_all_memory()

    def _load(self) -> tuple[dict[str, str], dict[str, str]]:
        """Write the present files to the folder; return text and id of each.

        Leaves out texts of other clients whose names cannot be files.
        """
        super().clear_all_memory()
        texts, ids = dict[str, str](), dict[str, str]()
        query = {"name": "/memories/"}
        for item in self._client.conversations.items.list(
            self.conversation, order="asc", limit=100, extra_query=query
        ):
            fields = item.to_dict()
            name, (part, *_) = fields["name"], fields["content"]
            path = self.memory_root / name.removeprefix("/memories/")
            if path.is_relative_to(self.memory_root) and ".." not in path.parts:
                with suppress(OSError):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(part.get("text", "").encode())
                    texts[name], ids[name] = part.get("text", ""), fields["id"]
        return texts, ids

    def _name(self, path: Path) -> str:
        return f"/memories/{path.relative_to(self.memory_root)}"

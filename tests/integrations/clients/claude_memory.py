"""Anthropic's memory tool: commands have the results of Anthropic's own tool on files."""

import random
import runpy
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from anthropic.lib.tools import ToolError
from anthropic.tools import BetaLocalFilesystemMemoryTool
from openai import OpenAI

URL = sys.argv[1]
EXAMPLE = Path(__file__).parents[3] / "examples" / "anthropic" / "atommem_tool.py"
ours: Any = runpy.run_path(str(EXAMPLE))["AtomMemTool"](URL)
assert ours.to_dict() == {"type": "memory_20250818", "name": "memory"}
PATHS = ["/memories/a.md", "/memories/notes/b.md", "/memories/notes", "/memories", "/etc/passwd"]
chance = random.Random(0)


def run(tool: Any, command: dict[str, Any]) -> tuple[str, str]:
    try:
        return "done", str(tool.call(command))
    except (ToolError, OSError) as error:  # theirs raises OSError for a file below a file
        return "refused", str(error) if isinstance(error, ToolError) else type(error).__name__


def some_command() -> dict[str, Any]:
    path = chance.choice(PATHS)
    return chance.choice(
        [
            {"command": "view", "path": path},
            {"command": "view", "path": path, "view_range": [1, chance.choice([1, -1])]},
            {"command": "create", "path": path, "file_text": "Ann lives in Rome.\nShe sings.\n"},
            {"command": "str_replace", "path": path, "old_str": "Rome", "new_str": "Bern"},
            {"command": "insert", "path": path, "insert_line": 1, "insert_text": "Bob rows.\n"},
            {"command": "rename", "old_path": path, "new_path": chance.choice(PATHS[:3])},
            {"command": "delete", "path": path},
        ]
    )


def sizes_removed(result: tuple[str, str]) -> tuple[str, str]:
    """Sizes of folders are the file system's."""
    kind, text = result
    return kind, "\n".join(line.partition("\t")[2] or line for line in text.splitlines())


with TemporaryDirectory() as folder:
    theirs = BetaLocalFilesystemMemoryTool(folder)
    for _ in range(80):
        for path in sorted(theirs.memory_root.rglob("*"), reverse=True):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()  # empty folders do not exist on the server
        command = some_command()
        mine, other = run(ours, command), run(theirs, command)
        assert sizes_removed(mine) == sizes_removed(other), (command, mine, other)

for number in range(21):
    path = f"/memories/many/{number}.md"
    run(ours, {"command": "create", "path": path, "file_text": f"{number} sings."})
run(ours, {"command": "rename", "old_path": "/memories/many", "new_path": "/memories/songs"})
assert "20 sings." in run(ours, {"command": "view", "path": "/memories/songs/20.md"})[1]
run(ours, {"command": "delete", "path": "/memories/songs"})
ours.clear_all_memory()
ann = {"path": "/memories/ann.md"}
run(ours, {"command": "create", **ann, "file_text": "Ann lives in Rome."})
run(ours, {"command": "str_replace", **ann, "old_str": "Rome", "new_str": "Bern"})
client = OpenAI(base_url=f"{URL}/v1", api_key="none")
outside = ours.memory_root.parent / "outside"
other: Any = [{"content": "x", "name": f"/memories/../{outside.name}"}]
(item,) = client.conversations.items.create(ours.conversation, items=other).data
run(ours, {"command": "view", "path": "/memories"})
assert not outside.exists()
client.conversations.items.delete(str(item.id), conversation_id=ours.conversation)
answer = client.responses.create(
    model="scripted", conversation=ours.conversation, input="Where does Ann live?"
)
assert answer.output_text == "Ann lives in Bern.", answer.output_text
memory: Any = client.get(f"/conversations/{ours.conversation}/memory", cast_to=object)
assert [entry["text"] for entry in memory["entries"]] == ["Ann lives in Bern."]

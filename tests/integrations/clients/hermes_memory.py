"""Hermes' memory provider: found, loaded and driven by Hermes' own loader and manager."""

import json
import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ["ATOMMEM_URL"] = sys.argv[1]
EXAMPLE = Path(__file__).parents[3] / "examples" / "hermes"
with TemporaryDirectory() as home:
    os.environ["HERMES_HOME"] = home
    shutil.copytree(EXAMPLE, Path(home, "plugins", "atommem"))

    from agent.memory_manager import MemoryManager
    from plugins.memory import discover_memory_providers, load_memory_provider

    assert ("atommem", True) in [(name, ready) for name, _, ready in discover_memory_providers()]
    for user, fact in (("ann", "Ann lives in Rome."), ("bob", "Bob lives in Oslo.")):
        manager = MemoryManager()
        manager.add_provider(load_memory_provider("atommem"))
        manager.initialize_all("session", user_id=user, platform="cli", hermes_home=home)
        manager.sync_all(fact, "Noted.", session_id="session")
        assert manager.flush_pending(timeout=30)
        manager.shutdown_all()
    manager = MemoryManager()
    manager.add_provider(load_memory_provider("atommem"))
    manager.initialize_all("later", user_id="ann", platform="cli", hermes_home=home)
    found = manager.prefetch_all("Where does Ann live?")
    assert "Ann lives in Rome." in found, found
    assert "Bob" not in found, found
    assert manager.get_all_tool_names() == {"atommem_ask"}
    answer = manager.handle_tool_call("atommem_ask", {"question": "Where does Ann live?"})
    assert json.loads(answer) == {"answer": "Ann lives in Rome.", "note": ""}, answer

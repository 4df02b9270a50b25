"""Invalid settings of the room: each is refused with its name, its value or a fix."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atommem.environment import environment_config
from atommem.envs.synthetic.world import WorldConfig
from atommem.envs.web.net.providers import Retrieve, Serper
from atommem.envs.web.tools import Tool, ToolSource
from atommem.errors import ConfigError
from tests.envs.web.browsing import web
from tests.envs.web.test_sources import ENGINE


def untyped(place):  # type: ignore[no-untyped-def]
    """Has no annotations."""


class Misdescribed(ToolSource):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        schema = {"type": "object", "properties": {"q": {"pattern": "("}}}
        self.tools = [Tool("bad", "", schema, lambda arguments, task: None)]  # type: ignore


def searched(kind: Callable[[Any], object], url: str) -> object:
    return kind(environment_config("web", search_url=url))


SETTINGS: list[tuple[Callable[[], object], str]] = [
    (lambda: environment_config("longdoc", judge_url="http://x"), "give both or none"),
    (lambda: environment_config("longdoc", reward="judge"), "reward=judge"),
    (lambda: web(tools=["task", "task"]), "called search"),
    (lambda: web(tools=["tests.envs.test_settings:untyped"]), "untyped: not a tool"),
    (lambda: web(tools=["tests.envs.test_settings:Misdescribed"]), "bad: invalid JSON schema"),
    (lambda: web(user_agent="Über"), "use printable ASCII"),
    (lambda: web(tools=[ENGINE], call_budget=1), "need recording"),
    (lambda: web(tools=["searxng"]), "tools=searxng: search_url"),
    (lambda: searched(Retrieve, "http://["), "not a server URL"),
    (lambda: searched(Serper, "http://search.test"), "plain http to another machine"),
    (lambda: WorldConfig(hops=(1, 3), questions=(1, 2), capacity=5), "Give at least 6"),
]


@pytest.mark.parametrize(("make", "message"), SETTINGS, ids=[message for _, message in SETTINGS])
def test_setting_that_is_invalid_is_named(
    make: Callable[[], object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATOMMEM_SERPER_API_KEY", "my-key")
    with pytest.raises(ConfigError, match=message):
        make()

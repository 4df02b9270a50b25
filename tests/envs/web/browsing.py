"""Tasks, episodes and servers of the web tests; no packet leaves this machine.

The internet is 127.0.0.2, providers are 127.0.0.1."""

import asyncio
import json
import socket
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from atommem.environment import EnvironmentFactory, environment_config, make_factory
from atommem.envs.task import Document, Question, Task
from atommem.envs.web.net.direct import Direct
from atommem.envs.web.net.guard import Address
from atommem.envs.web.sources import make_tools
from atommem.envs.web.tools import ToolResult, ToolSource, text_tool
from atommem.episode import Episode
from atommem.errors import OutageError
from atommem.rollout import EpisodeRunner
from tests.fakes import WordTokenizer, list_policy, make_episode_runner
from tests.loopback import Route, routing

INTERNET = "127.0.0.2"
PAGES = (
    Document("Ann", "Ann lives in Oakrest . She wrote to Bob Vin ."),
    Document("Bob Vin", "Bob Vin lives in Fenford ."),
    Document("Cold Mere", "one two three four five six seven eight nine ten ."),
)
ANSWER = "<final_answer>\\boxed{Oakrest}</final_answer>"


def make_task(*questions: str, **metadata: Any) -> Task:
    texts = questions or ("Where does Ann live?",)
    asked = tuple(Question(text, ("Oakrest",)) for text in texts)
    return Task("t", asked, PAGES, metadata=metadata)


def call(name: str, /, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def web(**settings: Any) -> EnvironmentFactory:
    return make_factory(environment_config("web", **settings), WordTokenizer())


def make_runner(completions: Sequence[str] = (), **settings: Any) -> EpisodeRunner:
    factory: Any = web(**settings)
    policy = list_policy(factory.tokenizer, list(completions))
    return make_episode_runner(policy=policy, tokenizer=factory.tokenizer, factory=factory)


def play(completions: Sequence[str], task: Task | None = None, **settings: Any) -> Episode:
    runner = make_runner(completions, **settings)

    async def run() -> Episode:
        try:
            return await runner.run(task or make_task())
        finally:
            await runner.factory.close()

    return asyncio.run(run())


def use(
    sources: Sequence[ToolSource], *calls: str | tuple[str, Mapping[str, Any]]
) -> list[ToolResult]:
    """Return the results of calls of the only tool with a text, or of named ones; close sources."""
    tools = make_tools(sources, sources[0].config)

    async def run() -> list[ToolResult]:
        results = []
        for call in calls:
            if isinstance(call, str):
                (tool,) = tools.values()
                call = tool.name, {tool.argument: call}
            name, arguments = call
            results.append(await tools[name].run(arguments, None))
        for source in sources:
            await source.close()
        return results

    return asyncio.run(run())


def on_loopback(address: Address, port: int) -> bool:
    """Allow 127.0.0.2 only."""
    return address == ip_address(INTERNET)


def resolver(names: Mapping[str, Sequence[str]], silent: Sequence[str] = ()) -> Any:
    async def resolve(host: str, port: int) -> Sequence[str]:
        if host in names:
            return names[host]
        try:
            return [str(socket.getaddrinfo(host, port, flags=socket.AI_NUMERICHOST)[0][4][0])]
        except socket.gaierror:
            kind = socket.EAI_AGAIN if host in silent else socket.EAI_NONAME
            raise socket.gaierror(kind, "no such name") from None

    return resolve


class LoopbackDirect(Direct):
    """The reader with 127.0.0.2 as its internet."""

    def __init__(self, config: Any) -> None:
        resolve = resolver({}, silent=("unresolved.test", "example.com"))
        super().__init__(config, rule=on_loopback, resolve=resolve)


DIRECT = f"{__name__}:LoopbackDirect"
MADE: list[str] = []


class Engine(ToolSource):
    backend = "engine 1"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.tools = [text_tool("search", "Finds.", "query", "Words.", self._search)]

    async def _search(self, query: str, task: Any) -> ToolResult:
        MADE.append(query)
        await asyncio.sleep(0.05)
        if query == "gone":
            raise OutageError("no engine")
        missing = query == "nothing"
        return ToolResult(f"found {query}", is_error=missing, origin=f"https://{query}.test/")


ENGINE = f"{__name__}:Engine"


def serving(routes: Mapping[str, Route], address: str = INTERNET) -> Any:
    return routing(routes, address)

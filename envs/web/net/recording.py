"""Tools whose calls are recorded on a cassette, or answered from one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from atommem.envs.web.net.cassette import LEASE_SECONDS, Budget, Cassette, RecordedCall
from atommem.envs.web.net.hosts import HostRules
from atommem.envs.web.tools import Run, Tool, ToolResult, ToolSource
from atommem.errors import OutageError

_SHORTEST_WAIT, _LONGEST_WAIT = 0.01, 0.25
_Value = TypeVar("_Value")


class Recorder:
    """A cassette for tools that are called on event loops: it is read and written in a thread of its own.

    - ``live``: what was recorded is answered from the cassette, everything else is asked and recorded.
    - ``replay``: nothing is asked. What was not recorded is an outage: nothing may be scored by it.
    - ``frozen``: nothing is asked. What was not recorded is not there, as a page that is not: the recorded web is all.

    Args:
        config: Settings with `WebConfig` that name a cassette.
    """

    def __init__(self, config: Any) -> None:
        self._mode = config.cassette_mode
        prices = {
            name: float(price) for name, price in (one.split("=") for one in config.call_prices)
        }
        budget = Budget(config.call_budget, config.cost_budget, prices)
        self._cassette = Cassette(config.cassette, budget, read_only=self._mode != "live")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="atommem-cassette")
        self._closed = False

    async def call(self, call: RecordedCall, make: Callable[[], Any]) -> ToolResult:
        """What `call` gives: from the cassette, or by `make`.

        Raises:
            OutageError: It failed, here or where it was waited for; or nothing may be asked, and it was not recorded.
            BudgetSpentError: It would have to be made, and nothing is left to be spent.
        """
        if self._mode != "live":
            found = await self._do(self._cassette.found, call)
            if found is not None:
                return found
            if self._mode == "frozen":
                return ToolResult(
                    "There is no such page or result in the recorded web.", is_error=True
                )
            raise OutageError(
                f"{self._cassette.path} does not hold {call.tool} {call.arguments}: record it first."
            )
        since, wait = time.time(), _SHORTEST_WAIT
        while True:
            begun = await self._do(self._cassette.begin, call, since)
            if isinstance(begun, ToolResult):
                return begun
            if begun:
                return await self._make(call, make)
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    def close(self) -> None:
        """Write what is left, and close the file. Sources share a recorder: twice is no error."""
        if not self._closed:
            self._closed = True
            self._thread.submit(self._cassette.close)
            self._thread.shutdown()

    async def _make(self, call: RecordedCall, make: Callable[[], Any]) -> ToolResult:
        renewing = asyncio.create_task(self._renew(call))
        try:
            result: ToolResult = await make()
        except OutageError as error:
            await self._do(self._cassette.fail, call, str(error))
            raise
        except BaseException:
            # Not awaited: it may be a cancellation, after which nothing else should be waited for.
            self._thread.submit(self._cassette.release, call)
            raise
        finally:
            renewing.cancel()
        await self._do(self._cassette.end, call, result)
        return result

    async def _renew(self, call: RecordedCall) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            await self._do(self._cassette.renew, call)

    async def _do(self, work: Callable[..., _Value], *arguments: Any) -> _Value:
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: work(*arguments)
        )


class RecordedSource(ToolSource):
    """A source whose calls go through a recorder."""

    def __init__(self, source: ToolSource, recorder: Recorder) -> None:
        super().__init__(source.config)
        self._source = source
        self._recorder = recorder
        self._hosts = HostRules.of(source.config)

    @property
    def tools(self) -> Sequence[Tool]:
        """The source's."""
        return [replace(tool, run=self._recorded(tool)) for tool in self._source.tools]

    async def close(self) -> None:
        """Close the source and the recorder."""
        await self._source.close()
        await asyncio.to_thread(self._recorder.close)

    def _recorded(self, tool: Tool) -> Run:
        async def run(arguments: Mapping[str, Any], task: Any) -> ToolResult:
            assert self._source.backend is not None
            asked = str(arguments.get(tool.follows or "", ""))
            if not self._hosts.allows_name(
                asked
            ):  # by the lists of today: nothing to record, or to pay for
                return ToolResult(f"{asked} may not be visited.", is_error=True)
            call = RecordedCall.of(tool.name, self._source.backend, arguments)
            return self._allowed(await self._recorder.call(call, lambda: tool.run(arguments, task)))

        return run

    def _allowed(self, result: ToolResult) -> ToolResult:
        """A result without what was not denied yet when it was recorded: a page, or lines of a search."""
        if not self._hosts.allows_name(result.origin):
            return ToolResult(f"{result.origin} may not be visited.", is_error=True)
        lines = result.text.split("\n")
        if result.title or len(lines) != len(result.links):
            return result
        found = zip(lines, result.links, strict=True)
        kept = [(line, link) for line, link in found if self._hosts.allows_name(link.target)]
        if not kept:
            return ToolResult("All that was found may not be visited.", is_error=True)
        return replace(
            result, text="\n".join(line for line, _ in kept), links=tuple(link for _, link in kept)
        )

"""A pool of servers: where requests go, and what happens when servers die and come back."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from atommem.errors import OutageError, PolicyError
from atommem.policy.contract import Completion, Sampling
from atommem.policy.server_pool import Adapter, ServerPool
from tests.fake_vllm import Cluster
from tests.fakes import WordTokenizer

SAMPLING = Sampling(temperature=1.0, max_completion_length=4)
HALF = Sampling(temperature=0.5, max_completion_length=4)
V1, V2 = Adapter("v1", "/adapters/v1"), Adapter("v2", "/adapters/v2")
Pools = Callable[..., ServerPool]


@pytest.fixture
async def pools() -> AsyncIterator[Pools]:
    made: list[ServerPool] = []

    def make(cluster: Cluster, **settings: Any) -> ServerPool:
        settings = {"patience": 5.0, "backoff": 0.01, "tokenizer": WordTokenizer(), **settings}
        made.append(ServerPool(cluster.urls, transport=cluster.transport, **settings))
        return made[-1]

    yield make
    for pool in made:
        await pool.close()


async def complete(pool: ServerPool, count: int, affinity: str | None = None) -> list[Completion]:
    sampling = replace(SAMPLING, affinity=affinity)
    return await asyncio.gather(*(pool.complete([5, 6], sampling) for _ in range(count)))


async def until(condition: Callable[[], object], seconds: float = 2.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def test_pool_server_dies_others_answer(pools: Pools) -> None:
    cluster = Cluster("a", "b")
    pool = pools(cluster)
    cluster["a"].seconds = cluster["b"].seconds = 0.02
    running = asyncio.create_task(complete(pool, 8))
    await until(lambda: cluster["a"].in_flight == 4)
    cluster["a"].up = False
    assert len(await running) == 8
    assert [server.url for server in pool.serving] == ["http://b"]


async def test_pool_returned_server_loads_the_adapter_before_requests(pools: Pools) -> None:
    cluster = Cluster("a", "b")
    pool = pools(cluster)
    await pool.use_adapter(V1)
    cluster["a"].up = False
    await complete(pool, 4)
    await pool.use_adapter(V2)
    cluster["a"].restart()
    await until(lambda: len(pool.serving) == 2)
    await complete(pool, 4)
    assert cluster["a"].models == {"policy": "", "v2": "/adapters/v2"}
    assert cluster["a"].asked == ["v2"] * 2
    cluster["a"].restart()  # nobody saw it die: it answers 404 for a model that it has forgotten
    await complete(pool, 4)
    await until(lambda: cluster["a"].loads == ["v1", "v2", "v2"])


async def test_pool_requests_an_adapter_only_after_it_is_loaded(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asynchronous training publishes while episodes run."""
    cluster = Cluster("a")
    pool = pools(cluster)
    await pool.use_adapter(V1)
    load, may_load = pool.servers[0].load_adapter, asyncio.Event()

    async def slow(adapter: Adapter) -> None:
        await may_load.wait()
        await load(adapter)

    monkeypatch.setattr(pool.servers[0], "load_adapter", slow)
    publishing = asyncio.create_task(pool.use_adapter(V2))
    await complete(pool, 2)
    may_load.set()
    await publishing
    await complete(pool, 1)
    assert cluster["a"].asked == ["v1", "v1", "v2"]


async def test_pool_restricted_to_servers_keeps_a_dropped_one_out(pools: Pools) -> None:
    """A restarted server has its checkpoint's weights, and not those of the training."""
    cluster = Cluster("a", "b")
    pool = pools(cluster)
    await pool.restrict(["http://b"])
    await complete(pool, 2)
    cluster["b"].up = False
    with pytest.raises(OutageError, match="current weights"):
        await complete(pool, 1)
    cluster["b"].restart()
    await asyncio.sleep(0.05)
    assert pool.serving == []
    await pool.restrict(cluster.urls)
    assert [server.url for server in pool.serving] == cluster.urls


async def test_pool_without_servers_waits_then_is_an_outage(pools: Pools) -> None:
    cluster = Cluster("a", "b")
    cluster["a"].up = cluster["b"].up = False
    with pytest.raises(OutageError, match=r"No server answered for 0 s \(http://a, http://b\)"):
        await complete(pools(cluster, patience=0.1), 1)
    waiting = asyncio.create_task(complete(pools(cluster), 3))
    await asyncio.sleep(0.03)
    cluster["b"].up = True
    assert len(await waiting) == 3


async def test_pool_checks_logprobs_once_and_again_after_a_restart(pools: Pools) -> None:
    cluster = Cluster("a")
    server, pool = cluster["a"], pools(cluster, scaled_logprobs=True)
    await pool.complete([5, 6], SAMPLING)
    with pytest.raises(PolicyError, match=r"temperature 0.5 .* --logprobs-mode processed_logprobs"):
        await pool.complete([5, 6], HALF)
    server.logprobs_mode = "processed_logprobs"
    server.bodies.clear()
    await asyncio.gather(*(pool.complete([5, 6], HALF) for _ in range(64)))
    assert len(server.bodies) == 64 + 2
    server.up = False
    waiting = asyncio.create_task(pool.complete([5, 6], HALF))
    await until(lambda: not pool.serving)
    server.restart()
    server.logprobs_mode = "raw_logprobs"
    with pytest.raises(PolicyError, match="without the temperature"):
        await waiting

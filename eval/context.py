"""The open policy, embedder and environments of evaluations, shared by those that agree on them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import asdict, astuple
from typing import Any

from atommem.config import EmbedderConfig, PolicyConfig
from atommem.embedding.embedder import Embedder
from atommem.environment import EnvironmentFactory, make_environments
from atommem.envs.scoring.judge_config import judge_settings
from atommem.eval.eval_config import EvalRun
from atommem.eval.methods import make_method
from atommem.eval.methods.baseline import Method, Setup
from atommem.policy.opening import open_policy, policy_identity
from atommem.process import ended_by_ctrl_c
from atommem.rollout import ENCODE_THREADS
from atommem.run import open_embedder


class EvalContext:
    """Holds one policy, one embedder, and environments; a context manager that closes them.

    Opening another policy or embedder closes the previous one first: two models may not fit.

    Args:
        slots: Bounds the episodes of all methods together; None bounds each by `max_in_flight`.
    """

    def __init__(self, slots: asyncio.Semaphore | None = None) -> None:
        self._slots = slots
        self._policy: tuple[PolicyConfig, Any, dict[str, Any]] | None = None
        self._embedder: tuple[EmbedderConfig, Embedder] | None = None
        self._environments: dict[tuple[Any, ...], EnvironmentFactory] = {}
        self._policy_stack, self._embedder_stack = AsyncExitStack(), AsyncExitStack()

    async def __aenter__(self) -> EvalContext:
        return self

    async def __aexit__(self, *exception: object) -> None:
        async with self._embedder_stack, self._policy_stack:
            pass

    async def open(self, evaluation: EvalRun) -> tuple[Method, dict[str, Any]]:
        """Return the method, and the settings that its output folder must agree in.

        Raises:
            ConfigError: A setting is wrong, or a package is missing.
            PolicyError: The model or tokenizer cannot be loaded.
            OutageError: A server is unreachable.
        """
        config, run = evaluation.config, evaluation.run
        environment = run.environment
        policy, identity = await self._open_policy(evaluation.policy)
        embedder = await self._open_embedder(run.embedder)
        key = (type(environment), repr(astuple(environment)))  # settings may be lists
        if key not in self._environments:
            self._environments[key] = make_environments(environment, policy.tokenizer)
            self._policy_stack.push_async_callback(self._environments[key].close)
        setup = Setup(
            policy=policy,
            embedder=embedder,
            tokenizer=policy.tokenizer,
            environments=self._environments[key],
            memory=run.memory,
            sampling=run.sampling,
            max_in_flight=self._slots or evaluation.policy.max_in_flight,
            chat_template_kwargs=run.chat_template_kwargs,
            context_tokens=config.context_tokens,
            yarn_factor=config.yarn_factor,
            encode_threads=ENCODE_THREADS,
        )
        values = {**asdict(environment), **judge_settings(environment)}
        values |= self._environments[key].identity()
        settings = {
            "policy": identity,
            "embedder": {**asdict(run.embedder), "embedder_url": None},  # servers may move
            "environment": {
                name: value for name, value in values.items() if name not in environment.operational
            },
            "chat_template_kwargs": run.chat_template_kwargs,
            "method": {"name": config.method},
        }
        return make_method(config.method, setup), settings

    async def _open_policy(self, choice: PolicyConfig) -> tuple[Any, dict[str, Any]]:
        if self._policy is None or self._policy[0] != choice:
            self._policy, self._environments = None, {}
            await self._policy_stack.aclose()
            with ended_by_ctrl_c():  # loading takes minutes
                policy = open_policy(choice)
            self._policy_stack.push_async_callback(policy.close)
            self._policy = (choice, policy, await policy_identity(choice, policy))
        return self._policy[1], self._policy[2]

    async def _open_embedder(self, config: EmbedderConfig) -> Embedder:
        if self._embedder is None or self._embedder[0] != config:
            self._embedder = None
            await self._embedder_stack.aclose()
            with ended_by_ctrl_c():
                self._embedder = (config, open_embedder(config))
            self._embedder_stack.push_async_callback(self._embedder[1].close)
        return self._embedder[1]

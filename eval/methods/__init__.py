"""The methods of an evaluation by name: AtomMem and what it is compared with."""

from collections.abc import Callable
from dataclasses import replace

from atommem.config import check_choice
from atommem.eval.methods import baseline
from atommem.eval.methods.agents import AGENTS
from atommem.eval.methods.baseline import FullContext, Method, NoMemory, Oracle, VanillaRAG
from atommem.eval.methods.notes import AMem, GenerativeAgents, Mem0
from atommem.eval.methods.recorder import Setup
from atommem.plugins import find
from atommem.rollout import ENCODE_THREADS, EpisodeRunner
from atommem.run import build_agent

__all__ = ["METHODS", "Method", "Setup", "check_method", "make_method"]


def _atommem(setup: Setup) -> EpisodeRunner:
    """AtomMem (arXiv 2601.08323), trained or not: the loop itself."""
    agent = build_agent(
        setup.run,
        setup.policy,
        embedder=setup.embedder,
        factory=setup.factory,
        encode_threads=ENCODE_THREADS,
    )
    return EpisodeRunner(agent, max_in_flight=setup.max_in_flight)


def _memagent(setup: Setup) -> EpisodeRunner:
    """MemAgent (arXiv 2507.02259): the loop with one text that each completion overwrites.

    All questions are asked at one step: 7 chunks and 1 answer are the 8.0 calls of Table 6.
    """
    memory = setup.run.memory
    # The checkpoint's own wording, where it was trained on this dialect.
    own = memory.templates if memory.dialect == "memagent" else "memagent"
    memory = replace(memory, dialect="memagent", templates=own, capacity=None, disabled_actions=[])
    factory = baseline.suitable(setup, "memagent").without_reads()
    return _atommem(replace(setup, run=replace(setup.run, memory=memory), factory=factory))


_READERS = (FullContext, VanillaRAG, GenerativeAgents, AMem, Mem0, NoMemory, Oracle)
_MAKERS: dict[str, Callable[[Setup], Method]] = {"atommem": _atommem, "memagent": _memagent}
_MAKERS |= {method.name: method for method in (*_READERS, *AGENTS)}
METHODS = tuple(_MAKERS)


def make_method(name: str, setup: Setup) -> Method:
    """Make the method `name`, or a user's (``module:Class``); ConfigError if it does not fit."""
    check_method(name)
    return (find("method", name) if ":" in name else _MAKERS[name])(setup)


def check_method(name: str) -> None:
    if ":" not in name:
        check_choice("method", name, (*METHODS, "MODULE:CLASS"))

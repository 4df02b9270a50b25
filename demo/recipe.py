"""What the demo trains, on what, and for how long: every number of it in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from atommem.envs.synthetic.expert import Faults
from atommem.envs.synthetic.world import WorldConfig
from atommem.envs.web.site.expert import BrowsingFaults
from atommem.envs.web.site.world import SiteConfig

GRPO_CONFIG = Path(__file__).with_name("grpo.yaml")
"""Settings of GRPO, memory, embedder and environment, as ``atommem train grpo --config`` takes them."""


@dataclass(frozen=True)
class PolicySize:
    """A Qwen3-architecture model. Width 64 with 3 layers learns this world in minutes."""

    width: int = 64
    layers: int = 3
    heads: int = 4
    head_width: int = 16
    max_positions: int = 256


@dataclass(frozen=True)
class Sequences:
    """What is copied: `batch_size` sequences of `length` tokens, each made of `pieces` of 2 to `longest` tokens.

    They are trained on until the mean loss of the last ten updates is below `until` nats a token.
    """

    pieces: int = 10
    longest: int = 4
    length: int = 64
    batch_size: int = 64
    until: float = 0.0


@dataclass(frozen=True)
class CopyingConfig:
    """Pretraining on sequences of random pieces: what makes a model of this size able to copy by content.

    Attributes:
        steps: Updates at most, before the cooldown.
        stages: The sequences, one kind after the other.
        cooldown: Updates that follow, over which the learning rate falls to 0.
        learning_rate, warmup: AdamW's, and the updates until it is reached.
    """

    steps: int = 900
    stages: tuple[Sequences, ...] = (Sequences(),)
    cooldown: int = 0
    learning_rate: float = 3e-3
    warmup: int = 100


@dataclass(frozen=True)
class ColdStart:
    """Supervised training on what the faulty expert did."""

    episodes: int = 4000
    steps: int = 1200
    batch_size: int = 64
    learning_rate: float = 3e-3
    faults: Any = field(
        default_factory=lambda: Faults(create=0.45, read=0.2, update=0.25, scratchpad=0.05)
    )


@dataclass(frozen=True)
class Bars:
    """What the demo claims to show.

    Attributes:
        before, after: Held-out EM: at most before GRPO, at least after it.
        lost: By ablation, how much lower EM must be at least.
        chance: EM of guessing; what `tools_off` may have, three standard errors allowed.
        followed: Where pages hold instructions: of the episodes that were shown one, the share that follows it after
            GRPO must be below this.
    """

    before: float = 0.5
    after: float = 0.9
    lost: Mapping[str, float] = field(default_factory=lambda: {"store_off": 0.3, "update_off": 0.1})
    chance: float | None = None
    followed: float | None = None


@dataclass(frozen=True)
class Recipe:
    """The whole demo. `world` is a `WorldConfig` or a `SiteConfig`, and the cold start's faults are of its expert."""

    world: Any = field(
        default_factory=lambda: WorldConfig(
            prose="compact",
            hops=(2, 2),
            distractors=2,
            early=0.5,
            corrections=0.5,
            errata=True,
            facts_per_document=2,
            names=16,
        )
    )
    size: PolicySize = field(default_factory=PolicySize)
    copying: CopyingConfig = field(default_factory=CopyingConfig)
    cold_start: ColdStart = field(default_factory=ColdStart)
    updates: int | None = None
    """Updates of GRPO; None is what the YAML file says."""
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Fields of the YAML file with other values, as words of a command line."""
    heldout: int = 300
    ablations: tuple[str, ...] = ("store_off", "scratchpad_off", "update_off")
    """Evaluations of the trained policy with something switched off; see `atommem.demo.results.ABLATIONS`."""
    bars: Bars = field(default_factory=Bars)

    @property
    def capacity(self) -> int | None:
        """Entries that the store holds at most; None without a limit."""
        return getattr(self.world, "capacity", None)


FULL = Recipe(
    size=PolicySize(head_width=32),
    copying=CopyingConfig(
        800,
        (Sequences(4, 3, length=24, batch_size=128, until=0.5), Sequences(until=0.3)),
        100,
        warmup=50,
    ),
    cold_start=ColdStart(steps=900),
    updates=50,
)
"""What it saves of the pretraining, the web's policy needs: with this one its EM was .75 instead of .84 (seed 0).

Of short sequences with few pieces, copying is learned from 40% fewer tokens; some 35 updates extend it to the others.
With heads of 32, which vLLM on CPU takes, it takes three quarters of the updates that heads of 16 need. Half the heads
of keys and values, and two thirds of the MLP, save a fifth of each pass, but one seed of five then comes to .49."""
LIMITED = Recipe(
    world=replace(FULL.world, distractors=4, early=0.8, capacity=3),
    cold_start=ColdStart(faults=replace(FULL.cold_start.faults, delete=0.3)),
    updates=120,
    ablations=(*FULL.ablations, "delete_off"),
    bars=Bars(lost={**FULL.bars.lost, "delete_off": 0.1}),
)
"""A store of three entries that discards the fourth, in a world with more facts that says which are of no more use."""
BOUNDED = replace(
    LIMITED,
    size=FULL.size,
    world=replace(LIMITED.world, capacity=None, names=48),
    settings={"capacities": ("2", "3", "5", "8", "20", "0")},
)
"""One policy for every budget: the prompt says how many entries the store holds, which differs from task to task."""
LOOKED_UP = {"retrieve_k": ("4",), "max_reads": ("2",)}
"""What a question that comes after the text needs: two facts are looked up, one after the other. Four entries, because
two corrections of one document concern up to four."""
MIXED = Recipe(
    settings={**LOOKED_UP, "questions_shown": ("reading", "answering")},
    updates=240,
    ablations=("store_off", "update_off"),
    bars=Bars(after=0.8),
)
"""Half of the tasks show their question only when the text is over: the policy has to keep whatever may be asked."""
WEB = Recipe(
    world=SiteConfig(),
    cold_start=ColdStart(faults=BrowsingFaults(create=0.4, read=0.2, scratchpad=0.15, wander=0.15)),
    ablations=("store_off", "scratchpad_off", "tools_off"),
    bars=Bars(
        after=0.8, lost={"store_off": 0.2, "scratchpad_off": 0.2}, chance=1 / SiteConfig().names
    ),
)
"""The synthetic site: pages that are visited by their links, with at most six calls."""
INJECTED = replace(
    WEB,
    world=replace(WEB.world, injected=0.3),
    cold_start=replace(WEB.cold_start, faults=replace(WEB.cold_start.faults, obey=0.3)),
    ablations=(*WEB.ablations, "injected_off"),
    bars=replace(WEB.bars, followed=0.05),
)
"""The synthetic site with instructions of strangers on its pages, which the cold start's expert follows at times."""


def quick(recipe: Recipe) -> Recipe:
    """`recipe` cut down to seconds: runs every part and teaches nothing. For tests, and to see what the demo writes."""
    cold_start = replace(recipe.cold_start, episodes=60, steps=10)
    return replace(
        recipe,
        copying=CopyingConfig(steps=10),
        cold_start=cold_start,
        updates=2,
        heldout=8,
        settings={
            **recipe.settings,
            "per_device_train_batch_size": ("64",),
            "max_completion_length": ("12",),
        },
    )

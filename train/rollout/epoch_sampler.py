"""The order of tasks: TRL's sampler, made repeatable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from trl.trainer.utils import RepeatSampler


class EpochSampler(RepeatSampler):
    """A `RepeatSampler` whose order depends on the seed and the epoch alone.

    TRL's goes on drawing from one generator, so that a run that is resumed in its second epoch would
    repeat the order of the first.
    """

    def __init__(self, *args: Any, epoch: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self.shuffle:
            self.generator.manual_seed(self.seed + 1_000_003 * self._epoch())
        return super().__iter__()

"""Settings of TRL's fused LM head that matter on CPU. Results do not depend on them."""

from __future__ import annotations

import trl.trainer.utils

CPU_TILE_WIDTH = 512
"""Vocabulary columns a tile. Seen on two cores, forward and backward: 39 -> 22 ms for 4,096 tokens at a
vocabulary of 152, 7.6 -> 5.0 s for 1,024 tokens at 49,152."""


def tune_lm_head_for_cpu(device_type: str) -> None:
    """Make TRL's LM head fast on CPU; elsewhere nothing changes.

    Its tiles of 32,768 columns suit GPUs. On CPU each of a tile's rows then begins a new memory page, and
    the buffer of half a gigabyte is mapped anew at every call. And where there is no Triton it
    projects every position, also those whose prediction is not scored, to keep shapes the same for
    compilers: without one, that is wasted. TRL reads both module constants at every call and offers no
    argument for them.
    """
    if device_type == "cpu":
        trl.trainer.utils._CHUNKED_LOGPROB_CHUNK_SIZE = CPU_TILE_WIDTH
        trl.trainer.utils._use_triton = _score_labelled_positions_only


def _score_labelled_positions_only(device: object) -> bool:
    return True

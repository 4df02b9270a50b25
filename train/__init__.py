"""Training: cold start, GRPO and asynchronous GRPO over whole episodes."""

import os

# TRL is pinned, and tests/train/test_trl_seam.py guards its experimental part.
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

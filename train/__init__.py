"""Training: cold start, GRPO and asynchronous GRPO over whole episodes."""

import os

# TRL is pinned, because parts of it that are used are experimental.
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

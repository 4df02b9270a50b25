"""Training while sampling: the rollout worker runs ahead of the trainer by a bounded number of updates."""

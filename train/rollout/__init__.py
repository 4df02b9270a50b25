"""Sources of training episodes."""

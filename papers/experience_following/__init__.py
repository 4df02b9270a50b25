"""Experience following (arXiv 2505.16067): four agents that any policy can play."""

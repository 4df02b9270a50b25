"""RegAgent (arXiv 2505.16067): Tables 1, 2, 5, 6 and 7 with a numeric agent."""

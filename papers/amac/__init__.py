"""A-MAC (arXiv 2603.04549): Tables 1 and 3, and whole conversations."""

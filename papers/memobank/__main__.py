"""Run the experiment: ``python -m papers.memobank``."""

from papers.cli import main

raise SystemExit(main("memobank"))

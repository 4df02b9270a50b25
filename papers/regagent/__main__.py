"""Run the experiment: ``python -m papers.regagent``."""

from papers.cli import main

raise SystemExit(main("regagent"))

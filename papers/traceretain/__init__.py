"""TraceRetain (arXiv 2606.29178): retention of trajectories on ALFWorld's own engine."""

"""Suites: many evaluations, described by one file, that make one report."""

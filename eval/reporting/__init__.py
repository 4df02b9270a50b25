"""Reports: comparisons, result files, tables, charts and the page for the browser."""

"""What evaluations say together: comparisons, result files, tables, plots and the page for the browser."""

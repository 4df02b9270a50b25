"""Where training samples its episodes from."""

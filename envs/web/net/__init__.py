"""The live web: a guarded way to pages, search engines and readers, and what was recorded of
them."""

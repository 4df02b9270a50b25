"""The live web: guarded pages, search engines, readers, and recordings of them."""

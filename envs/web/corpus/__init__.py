"""A corpus: a folder of pages that can be searched, read and served."""

"""A corpus: a folder of pages that can be searched, read and served."""

from atommem.envs.web.corpus.corpus import Corpus, Found, build_corpus
from atommem.envs.web.corpus.pages import Page, read_pages

__all__ = ["Corpus", "Found", "Page", "build_corpus", "read_pages"]

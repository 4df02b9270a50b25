"""Experiments of the papers on bounded memory, on top of AtomMem; not part of the wheel."""

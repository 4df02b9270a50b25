"""Experience across tasks: records of what was asked, done and came of it, kept by the rules that keep entries.

A bank is a memory in the words of the core: its records are entries, its log is made of operations, its rules are those
of `atommem.memory`. It is not the memory of an episode, which begins empty: it outlives them, in a file.
"""

from atommem.experience.bank import Bank, Experience
from atommem.experience.evaluators import Verdict
from atommem.experience.memento import read_memento

__all__ = ["Bank", "Experience", "Verdict", "read_memento"]

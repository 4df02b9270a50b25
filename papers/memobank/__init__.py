"""MemoBankRL: Table 3 on Memento's own bank, and what is left of it under controls."""

"""A fault of a page, as opposed to one of a provider (`OutageError`) or of the policy."""

from __future__ import annotations

from atommem.errors import AtomMemError


class PageError(AtomMemError):
    """A page cannot be had or read (404, not allowed, too large, no text). Its message is what the policy is shown.

    Attributes:
        status: Of the answer, where the page's server gave one.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

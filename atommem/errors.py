"""The error hierarchy. Every error that AtomMem raises on purpose derives from `AtomMemError`."""


class AtomMemError(Exception):
    """Base class. Its message says what was wrong, with the value, and what to do."""


class ConfigError(AtomMemError):
    """A setting is missing, unknown or contradicts another."""


class DialectError(AtomMemError):
    """A dialect or template file is unknown or incomplete."""


class DataError(AtomMemError):
    """A data file is broken. The message names the file, the row and the field."""


class TraceError(AtomMemError):
    """A trace, or a session or memory that was put down, is missing, damaged or another's."""


class PolicyError(AtomMemError):
    """The policy back end refused a request for good (bad model name, bad sampling value)."""


class PromptTooLongError(PolicyError):
    """The prompt does not fit the policy's context window."""


class UnknownModelError(PolicyError):
    """The server does not serve a model of the name that was asked for."""


class JudgeError(AtomMemError):
    """The judge of answers refuses every request, or too many of its verdicts cannot be read."""


class OutageError(AtomMemError):
    """Something outside the policy failed (server gone, time-out) and its retries are used up.

    The episode loop turns it into a failed episode: counted and reported, never scored 0.

    Attributes:
        status: HTTP's, where a server answered with one.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class BudgetSpentError(AtomMemError):
    """What a run may spend is spent before it has ended. What has ended is kept and counts when it is continued."""

"""Keys: 256 random bits each, kept as their SHA-256; who owns what follows from the key alone."""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from atommem.errors import ConfigError
from atommem.serve.conversation_log import ConversationLog
from atommem.serve.schema import api_keys

LOCAL = "local"
"""The owner of all requests to a server without keys, which listens on this machine alone."""
_PREFIX = "atommem-"


@dataclass(frozen=True)
class Key:
    """What a request may do.

    Attributes:
        id: Of the key, for logs.
        owner: Whose conversations it reaches.
        requests_per_minute, max_body_bytes: Its own bounds; None are the server's.
    """

    id: str
    owner: str
    requests_per_minute: int | None = None
    max_body_bytes: int | None = None


class Keys:
    """The keys of a database."""

    def __init__(self, log: ConversationLog) -> None:
        self._log = log

    def add(
        self, owner: str, requests_per_minute: int | None = None, max_body_bytes: int | None = None
    ) -> tuple[str, str]:
        """Make a key; its id, and the key itself, which is shown this once.

        Raises:
            ConfigError: The owner's name is none.
        """
        if not owner or len(owner) > 64 or not owner.isprintable():
            raise ConfigError(f"the owner is {owner!r}: give a name of 1 to 64 characters.")
        token, number = _PREFIX + secrets.token_urlsafe(32), secrets.token_hex(4)
        values = {
            "id": number,
            "sha256": _digest(token),
            "owner": owner,
            "created_at": int(time.time()),
        }
        values |= {"requests_per_minute": requests_per_minute, "max_body_bytes": max_body_bytes}
        self._log.write(lambda connection: connection.execute(api_keys.insert().values(values)))
        return number, token

    def listed(self) -> list[dict[str, Any]]:
        """All of them, revoked ones too, without what they were made of."""
        columns = [column for column in api_keys.c if column.name != "sha256"]
        with self._log.engine.begin() as connection:
            rows = connection.execute(
                sa.select(*columns).order_by(api_keys.c.created_at)
            ).mappings()
            return [dict(row) for row in rows]

    def revoke(self, number: str) -> None:
        """End a key; a server that has just seen it takes it for a second more (`atommem.serve.guard.KEY_SECONDS`).

        Raises:
            ConfigError: There is no such key.
        """
        ended = api_keys.update().where(api_keys.c.id == number).values(revoked_at=int(time.time()))
        if not self._log.write(lambda connection: connection.execute(ended).rowcount):
            raise ConfigError(f"there is no key {number!r}: atommem serve keys list.")

    def exist(self) -> bool:
        """Whether there is any, or ever was: then nobody gets in without one."""
        with self._log.engine.begin() as connection:
            return connection.scalar(sa.select(sa.func.count()).select_from(api_keys)) != 0

    def find(self, token: str) -> Key | None:
        """What a key opens; None where it is none, or revoked. Without any keys, everything is `LOCAL`'s."""
        columns = (
            api_keys.c[name] for name in ("id", "owner", "requests_per_minute", "max_body_bytes")
        )
        query = sa.select(*columns).where(
            api_keys.c.sha256 == _digest(token), api_keys.c.revoked_at.is_(None)
        )
        with self._log.engine.begin() as connection:
            row = connection.execute(query).mappings().one_or_none()
        if row is not None:
            return Key(**row)
        return None if self.exist() else Key(LOCAL, LOCAL)


def _digest(token: str) -> str:
    # Random bits need no slow hash: there is nothing to guess.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()

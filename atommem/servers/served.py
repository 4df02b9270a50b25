"""Which model a server serves, where none was named."""

from __future__ import annotations

from dataclasses import dataclass

from atommem.errors import PolicyError
from atommem.servers.client import RefusedError, ServerClient


@dataclass(frozen=True, slots=True)
class Served:
    """A model's name on its server, and how long prompt and completion may be together (None is unknown)."""

    name: str
    context_length: int | None = None


async def only_model(client: ServerClient) -> Served:
    """The one model that the server lists under ``/v1/models``.

    Raises:
        OutageError: The server is out of reach.
        PolicyError: It does not list exactly one.
    """
    try:
        reply = await client.get("/v1/models")
        models = {str(item["id"]): item.get("max_model_len") for item in reply["data"]}
    except RefusedError as error:
        raise PolicyError(f"{client.base_url} does not list its models ({error}): name the model.") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise PolicyError(f"{client.base_url}/v1/models returned no list: name the model.") from error
    if len(models) != 1:
        shown = ", ".join(list(models)[:8])
        raise PolicyError(f"{client.base_url} serves {len(models)} models ({shown}): name one.")
    return Served(*next(iter(models.items())))

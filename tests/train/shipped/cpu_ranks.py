"""CPU processes as accelerators: accelerate offers FSDP2 to these only, and does the same on CPU when told so."""

from __future__ import annotations

import os
from typing import Any

from accelerate.state import PartialState
from accelerate.utils import DistributedType


def use_fsdp2_on_cpu() -> None:
    """Let accelerate take gloo processes for GPUs where a launcher asks for FSDP (``ACCELERATE_USE_FSDP``)."""
    original = PartialState.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if os.environ.get("ACCELERATE_USE_FSDP") == "true" and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = init


def fsdp2_environment(launcher: dict[str, Any]) -> dict[str, str]:
    """What ``accelerate launch`` sets of a launcher's ``fsdp_config``."""
    values = {name.upper(): str(value).lower() for name, value in launcher["fsdp_config"].items()}
    values["FSDP_AUTO_WRAP_POLICY"] = values["FSDP_AUTO_WRAP_POLICY"].upper()
    values["FSDP_STATE_DICT_TYPE"] = values["FSDP_STATE_DICT_TYPE"].upper()
    return {"ACCELERATE_USE_FSDP": "true", "ACCELERATE_MIXED_PRECISION": launcher["mixed_precision"], **values}

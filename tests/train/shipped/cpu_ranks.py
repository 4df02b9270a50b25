"""CPU processes as accelerators, to which accelerate restricts FSDP2."""

import os
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate.state import PartialState
from accelerate.utils import DistributedType

FSDP2 = Path(__file__).parents[3] / "configs" / "accelerate" / "fsdp2.yaml"


def use_fsdp2_on_cpu() -> None:
    """Make accelerate treat gloo processes as GPUs if a launcher asks for FSDP."""
    original = PartialState.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        on_cpu = self.distributed_type in (DistributedType.MULTI_CPU, DistributedType.NO)
        if on_cpu and os.environ.get("ACCELERATE_USE_FSDP") == "true":
            if not torch.distributed.is_initialized():  # for one process accelerate does not
                torch.distributed.init_process_group("gloo")
            self.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = init


def launch_as_fsdp2() -> None:
    """Set what ``accelerate launch`` sets under configs/accelerate/fsdp2.yaml, on CPUs."""
    launcher = yaml.safe_load(FSDP2.read_text(encoding="utf-8"))
    values = {name.upper(): str(value).lower() for name, value in launcher["fsdp_config"].items()}
    for name in ("FSDP_AUTO_WRAP_POLICY", "FSDP_STATE_DICT_TYPE"):
        values[name] = values[name].upper()
    os.environ.update(values, ACCELERATE_USE_FSDP="true", ACCELERATE_MIXED_PRECISION="no")
    use_fsdp2_on_cpu()

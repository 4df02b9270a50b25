"""What a device can do, from its data sheet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """Peak figures of one device: dense bfloat16 FLOP/s (float32 on the CPU), bytes, bytes/s of its memory."""

    name: str
    flops: float
    memory: float
    bandwidth: float

    @property
    def is_cpu(self) -> bool:
        """Whether it is a CPU: float32, and no context of a driver in its memory."""
        return self.name == "cpu"


DEVICES = {
    device.name: device
    for device in (
        Device("h100", 989e12, 80e9, 3.35e12),
        Device("h200", 989e12, 141e9, 4.8e12),
        Device("b200", 2250e12, 180e9, 7.7e12),
        Device("a100", 312e12, 80e9, 2.04e12),
        Device("a100_40gb", 312e12, 40e9, 1.56e12),
        Device("l40s", 362e12, 48e9, 0.86e12),
        Device("l4", 121e12, 24e9, 0.3e12),
        Device("rtx4090", 165e12, 24e9, 1.01e12),
        # Two cores of a server; a desktop has a few times as much.
        Device("cpu", 0.1e12, 16e9, 0.02e12),
    )
}
"""By name, the SXM parts where there are several. Sparsity is not counted."""

"""Devices by their data sheets, and the settings of the dry run."""

from dataclasses import dataclass

from atommem.config import check_choice, check_least, setting


@dataclass(frozen=True, slots=True)
class Device:
    """Peaks of a device: dense bfloat16 FLOP/s (float32 on CPU), memory bytes and bytes/s."""

    name: str
    flops: float
    memory: float
    bandwidth: float

    @property
    def is_cpu(self) -> bool:
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
        # Two cores of a server.
        Device("cpu", 0.1e12, 16e9, 0.02e12),
    )
}
"""By name, the SXM parts where there are several. Sparsity is not counted."""


@dataclass
class DryRunConfig:
    """Settings of ``--dry_run``; a training run ignores them."""

    dry_run: bool = setting(False, "Check settings, estimate memory and time without GPU; stop.")
    dry_run_launcher: str | None = setting(None, "Accelerate config that will start the run.")
    dry_run_processes: int | None = setting(None, "Processes; unset: the launcher's, else 1.")
    dry_run_device: str = setting("h100", f"Device of each process: {', '.join(DEVICES)}.")
    dry_run_completion_tokens: int | None = setting(
        None, "Mean completion; unset: the paper's with thinking, a quarter of the longest without."
    )
    dry_run_json: str | None = setting(None, "File to write the dry run to as one JSON object.")

    def __post_init__(self) -> None:
        self.dry_run_device = self.dry_run_device.lower()
        check_choice("dry_run_device", self.dry_run_device, tuple(DEVICES))
        check_least(self, dry_run_processes=1, dry_run_completion_tokens=1)

"""Run by Python at its start, for bench_shipped: what a machine without a GPU lacks."""

import os
import sys

trains = "atommem.cli" in sys.orig_argv and "accelerate.commands.launch" not in sys.orig_argv
if "ATOMMEM_STAND_INS" in os.environ and trains:
    from tests.train.shipped import cpu_ranks, vllm_double

    cpu_ranks.use_fsdp2_on_cpu()
    vllm_double.install()
    vllm_double.with_seeds()

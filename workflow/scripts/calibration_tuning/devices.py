"""The processes and devices of one training: one process a device, joined by torch.distributed.

`launch.py` starts the processes. With `parallelism: data` each holds the whole model and the
Trainer averages the gradients. With `sharded` the frozen base is spread over the devices.
"""

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from transformers.distributed import DistributedConfig

from calibration_tuning.errors import InputError


def join() -> torch.device:
    """Join this process to the others of its run, if there are others.

    Returns
    -------
    torch.device
        Its own: a GPU by its number on the machine, or the CPU.

    Raises
    ------
    InputError
        If GPUs were assigned and cannot be used, or several to one process.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    assigned = os.environ.get("CUDA_VISIBLE_DEVICES")
    on_gpu = torch.cuda.is_available()
    if assigned and not on_gpu:
        raise InputError(
            f"CUDA_VISIBLE_DEVICES is {assigned}, but PyTorch {torch.__version__} can use no GPU; "
            f"expected a build for CUDA and a driver that fits, or gpu: 0 for the model"
        )
    if on_gpu and processes == 1 and torch.cuda.device_count() > 1:
        raise InputError(
            f"one process sees {torch.cuda.device_count()} GPUs; expected one process a GPU, as by "
            f"launch.py --gpus N --processes N, or one GPU in CUDA_VISIBLE_DEVICES"
        )
    number = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", number) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if processes > 1:
        torch.distributed.init_process_group(
            "nccl" if on_gpu else "gloo", device_id=device if on_gpu else None
        )
    return device


def leave() -> None:
    """Part from the other processes; nothing is shared afterwards."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def wait_for_all() -> None:
    """Go on when all processes have come this far."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()


def process_count() -> int:
    """Processes of this run."""
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def rank() -> int:
    """Number of this process; number 0 reports and writes for all."""
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def is_sharded(settings: dict) -> bool:
    """Whether the processes of this run divide one base model, by its settings' `parallelism`."""
    return process_count() > 1 and settings.get("parallelism") == "sharded"


def found_by_first(find: Callable[[], Path | None]) -> Path | None:
    """What process 0 finds, in all of them: `find` runs only there, and may change files."""
    if process_count() == 1:
        return find()
    found = [find() if rank() == 0 else None]
    torch.distributed.broadcast_object_list(found)
    return found[0]


def shard(model: torch.nn.Module, device: torch.device) -> None:
    """Spread the weights of a base model over the processes of the run, in place (FSDP2).

    A decoder layer is gathered for its own computation and freed after it. What is outside the
    layers (embeddings, head, a vision tower) is gathered together for a whole pass. Weights are
    gathered in their own dtype, so a layer computes exactly what it does unsharded.

    The adapter is attached afterwards and not sharded: it is less than a hundredth of the base.
    Every process has all of it in float32, the Trainer averages its gradients, and one process
    can save it. Where a group had trained weights, FSDP2 would want all of one dtype.

    Tested on CPUs: loss and gradients of all architectures in float32 and bfloat16, and training
    through the Trainer. Untested are GPUs: NCCL, gathering beside computing, the memory it takes.

    Parameters
    ----------
    model : transformers model on the CPU, without an adapter
        Moved to the device a layer at a time. Weights in the dtype of their file are mapped, not
        read, so that the processes of a machine share its memory.
    device : torch.device
        Of this process.
    """
    model.requires_grad_(False)
    mesh = init_device_mesh(device.type, (process_count(),))
    for layer in model.get_decoder().layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # As after from_pretrained(distributed_config=...), which shards likewise while it loads (but
    # only for the kind of device that PyTorch was built for): with these marks the Trainer leaves
    # the model as it is and averages the gradients of what is not sharded.
    model.config.distributed_config = DistributedConfig(fsdp_size=process_count())
    model._is_distributed_loading_by_transformers = True
    model._is_fsdp_managed_module = True


def check_sharded(model: torch.nn.Module) -> None:
    """Make sure that no process holds a frozen weight whole.

    Parameters
    ----------
    model : PEFT model whose base `shard` spread

    Raises
    ------
    InputError
        If a layer or a weight is not sharded; nothing else would tell.
    """
    layers = model.get_base_model().get_decoder().layers
    whole = [
        name
        for name, weight in model.named_parameters()
        if not weight.requires_grad and not isinstance(weight, DTensor)
    ]
    if whole or not all(isinstance(layer, FSDPModule) for layer in layers):
        raise InputError(
            f"parallelism is sharded, but every process holds {len(whole)} weights whole; "
            f"expected a base model that was sharded before its adapter was attached"
        )

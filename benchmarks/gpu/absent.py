"""A GPU that is not there: the model's own code runs on fake tensors, and what it would launch is recorded.

Shapes are those of the real network; nothing is computed. PyTorch's operators count as one launch each. Some of them,
such as a sort, launch several kernels: the number is a lower bound.
"""

import ctypes
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode  # Private: fake tensors have no public door
from torch.utils._python_dispatch import TorchDispatchMode  # Private: fake tensors have no public door
from torch.utils._pytree import tree_leaves  # Private: fake tensors have no public door

from model import attention, loading, setup
from model.batch import StepBatch
from model.checkpoint.open import Checkpoint
from model.checkpoint.quantized.config import Kind
from model.config import ModelConfig
from model.kernels import cuda as kernels
from model.linear.floats import WeightsOnly
from model.linear.selection import PROJECTIONS
from model.network import weights
from model.options import RunnerOptions
from model.sharding.shard import shard_of
from model.step.executors.graphs import GraphExecutor, Replay
from model.step.executors.torch import TorchExecutor
from model.step.runner import ModelRunner

DEVICE = torch.device("cuda", 0)
MEMORY = 10**12
"""Bytes of the device: no estimate depends on them."""
CUDA, META = 1, 14
"""PyTorch's numbers of the two devices (c10/core/DeviceType.h)."""
GATHERS = ("embedding", "index_select", "gather", "index")
"""Operators that read only as much of their first tensor as they return."""
NO_KERNEL = ("empty", "empty_like", "empty_strided", "new_empty", "detach", "_local_scalar_dense", "lift_fresh", "set_")


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch: its kernel or operator, the tensors that it reads and writes, and whether it is part of a graph.

    A kernel of Triton has its grid, and its arguments by name.
    """

    name: str
    tensors: Sequence[Tensor]
    in_graph: bool
    grid: tuple[int, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        """Bytes of the tensors; of a gather, twice those that it returns."""
        sizes = [tensor.nbytes for tensor in self.tensors]
        return 2 * sizes[-1] if self.name in GATHERS else sum(sizes)


class Recorder(TorchDispatchMode):
    """Records what would be launched on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[Launch] = []
        self.waits = 0
        self._in_graph = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if func.namespace != "aten":
            return func(*args, **(kwargs or {}))
        if name in ("_local_scalar_dense", "equal"):  # a value that the host waits for
            self.waits += 1
            return 1
        with self:  # an operator that only calls others
            result = func.decompose(*args, **(kwargs or {}))
        if result is not NotImplemented:
            return result
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
        if not func.is_view and name not in NO_KERNEL and any(tensor.is_cuda for tensor in tensors):
            distinct = {id(tensor): tensor for tensor in tensors if tensor.is_cuda}
            self.launches.append(Launch(name, list(distinct.values()), self._in_graph))
        return result

    def triton(self, function: Any, grid: tuple[int, ...]) -> Callable[..., None]:
        """In place of `KernelInterface.__getitem__`."""

        def launch(*args: Any, **options: Any) -> None:
            arguments = dict(zip(function.arg_names, args, strict=False)) | options
            tensors = [value for value in arguments.values() if isinstance(value, Tensor)]
            self.launches.append(Launch(function.__name__, tensors, self._in_graph, grid, arguments))

        return launch

    def capture(self, compute: Callable[[], Tensor]) -> Replay:
        """`graphs.Capture`: a replay records the launches again."""

        def replay() -> None:
            self._in_graph = True
            compute()
            self._in_graph = False

        return replay

    def of(self, launch: Callable[[], object]) -> list[Launch]:
        """What this call launches. It must not wait for the device."""
        self.launches.clear()
        self.waits = 0
        with torch.inference_mode():
            launch()
        assert not self.waits, f"the host waits {self.waits} times for the device"
        return list(self.launches)


def _allow_fake_cuda() -> None:
    """Let a PyTorch that was built without CUDA index fake tensors of that device.

    It looks for the device's guard, which such a build does not have. That of meta tensors does nothing, and serves.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 64).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    if guards[CUDA] is None:
        guards[CUDA] = guards[META]


class _Weights:
    """A checkpoint without values."""

    kind: Kind = "floats"
    summary, fingerprint = "", "none"
    block_bits: float | None = None

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    def tensors(self, skip: Collection[str] = ()) -> Iterator[tuple[str, Tensor]]:
        for name, place in weights.places(shard_of(self.config)):
            if name not in skip:
                yield name, torch.empty(place.shape, dtype=getattr(torch, self.config.dtype), device=DEVICE)


@contextmanager
def absent(capability: tuple[int, int], n_sms: int) -> Iterator[Recorder]:
    """Inside, a device of this capability and size seems to be there; what it should compute is recorded."""
    from triton.runtime.jit import KernelInterface

    _allow_fake_cuda()
    recorder = Recorder()
    properties = SimpleNamespace(major=capability[0], minor=capability[1], multi_processor_count=n_sms)
    with ExitStack() as stack:
        patches: list[tuple[object, str, object]] = [
            (setup, "choose_device", lambda name: DEVICE),
            (attention, "try_out", lambda *args: None),
            (setup, "try_products", lambda *args: None),
            (kernels, "interpreted", lambda: False),
            (kernels, "obstacle", lambda device: None),
            (weights, "check_finite", lambda values: values),
            (torch.cuda, "get_device_capability", lambda device=None: capability),
            (torch.cuda, "get_device_properties", lambda device=None: properties),
            (torch.cuda, "get_device_name", lambda device=None: "an absent GPU"),
            (torch.cuda, "is_bf16_supported", lambda including_emulation=True: True),
            (torch.cuda, "mem_get_info", lambda device=None: (MEMORY, MEMORY)),
            (torch.cuda, "Event", MagicMock),
            (Tensor, "pin_memory", lambda tensor: tensor),
            (KernelInterface, "__getitem__", lambda function, grid: recorder.triton(function, grid)),
            *((kind, "take", lambda *args: None) for kind in PROJECTIONS.values() if issubclass(kind, WeightsOnly)),
        ]
        for owner, name, value in patches:
            stack.enter_context(patch.object(owner, name, value))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(recorder)
        yield recorder


def load(config: ModelConfig, recorder: Recorder, options: RunnerOptions) -> ModelRunner:
    """A runner on the absent device, which replays graphs: all of them are captured already."""
    checkpoint = Checkpoint(config, "half", _Weights(config))
    chosen = setup.choose(checkpoint, options)
    runner = loading.load(chosen, checkpoint, lambda stage, done: None)
    assert isinstance(runner.executor, TorchExecutor)
    runner.executor = GraphExecutor(runner.executor, runner.info.max_sequences, recorder.capture)
    while runner.idle():  # a capture has launches of its own, which are no part of a step
        pass
    return runner


def step(runner: ModelRunner, recorder: Recorder, batch: StepBatch) -> list[Launch]:
    """What a step launches."""
    return recorder.of(lambda: runner.launch(batch))

"""Computes on the CPU what a simulated card would compute: each operation of PyTorch, and each launch of Triton.

    python -m pytest -p tests.gpu.simulated.compute -m gpu tests/gpu

Each also runs over the same memory, after it was launched. A capture notes what it launches, with the addresses; a
replay computes that again. What does not lie in static memory is then a wrong number, as on a device.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from tests.gpu.simulated.interpreting import Kernels, Key, on_launch
from tests.gpu.simulated.shown import hide_numbers

aten = torch.ops.aten
NOTHING_TO_COMPUTE = {
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    aten.is_pinned.default,
    aten._pin_memory.default,
    aten.detach.default,
    aten.record_stream.default,
    aten.lift_fresh.default,
    aten.resize_.default,
    aten._local_scalar_dense.default,
}
READ_BY_THE_HOST = {aten.allclose.default, aten.equal.default}
"""Operations whose result is a value of Python."""
SIZED_BY_VALUES = {aten.bincount.default}
"""Operations whose results have sizes that depend on values."""
SMALL = 64
"""Values of a tensor of the CPU that a capture keeps."""
Work = Callable[[], None]


class Memory:
    """The place of a tensor on the card, in its whole storage: the interpreter finds what shares one by its address."""

    def __init__(self, tensor: Tensor) -> None:
        whole = tensor.untyped_storage()
        self._address, self._n_bytes, self._dtype = whole.data_ptr(), whole.nbytes(), tensor.dtype
        self._place = tensor.size(), tensor.stride(), tensor.storage_offset()

    def tensor(self) -> Tensor:
        """A tensor of the CPU in this memory."""
        if self._address == 0 or 0 in self._place[0]:
            return torch.empty(self._place[0], dtype=self._dtype)
        n_bytes = self._n_bytes // self._dtype.itemsize * self._dtype.itemsize
        memory = (ctypes.c_char * n_bytes).from_address(self._address)
        return torch.frombuffer(memory, dtype=torch.uint8).view(self._dtype).as_strided(*self._place)


def noted(value: Any) -> Any:
    """An argument as a capture notes it: memory of the card, and a copy of a small tensor of the CPU."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, torch.Generator):
        return of_the_cpu(value)
    if not isinstance(value, Tensor):
        return value
    if value.is_cuda:
        return Memory(value)
    return value.detach().clone() if value.device.type == "cpu" and value.numel() < SMALL else value


@cache
def of_the_cpu(generator: torch.Generator) -> torch.Generator:
    """The generator that gives the numbers of one of the card."""
    return torch.Generator().manual_seed(generator.initial_seed())


def on_cpu(value: Any) -> Any:
    return value.tensor() if isinstance(value, Memory) else value


class Operation:
    """An operation of PyTorch, and the results that it fills: those that are no views of its arguments."""

    def __init__(self, compute: Any, args: Any, kwargs: Any, results: Any) -> None:
        self._compute, self._args, self._kwargs = compute, tree_map(noted, args), tree_map(noted, kwargs)
        self._kwargs.pop("pin_memory", None)
        given = {storage(value) for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)}
        self._results = [
            noted(value) if isinstance(value, Tensor) and value.numel() and storage(value) not in given else None
            for value in tree_flatten(results)[0]
        ]

    @property
    def fills(self) -> bool:
        return any(place is not None for place in self._results)

    def __call__(self) -> None:
        found = self._compute(*tree_map(on_cpu, self._args), **tree_map(on_cpu, self._kwargs))
        for place, value in zip(self._results, tree_flatten(found)[0], strict=False):
            if place is not None and isinstance(value, Tensor):
                copy(on_cpu(place), value)


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def copy(target: Tensor, value: Tensor) -> None:
    if target.dtype.itemsize == 1 and target.dtype.is_floating_point:
        target, value = target.view(torch.uint8), value.view(torch.uint8)
    target.copy_(value)


class Card:
    """Computes works at once, or notes them for the replays of the graph that is captured."""

    def __init__(self) -> None:
        self._kernels = Kernels()
        self._capture: list[Work] | None = None
        self._rests = False

    def do(self, work: Work) -> None:
        if self._capture is not None:
            self._capture.append(work)
        elif not self._rests:
            work()

    def resting(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """A function of whose steps nobody reads the results: they are launched, and captured, but not computed."""

        def call(*args: Any, **options: Any) -> Any:
            self._rests = True
            try:
                return own(*args, **options)
            finally:
                self._rests = False

        return call

    def launched(self, key: Key, grid: Any, args: list[Any], options: dict[str, Any]) -> None:
        self.do(
            partial(self._launch, key, grid, [noted(arg) for arg in args], {k: noted(v) for k, v in options.items()})
        )

    def _launch(self, key: Key, grid: Any, args: Sequence[Any], options: dict[str, Any]) -> None:
        # Private: the interpreter's own operations of PyTorch are no works of the card.
        with torch._C._DisableTorchDispatch(), torch.inference_mode(False):
            self._kernels.run(key, grid, [on_cpu(arg) for arg in args], {k: on_cpu(v) for k, v in options.items()})

    def begin(self) -> list[Work]:
        self._capture = []
        return self._capture

    def end(self) -> None:
        self._capture = None


class Operations(TorchDispatchMode):
    """Sees all operations of PyTorch."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self._card = card

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in SIZED_BY_VALUES:
            found = func(*tree_map(on_cpu, tree_map(noted, args)), **kwargs)
            copy(Memory(result := torch.empty_like(found, device="cuda")).tensor(), found)
            return result
        results = func(*args, **kwargs)
        touched = tree_flatten((args, kwargs, results))[0]
        if func in NOTHING_TO_COMPUTE or not any(isinstance(one, Tensor) and one.is_cuda for one in touched):
            return results
        if func in READ_BY_THE_HOST:
            return func(*tree_map(on_cpu, tree_map(noted, args)), **kwargs)
        operation = Operation(own_way(func), args, kwargs, results)
        if func._schema.is_mutable or operation.fills:
            self._card.do(operation)
        return results


def own_way(func: Any) -> Any:
    """What computes an operation on the CPU: the same one, but for those that are CUDA's alone."""
    name = func._schema.name.removeprefix("aten::")
    if name.startswith("_scaled_mm"):
        return scaled
    return attended if name.startswith("_scaled_dot_product_") else func


def attended(
    q: Tensor, k: Tensor, v: Tensor, *more: Any, is_causal: bool = False, scale: Any = None, **named: Any
) -> Tensor:
    """The attention of each backend: some take a mask, some say `is_causal` by position."""
    mask = next((one for one in more if isinstance(one, Tensor)), named.get("attn_bias"))
    causal = is_causal or any(one is True for one in more[-3:])
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)


def scaled(
    a: Tensor,
    b: Tensor,
    scale_a: Any,
    _ra: Any,
    _sa: Any,
    scale_b: Any,
    _rb: Any,
    _sb: Any,
    bias: Any = None,
    dtype: Any = None,
    *more: Any,
    **named: Any,
) -> Tensor:
    """A product in fp8 with scales."""
    left, right = (scale[0] if isinstance(scale, list | tuple) else scale for scale in (scale_a, scale_b))
    return ((a.float() @ b.float()) * left * right).to(dtype or torch.bfloat16)


def graphs(card: Card) -> type[torch.cuda.CUDAGraph]:
    """CUDA graphs whose replays compute."""

    class Graph(torch.cuda.CUDAGraph):
        works: list[Work]

        def capture_begin(self, *args: Any, **options: Any) -> None:
            super().capture_begin(*args, **options)
            self.works = card.begin()

        def capture_end(self) -> None:
            card.end()
            super().capture_end()

        def replay(self) -> None:
            super().replay()
            for work in self.works:
                work()

    return Graph


def install() -> None:
    """Before a module of the product is imported."""
    hide_numbers()
    torch.backends.cuda.enable_cudnn_sdp(False)  # as a load of a model: tests of one backend load none
    card = Card()
    on_launch(card.launched)
    # Private: PyTorch has no door through which a replay's work can be noted.
    torch.cuda.CUDAGraph = torch.cuda.graphs.CUDAGraph = graphs(card)  # type: ignore[misc]
    rest_while_warming(card)
    Operations(card).__enter__()


def rest_while_warming(card: Card) -> None:
    from model import warming
    from model.memory import profile

    warming.compile_all = card.resting(warming.compile_all)
    warming.capture_all = card.resting(warming.capture_all)
    profile.cache_budget = card.resting(profile.cache_budget)


def pytest_configure() -> None:
    """pytest calls it in a module that `-p` names."""
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ["NORIA_TEST_SIMULATED"] = "interpreted"  # see tests/model/attention/attending.py
    install()

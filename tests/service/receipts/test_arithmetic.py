"""Where equal bits are promised, and where not."""

from typing import Any

import pytest

from service.receipts.arithmetic import Arithmetic, arithmetic_of, no_promise

HERE: Arithmetic = {
    "bits": "x86-1",
    "quantize": "int8",
    "dtype": "bfloat16",
    "kv_dtype": "bfloat16",
    "kernels": "native avx2",
    "device": "cpu",
}


def test_an_engine_describes_it() -> None:
    description = {**HERE, "arithmetic": "x86-1", "weights": "1234", "torch": "2"}
    assert arithmetic_of(description) == HERE
    assert arithmetic_of({"device": "fake"})["bits"] is None


@pytest.mark.parametrize(
    ("change", "receipt", "words"),
    [
        ({}, {}, ""),
        ({"kernels": "native amx"}, {}, ""),
        ({"device": "other cpu"}, {}, ""),
        ({"bits": "x86-2"}, {}, "compute x86-2 there and x86-1 here"),
        ({"bits": "x86-separate-1"}, {}, "x86-separate-1"),
        ({"bits": None, "kernels": "torch", "quantize": "none"}, {}, "none in torch on cpu (there) promises no bits"),
        ({"quantize": "int4"}, {}, "quantize is int4 there and int8 here"),
        ({"kv_dtype": "int8"}, {}, "kv_dtype is int8 there"),
        ({}, {"images": ["00"]}, "PyTorch encodes images"),
        ({}, {"adapter": {"name": "blue", "files": "00"}}, ""),
        (
            {"kernels": "native amx"},
            {"adapter": {"name": "blue", "files": "00"}},
            "adapters promise bits on one variant",
        ),
    ],
)
def test_the_promise(change: dict[str, Any], receipt: dict[str, Any], words: str) -> None:
    why = no_promise({"arithmetic": {**HERE, **change}, "adapter": None, "images": [], **receipt}, HERE)
    assert bool(why) == bool(words)
    assert words in why

"""What compressed-tensors packed into 4-bit floats is read as that package unpacks it: packed_fp4.json has both."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from model.checkpoint.quantized.config import read_quantization
from model.checkpoint.quantized.weights import stored_matrix
from tests.model.fp4 import GROUPS, meant

PACKED: dict[str, Any] = json.loads(Path(__file__).with_name("packed_fp4.json").read_text())
ROUNDED = 2**-22
"""Products of a value and two scales are rounded in another order."""


def tensor(text: str, dtype: torch.dtype, width: int) -> Tensor:
    """Rows of this width from the hexadecimal form of their bytes."""
    return torch.frombuffer(bytearray.fromhex(text), dtype=dtype).view(-1, width)


@pytest.mark.parametrize("preset", PACKED)
def test_weights_are_those_that_the_package_unpacks(preset: str, tmp_path: Path) -> None:
    found, kind = PACKED[preset], preset[:5].lower()
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": found["config"]}))
    quantization = read_quantization(tmp_path)
    assert quantization is not None
    assert quantization.summary == f"compressed-tensors, {kind}"
    scale = torch.float8_e4m3fn if kind == "nvfp4" else torch.uint8
    dtypes = {"weight_packed": (torch.uint8, 32), "weight_scale": (scale, 64 // GROUPS[kind])}
    dtypes |= {"weight_global_scale": (torch.float32, 1)}
    parts = {role: tensor(text, *dtypes[role]) for role, text in found["parts"].items()}
    wanted = tensor(found["weight"], torch.float32, 64)
    assert wanted.abs().min() < 0.01 < 1 < wanted.abs().max()
    matrix = stored_matrix("weight_packed", parts, quantization)
    assert matrix.layout == "fp4"
    torch.testing.assert_close(matrix.floats(), wanted, rtol=ROUNDED, atol=0)
    factor = 1 / parts["weight_global_scale"].item() if kind == "nvfp4" else 1.0
    own = meant(parts["weight_packed"], parts["weight_scale"].view(torch.uint8), factor)
    np.testing.assert_allclose(own, wanted, rtol=ROUNDED)

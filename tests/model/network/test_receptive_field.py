"""After L layers with window W a token depends on tokens up to L * (W - 1) back, and on none further."""

import pytest
import torch

from tests.model.attention.attending import SWIFT, make
from tests.model.driving import Driver, random_model, tiny

WINDOW, LAYERS = 5, 3
REACH = LAYERS * (WINDOW - 1)
LENGTH = REACH + 8


@pytest.mark.parametrize("backend", SWIFT)
@pytest.mark.parametrize("chunk", [None, 1, 4])
def test_edge_of_the_receptive_field(backend: str, chunk: int | None) -> None:
    model = random_model(tiny((WINDOW,) * LAYERS))

    def last_logits(changed: int | None) -> torch.Tensor:
        tokens = [(7 * i) % 64 for i in range(LENGTH)]
        if changed is not None:
            tokens[changed] = 63 - tokens[changed]
        return Driver(model, make(backend)).whole(tokens, chunk)[-1]

    plain = last_logits(None)
    last = LENGTH - 1
    assert torch.equal(last_logits(last - REACH - 1), plain)
    assert not torch.allclose(last_logits(last - REACH), plain, atol=1e-6, rtol=0)

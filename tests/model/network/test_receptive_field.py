"""After layers with windows W a token depends on tokens up to the sum of all W - 1 back, and on none further."""

import pytest
import torch

from tests.model.attention.attending import SWIFT, make
from tests.model.driving import Driver, random_model, tiny

PATTERNS = [(5, 5, 5), (3, 9, 4), (1, 6, 2), (7, 1, 7, 2)]
"""Windows of each layer. With a window of 1 a layer sees only the token itself."""


@pytest.mark.parametrize("backend", SWIFT)
@pytest.mark.parametrize("windows", PATTERNS, ids=str)
def test_edge_of_the_receptive_field(backend: str, windows: tuple[int, ...]) -> None:
    model, reach = random_model(tiny(windows)), sum(window - 1 for window in windows)
    length = reach + 8

    def last_logits(changed: int | None, chunk: int | None) -> torch.Tensor:
        tokens = [(7 * i) % 64 for i in range(length)]
        if changed is not None:
            tokens[changed] = 63 - tokens[changed]
        return Driver(model, make(backend)).whole(tokens, chunk)[-1]

    last = length - 1
    for chunk in (None, 1, 4):
        plain = last_logits(None, chunk)
        assert torch.equal(last_logits(last - reach - 1, chunk), plain)
        assert not torch.allclose(last_logits(last - reach, chunk), plain, atol=1e-6, rtol=0)


@pytest.mark.parametrize("windows", [(5, None, 3), (None, 4, 4)], ids=str)
def test_a_layer_with_full_attention_reaches_the_beginning(windows: tuple[int | None, ...]) -> None:
    model = random_model(tiny(windows))
    tokens = [(7 * i) % 64 for i in range(40)]
    changed = [63 - tokens[0], *tokens[1:]]
    for chunk in (None, 1, 4):
        one, other = (Driver(model, make("paged")).whole(some, chunk)[-1] for some in (tokens, changed))
        assert not torch.allclose(one, other, atol=1e-6, rtol=0)

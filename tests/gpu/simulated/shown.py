"""How a tensor of the simulated card is shown: without its numbers."""

from typing import Any

from torch import Tensor


def hide_numbers() -> None:
    """PyTorch first selects the numbers to show. How many the selection says that it has, no kernel has computed."""
    own: Any = Tensor.__repr__

    def shown(tensor: Tensor, **options: Any) -> str:
        return f"<{list(tensor.shape)} {tensor.dtype} on the card>" if tensor.is_cuda else own(tensor, **options)

    # Private: PyTorch's print options do not keep it from the selection.
    Tensor.__repr__ = shown  # type: ignore[method-assign, assignment]

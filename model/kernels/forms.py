"""Weights as the GPU's products read them: in the model's format, or narrower with tables of scales."""

from dataclasses import dataclass

from torch import Tensor

GROUP = 64
"""Channels that share a scale and a zero in int4."""
LARGEST = 448.0
"""Of float8_e4m3fn."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Of one projection, or with one more axis in front of several; [n_out, n_in] in one of these forms:

    "plain": `values` in the model's format. "fp8": `values` float8_e4m3fn, "int8": int8, both times `scales` [n_out]
    float32. "int4": (q - zero) * scale with `values` uint8 [n_out, n_in/2], `zeros` uint8 and `scales` bfloat16
    [n_in/64, n_out]; in each 32 bytes of a group byte j has channel j in its lower and j + 32 in its upper half.
    """

    form: str
    values: Tensor
    scales: Tensor | None = None
    zeros: Tensor | None = None

    @property
    def n_out(self) -> int:
        return self.values.shape[-2]

    @property
    def n_in(self) -> int:
        return self.values.shape[-1] * (2 if self.form == "int4" else 1)

    def __getitem__(self, index: int) -> "Weights":
        """One of several; the memory is shared."""
        return Weights(
            self.form,
            self.values[index],
            None if self.scales is None else self.scales[index],
            None if self.zeros is None else self.zeros[index],
        )

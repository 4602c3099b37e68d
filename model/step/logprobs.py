"""Log probabilities of the model's own distribution, before any sampling step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from model.batch import TokenLogprob
from model.machine.transfers import Fetch
from model.step.logits import indices


def log_softmax(logits: Tensor) -> Tensor:
    """Compute natural log probabilities [n, vocab_size] float32 of the model's own distribution."""
    return logits.log_softmax(dim=-1)


class Scores:
    """Logprobs of tokens[i] and of the counts[i] likeliest tokens in row i of `logprobs`; ties are ordered by id."""

    def __init__(self, logprobs: Tensor, tokens: Tensor, counts: Sequence[int]) -> None:
        ids = torch.cat((tokens[:, None], _ranked(logprobs, max(counts))), dim=1)  # [n, 1 + max(counts)]
        self._ids, self._values = Fetch(ids), Fetch(logprobs.gather(1, ids))
        self._counts = counts

    def read(self) -> list[TokenLogprob]:
        ids, values = self._ids.wait().tolist(), self._values.wait().tolist()
        return [
            TokenLogprob(token, own, tuple(zip(best[:count], others[:count], strict=True)))
            for (token, *best), (own, *others), count in zip(ids, values, self._counts, strict=True)
        ]


def token_logprobs(logprobs: Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprob]:
    """Compute the same as `Scores`, without waiting for other work in between."""
    return Scores(logprobs, indices(tokens, logprobs.device), counts).read()


def ranks(logprobs: Tensor, tokens: Sequence[int]) -> list[int]:
    """Return the rank of tokens[i] in row i of `logprobs`; 1 is the likeliest."""
    picked = indices(tokens, logprobs.device)
    likelier = logprobs > logprobs.gather(1, picked[:, None])
    found: list[int] = (likelier.sum(dim=-1, dtype=torch.int32) + 1).tolist()  # int64 takes five times as long
    return found


def _keys(values: Tensor) -> Tensor:
    """Return distinct int64 keys [n, vocab_size]: greater for greater values, and for lower ids among equals."""
    bits = (values + 0.0).view(torch.int32)  # + 0.0 makes -0 and 0 equal
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered.long() << 32) - torch.arange(values.shape[1], device=values.device)


def _ranked(values: Tensor, n: int) -> Tensor:
    """Return the ids [rows, n] of the greatest values in descending order, ties by id."""
    if n == 0:
        return torch.empty(len(values), 0, dtype=torch.int64, device=values.device)
    return _keys(values).topk(min(n, values.shape[1]), dim=-1).indices

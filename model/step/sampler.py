"""Logits to tokens: ordered steps, each paid for only by the rows that need it, then one draw a row.

Order: logprobs of the model's own distribution; tokens hidden, logit_bias, penalties, grammars; greedy rows take the
greatest logit (lowest id on ties); temperature, min_p, top_k, top_p; a draw whose noise depends on (seed, choice,
output index, token) alone. So a row's result depends on no other row, batch or retry. Nothing waits for the device:
what is drawn stays there for the next step, and `Draws.read` waits for its copy.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.batch import Slice, TokenLogprob
from model.kernels.cpu import native, records
from model.machine.device import Fetch
from model.sampling_params import SamplingParams
from model.step.noise import noise, noise_keys
from model.step.packing import upload

HIDDEN = float("-inf")
NO_TOKEN = -1
"""Drawn from logits that are all hidden, or not all numbers."""
LEAST_TEMPERATURE = 1e-30
"""Below it differences of float32 logits overflow; the draw is greedy long before."""
LEAST_TOP_P = 1e-30
"""Below it float32 may hold 0; one token is kept long before."""


@dataclass(frozen=True, slots=True)
class Step:
    """Changes the rows of logits [n, vocab_size], in place, for which `applies`."""

    applies: Callable[[SamplingParams], bool]
    change: Callable[[Tensor, Sequence[Slice]], None]


class Draws:
    """One token, or NO_TOKEN, after each of N slices: `tokens` [N] int64 on the device, and logprobs where wanted."""

    def __init__(self, tokens: Tensor, scores: Mapping[int, int], scored: "Scores | None") -> None:
        self.tokens = tokens
        self._fetch = Fetch(tokens)
        self._scores = scores  # row -> place in `scored`
        self._scored = scored

    def read(self) -> list[tuple[int, TokenLogprob | None]]:
        logprobs = self._scored.read() if self._scored else []
        ids = self._fetch.wait().tolist()
        return [(token, logprobs[self._scores[row]] if row in self._scores else None) for row, token in enumerate(ids)]


def sample(logits: Tensor, slices: Sequence[Slice], last: Sequence[Step] = ()) -> Draws:
    """Draw after each slice; `last` are steps to take just before the greedy choice.

    logits [N, vocab_size] float32 are overwritten.
    """
    wanted = [row for row, item in enumerate(slices) if item.params.logprobs is not None]
    own = log_softmax(_rows_of(logits, wanted)) if wanted else None
    for step in (*BEFORE, *last):
        _apply(step, logits, slices)
    kernels = native.kernels() if logits.device.type == "cpu" else None
    tokens = _draw(logits, slices) if kernels is None else kernels.draw(logits, _draw_rows(slices))
    scored = None
    if own is not None:
        counts = [slices[row].params.logprobs or 0 for row in wanted]
        scored = Scores(own, _rows_of(tokens, wanted).clamp(min=0), counts)
    return Draws(tokens, {row: place for place, row in enumerate(wanted)}, scored)


def _apply(step: Step, logits: Tensor, slices: Sequence[Slice]) -> None:
    rows = [row for row, item in enumerate(slices) if step.applies(item.params)]
    if len(rows) == len(slices):
        step.change(logits, slices)
    elif rows:
        where = _index(rows, logits.device)
        part = logits.index_select(0, where)
        step.change(part, [slices[row] for row in rows])
        logits.index_copy_(0, where, part)


def _rows_of(values: Tensor, rows: Sequence[int]) -> Tensor:
    return values if len(rows) == len(values) else values.index_select(0, _index(rows, values.device))


def _index(rows: Sequence[int], device: torch.device) -> Tensor:
    return upload([np.array(rows, dtype=np.int64)], device)[0]


# Logprobs


def log_softmax(logits: Tensor) -> Tensor:
    """Natural log probabilities [n, vocab_size] float32 of the model's own distribution."""
    return logits.log_softmax(dim=-1)


class Scores:
    """Logprobs of tokens[i] in row i of `logprobs` and of the counts[i] likeliest tokens beside it, ties by id."""

    def __init__(self, logprobs: Tensor, tokens: Tensor, counts: Sequence[int]) -> None:
        ids = torch.cat((tokens[:, None], _ranked(logprobs, max(counts))), dim=1)  # [n, 1 + most]
        self._ids, self._values = Fetch(ids), Fetch(logprobs.gather(1, ids))
        self._counts = counts

    def read(self) -> list[TokenLogprob]:
        ids, values = self._ids.wait().tolist(), self._values.wait().tolist()
        return [
            TokenLogprob(token, own, tuple(zip(best[:count], others[:count], strict=True)))
            for (token, *best), (own, *others), count in zip(ids, values, self._counts, strict=True)
        ]


def token_logprobs(logprobs: Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprob]:
    """`Scores`, at once."""
    return Scores(logprobs, _index(tokens, logprobs.device), counts).read()


def ranks(logprobs: Tensor, tokens: Sequence[int]) -> list[int]:
    """One more than how many tokens are likelier than tokens[i] in row i of `logprobs`."""
    (picked,) = upload([np.array(tokens, dtype=np.int64)], logprobs.device)
    likelier = logprobs > logprobs.gather(1, picked[:, None])
    found: list[int] = (likelier.sum(dim=-1, dtype=torch.int32) + 1).tolist()  # int64 takes five times as long
    return found


def _keys(values: Tensor) -> Tensor:
    """Distinct int64 keys [n, vocab_size]: greater for greater values, and for lower ids among equals."""
    bits = (values + 0.0).view(torch.int32)  # + 0.0 makes -0 and 0 equal
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered.long() << 32) - torch.arange(values.shape[1], device=values.device)


def _ranked(values: Tensor, n: int) -> Tensor:
    """Ids [rows, n] of the greatest values in descending order, ties by id."""
    if n == 0:
        return torch.empty(len(values), 0, dtype=torch.int64, device=values.device)
    return _keys(values).topk(min(n, values.shape[1]), dim=-1).indices


# Steps before the greedy choice


def _allowed(logits: Tensor, slices: Sequence[Slice]) -> None:
    ids = [np.array(item.params.allowed_token_ids, dtype=np.int64) for item in slices]
    where = _coordinates(ids, logits.device)
    kept = logits[where]
    logits.fill_(HIDDEN)
    logits[where] = kept


def _bad_words(logits: Tensor, slices: Sequence[Slice]) -> None:
    """Not the last token of a bad word whose other tokens end the output."""
    ids = [np.array(list(_completing(item)), dtype=np.int64) for item in slices]
    logits[_coordinates(ids, logits.device)] = HIDDEN


def _completing(item: Slice) -> Iterator[int]:
    for *before, last in item.params.bad_words:
        first = item.stop - len(before)
        if first >= item.n_prompt and list(item.tokens[first : item.stop]) == before:
            yield last


def _min_tokens(logits: Tensor, slices: Sequence[Slice]) -> None:
    """No end token before `min_tokens` have been drawn."""
    early = [item.stop - item.n_prompt < item.params.min_tokens for item in slices]
    ends = [item.params.stop_token_ids if is_early else () for item, is_early in zip(slices, early, strict=True)]
    logits[_coordinates([np.array(ids, dtype=np.int64) for ids in ends], logits.device)] = HIDDEN


def _logit_bias(logits: Tensor, slices: Sequence[Slice]) -> None:
    biases = [dict(item.params.logit_bias) for item in slices]
    rows, ids = _coordinates([np.array([*bias], dtype=np.int64) for bias in biases], logits.device)
    values = _column([value for bias in biases for value in bias.values()], logits.device)
    logits[rows, ids] += values[:, 0]


def _repetition_penalty(logits: Tensor, slices: Sequence[Slice]) -> None:
    """Tokens of prompt and output: positive logits divided, negative ones multiplied (arXiv 1909.05858)."""
    seen = [np.unique(np.array(item.tokens[: item.stop], dtype=np.int64)) for item in slices]
    rows, ids = _coordinates(seen, logits.device)
    penalty = _column([item.params.repetition_penalty for item in slices], logits.device)[rows, 0]
    values = logits[rows, ids]
    logits[rows, ids] = torch.where(values > 0, values / penalty, values * penalty)


def _presence_and_frequency(logits: Tensor, slices: Sequence[Slice]) -> None:
    """Output tokens only: minus presence penalty once, minus frequency penalty for each occurrence."""
    output = [np.array(item.tokens[item.n_prompt : item.stop], dtype=np.int64) for item in slices]
    counted = [np.unique(tokens, return_counts=True) for tokens in output]
    rows, ids = _coordinates([tokens for tokens, _ in counted], logits.device)
    (counts,) = upload([np.concatenate([count for _, count in counted])], logits.device)
    presence = _column([item.params.presence_penalty for item in slices], logits.device)[rows, 0]
    frequency = _column([item.params.frequency_penalty for item in slices], logits.device)[rows, 0]
    logits[rows, ids] -= presence + frequency * counts


def _coordinates(ids: Sequence[NDArray[np.int64]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Row numbers and column ids, flat, of ids[row] for every row."""
    rows = np.repeat(np.arange(len(ids)), [len(row) for row in ids])
    first, second = upload([rows, np.concatenate(ids)], device)
    return first, second


def _column(values: Sequence[float], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """One float a row: [n, 1]."""
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)[:, None]


BEFORE = (
    Step(lambda params: bool(params.allowed_token_ids), _allowed),
    Step(lambda params: bool(params.bad_words), _bad_words),
    Step(lambda params: bool(params.min_tokens and params.stop_token_ids), _min_tokens),
    Step(lambda params: bool(params.logit_bias), _logit_bias),
    Step(lambda params: params.repetition_penalty != 1.0, _repetition_penalty),
    Step(lambda params: bool(params.presence_penalty or params.frequency_penalty), _presence_and_frequency),
)


# Steps that shape the distribution


def _temperature(logits: Tensor, slices: Sequence[Slice]) -> None:
    """Shifted to a maximum of 0 first, so that no temperature overflows."""
    temperatures = _column([max(item.params.temperature, LEAST_TEMPERATURE) for item in slices], logits.device)
    logits.sub_(logits.amax(dim=-1, keepdim=True)).div_(temperatures)


def _min_p(logits: Tensor, slices: Sequence[Slice]) -> None:
    """Keep tokens at least `min_p` times as likely as the likeliest."""
    least = logits.amax(dim=-1, keepdim=True) + _column([item.params.min_p for item in slices], logits.device).log()
    logits.masked_fill_(logits < least, HIDDEN)


def _top_k(logits: Tensor, slices: Sequence[Slice]) -> None:
    """Keep the k likeliest, ties by id."""
    counts = [min(item.params.top_k, logits.shape[1]) for item in slices]
    (kept,) = upload([np.array(counts)], logits.device)
    best = logits.topk(max(counts), dim=-1).values
    _keep(logits, best.gather(1, kept[:, None] - 1), kept[:, None])


def _top_p(logits: Tensor, slices: Sequence[Slice]) -> None:
    """Keep the fewest likeliest tokens whose probabilities reach `top_p`, ties by id.

    Most rows reach it within their first few tokens; on a CPU only those that do not are looked into deeper.
    """
    share = _column([item.params.top_p for item in slices], logits.device, torch.float64)
    wanted = share * logits.exp().sum(dim=-1, keepdim=True, dtype=torch.float64)  # [n, 1]
    cut, kept = torch.empty_like(logits[:, :1]), torch.empty_like(wanted, dtype=torch.int64)
    rows = torch.arange(len(slices), device=logits.device)
    depth = 64 if logits.device.type == "cpu" else logits.shape[1]
    while True:
        depth = min(depth, logits.shape[1])
        best = (logits if len(rows) == len(logits) else logits[rows]).topk(depth, dim=-1).values
        reached = best.exp().cumsum(dim=-1, dtype=torch.float64) >= wanted[rows]  # [rows, depth]
        reached[:, -1] |= depth == logits.shape[1]
        last = reached.int().argmax(dim=-1, keepdim=True)
        cut[rows], kept[rows] = best.gather(1, last), last + 1
        if depth == logits.shape[1] or not len(rows := rows[~reached[:, -1]]):
            break
        depth *= 16
    _keep(logits, cut, kept)


def _keep(logits: Tensor, cut: Tensor, counts: Tensor) -> None:
    """Keep the counts [n, 1] greatest of each row, the least of which equals cut [n, 1]; ties by id."""
    hidden = logits < cut
    if logits.device.type != "cpu" or ((~hidden).sum(dim=-1) > counts[:, 0]).any():  # more equals than places
        equal = logits == cut
        places = counts - (logits > cut).sum(dim=-1, keepdim=True)
        hidden |= equal & (equal.cumsum(dim=-1) > places)
    logits.masked_fill_(hidden, HIDDEN)


DISTRIBUTION = (
    Step(lambda params: True, _temperature),
    Step(lambda params: params.min_p > 0, _min_p),
    Step(lambda params: params.top_k > 0, _top_k),
    Step(lambda params: params.top_p < 1, _top_p),
)


# The draw


def _keys_of(slices: Sequence[Slice]) -> NDArray[np.uint64]:
    return noise_keys(
        [item.params.seed for item in slices],
        [item.choice for item in slices],
        [item.stop - item.n_prompt for item in slices],
    )


def _draw_rows(slices: Sequence[Slice]) -> NDArray[np.void]:
    """For kernels/draw.c, which does all that follows at once."""
    rows = np.zeros(len(slices), dtype=records.DRAW)
    drawing = [row for row, item in enumerate(slices) if item.params.temperature > 0]
    if drawing:
        chosen = [slices[row] for row in drawing]
        keys = _keys_of(chosen).view(np.int32).reshape(-1, 2) | np.array([0, 1], dtype=np.int32)
        params = [item.params for item in chosen]
        rows[drawing] = [
            (max(p.temperature, LEAST_TEMPERATURE), p.min_p, max(p.top_p, LEAST_TOP_P), max(p.top_k, 0), start, step)
            for p, (start, step) in zip(params, keys.tolist(), strict=True)
        ]
    return rows


def _draw(logits: Tensor, slices: Sequence[Slice]) -> Tensor:
    """Tokens [N]: the greatest logit, the first of equals, or a draw; NO_TOKEN where there is none."""
    tokens, broken = logits.argmax(dim=-1), ~logits.amax(dim=-1).isfinite()
    drawing = [row for row, item in enumerate(slices) if item.params.temperature > 0]
    if drawing:
        found = _race(_rows_of(logits, drawing), [slices[row] for row in drawing])
        tokens.index_copy_(0, _index(drawing, logits.device), found)
    return tokens.masked_fill(broken, NO_TOKEN)


def _race(logits: Tensor, slices: Sequence[Slice]) -> Tensor:
    """Tokens [n]: the one whose exponential clock, of rate its probability, rings first (the Gumbel-max draw).

    A rounding error in the logits changes the token only where two clocks ring within that error of each other; a
    walk along cumulated probabilities would carry every error into all tokens behind it.
    """
    for step in DISTRIBUTION:
        _apply(step, logits, slices)
    waits = noise(_keys_of(slices), logits.shape[1], logits.device).log_().neg_()
    return logits.exp_().div_(waits).argmax(dim=-1)

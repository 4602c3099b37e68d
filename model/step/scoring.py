"""Log probabilities of prompts, and embeddings, from the hidden states of a slice."""

from torch import Tensor

from model.batch import Slice, TokenLogprob
from model.step import logprobs
from model.step.head import OutputHead


def score(head: OutputHead, item: Slice, hidden: Tensor) -> tuple[TokenLogprob, ...]:
    """Return the logprobs of the prompt tokens that follow the rows of hidden [n, dim]."""
    found: list[TokenLogprob] = []
    for logits in head.logits(hidden, item):
        values = logprobs.log_softmax(logits)  # [block, vocab_size]
        after = item.start + len(found) + 1
        tokens = item.tokens[after : after + len(values)]
        scores = logprobs.token_logprobs(values, tokens, [item.params.prompt_logprobs or 0] * len(values))
        ranks = logprobs.ranks(values, tokens)
        found += [score._replace(rank=rank) for score, rank in zip(scores, ranks, strict=True)]
    return tuple(found)


def pool(head: OutputHead, item: Slice, hidden: Tensor) -> tuple[float, ...]:
    """Pool hidden [n, dim] to `SliceOutput.pooled`, in float64: in float32 the chunks would change it."""
    if item.params.embed == "last":
        hidden = hidden[item.n_prompt - 1 - item.start :][:1]
    return tuple(head.normed(hidden).double().sum(dim=0).tolist()) if len(hidden) else ()

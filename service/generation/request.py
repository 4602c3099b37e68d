"""One request to a model, as the engine needs it."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from model.errors import quoted
from model.media import MediaSpan
from model.sampling_params import SamplingParams, check_ids
from model.tokenizers.base import Tokenizer
from model.tokenizers.pieces import encode_inner
from service.engine.mailbox import Restore
from service.engine.messages import Submit
from service.errors.errors import InvalidRequest
from service.generation.served import ServedModel
from service.generation.thinking import Reasoning
from service.schema.generation import ResumeBody
from service.schema.options import Options


@dataclass(frozen=True, slots=True)
class Echo:
    """The text of a prompt, to return before the answer, and where its tokens start in it.

    `starts` is empty where tokens have no logprobs. A begin token, which is not in the text, starts at 0.
    """

    text: str
    starts: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request, checked and tokenized. `submits` has a message for each prompt, all with the same parameters.

    `echoes` has one for each prompt; empty without echo. `restore` decodes the images or the audio of the one prompt
    again. The answer has the `n_best` choices with the highest mean logprob (None: all). `timeout` counts from the
    request's arrival. `starts_message`: the text begins a message, so a tokenizer's leading space is no part of it.
    `scores_end`: a stop token has its logprob reported. `prompt_logprobs` is the number of alternatives beside each
    token of the prompt (None: no logprobs). `stop_token_ids` are the request's own. `grammar_fields` are the client's
    names of the fields that made the grammar. `visible_control` are the names of control tokens that are part of the
    text, as they mark calls. `reasoning` is None for an answer without a thought. `ignored` are the client's names of
    fields that have no effect with this model, for the header `x-noria-ignored`. `by_token`: each token has a delta of
    its own, so that the deltas depend on the tokens alone. `known` are the tokens of each
    choice that the client has; empty: none.
    """

    submits: tuple[Submit, ...]
    echoes: tuple[Echo, ...] = ()
    restore: Restore | None = None
    n_best: int | None = None
    timeout: float | None = None
    return_token_ids: bool = False
    starts_message: bool = False
    scores_end: bool = False
    prompt_logprobs: int | None = None
    stop_token_ids: Sequence[int] = ()
    grammar_fields: tuple[str, ...] = ()
    visible_control: frozenset[str] = frozenset()
    reasoning: Reasoning | None = None
    ignored: tuple[str, ...] = ()
    by_token: bool = False
    known: tuple[tuple[int, ...], ...] = ()

    @property
    def params(self) -> SamplingParams:
        return self.submits[0].params

    @property
    def n(self) -> int:
        """Return the number of choices for each prompt."""
        return self.submits[0].n

    @property
    def n_choices(self) -> int:
        return len(self.submits) * self.n


def sampling(options: Options, served: ServedModel, **limits: Any) -> SamplingParams:
    """Return sampling parameters: the request's, else those of the model's generation config, else the server's."""
    values = served.defaults.completed(options.sampling)
    ends = () if values.get("ignore_eos") else served.defaults.eos_token_ids
    ended_otherwise = values.get("ignore_eos") or limits.get("grammar") is not None
    repetition = options.repetition_detection or (None if ended_otherwise else served.repetition_detection)
    params = SamplingParams(
        **{"seed": secrets.randbits(63), **values},
        logit_bias=options.biases,
        allowed_token_ids=tuple(options.allowed_token_ids),
        bad_words=_bad_words(options.bad_words, served.tokenizer) if options.bad_words else (),
        stop=options.stops,
        stop_token_ids=tuple(dict.fromkeys((*options.stop_token_ids, *ends))),
        repetition_detection=repetition if repetition and repetition.max_pattern_size else None,
        return_progress=options.return_progress,
        **limits,
    )
    params.check_ids(served.info.vocab_size)
    return params


def _bad_words(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of each bad word, spelled at the beginning of a word and inside a word."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip(" ")
        opening = bare if tokenizer.strips_leading_space else " " + bare
        found[tuple(tokenizer.encode(opening, add_bos=False, parse_control=False))] = None
        found[tuple(encode_inner(tokenizer, bare))] = None
    return tuple(ids for ids in found if ids)


def submit_of(
    tokens: list[int],
    params: SamplingParams,
    options: Options,
    served: ServedModel,
    media: tuple[MediaSpan, ...] = (),
    inputs: bytes = b"",
) -> Submit:
    """Return the engine's message for one prompt. It has no id yet, and no sender."""
    return Submit(
        0,
        tokens,
        params,
        priority=options.priority,
        cache_salt=options.cache_salt,
        n=options.n,
        media=media,
        adapter=served.adapter_number,
        inputs=inputs,
    )


def seeded(made: ModelRequest, seed: int) -> ModelRequest:
    """Return the request with another seed."""
    return replace(made, submits=tuple(replace(item, params=replace(item.params, seed=seed)) for item in made.submits))


def continued(made: ModelRequest, resume: ResumeBody, served: ServedModel) -> ModelRequest:
    """Return the request for the rest of an answer. Raises InvalidRequest for an answer that cannot go on here."""
    params, known = made.params, resume.known
    if resume.fingerprint != served.fingerprint:
        message = f"resume.fingerprint is {quoted(resume.fingerprint)}, and the model here is {served.fingerprint}"
        raise InvalidRequest(message, param="resume.fingerprint", code="other_fingerprint")
    if params.logprobs is not None or made.prompt_logprobs is not None:
        raise InvalidRequest("resume cannot be used with log probabilities: it has none of its tokens", param="resume")
    if len(known) != made.n_choices:
        message = f"resume.tokens must have a list for each of {made.n_choices} choices, got {len(known)}"
        raise InvalidRequest(message, param="resume.tokens")
    for tokens in known:
        check_ids("resume.tokens", tokens, served.info.vocab_size)
        if len(tokens) >= params.max_tokens or not params.stop_tokens.isdisjoint(tokens):
            message = f"resume.tokens has a complete answer: it must have fewer than {params.max_tokens} tokens"
            raise InvalidRequest(f"{message}, none of which ends it", param="resume.tokens")
    return replace(seeded(made, resume.seed), known=tuple(map(tuple, known)), by_token=True)


def late_request(n_prompts: int, n: int) -> ModelRequest:
    """Return a request whose timeout came before tokenizing ended: its `n` choices a prompt are empty."""
    return ModelRequest((Submit(0, [], SamplingParams(max_tokens=0), n=n),) * n_prompts)

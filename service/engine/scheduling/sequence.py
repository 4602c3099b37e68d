"""One sequence: its tokens and media, how far they are computed, the pages of their keys and values, and its end."""

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Items
from operator import add

from model.batch import SliceOutput, TokenLogprob
from model.sampling_params import SamplingParams
from model.token_counts import TokenCounts
from service.engine.messages import Admitted, PageChange, Submit, Update
from service.engine.scheduling.drafts import Draft, Drafters
from service.engine.scheduling.media import MediaTable
from service.engine.scheduling.pages import PagePool, Table, chain_seed, page_content, page_name
from service.engine.scheduling.repetition import Repetition


class Sequence:
    """The state of one request's choice in the scheduler.

    The first `computed` positions have keys and values in pages, or will have when the steps in flight are done. A step
    that samples makes all known tokens computed, so that the sequence is in no further step until its token is known.
    `number` counts the sequences of an engine in the order of their arrival. `adapter_name` divides pages by adapters.
    One with output of another engine begins as if it had been preempted.
    """

    def __init__(
        self,
        submit: Submit,
        index: int,
        pools: Items[PagePool],
        media: MediaTable,
        arrived: float,
        number: int,
        drafters: Drafters,
        adapter_name: str = "",
    ) -> None:
        self.id = submit.ids[index]
        self.number = number
        self.priority = submit.priority
        self.tenant = submit.tenant
        self.adapter = submit.adapter
        # The known tokens. A prompt alone is shared by all choices until `own_tokens`.
        self.tokens = submit.prompt + submit.output if submit.output else submit.prompt
        self.counts = TokenCounts()  # of them, for the runner
        self.assumed = False  # whether a step in flight samples one more token
        self.n_prompt = len(submit.prompt)
        self.length = len(self.tokens)  # with the assumed token
        self.params: SamplingParams = submit.params
        self.max_length = self.n_prompt + submit.params.max_tokens
        self.choice = submit.choice + index
        self.arrived = arrived
        self.computed = 0
        self.landed = 0  # the end of the positions whose result has arrived
        self.last_step = 0  # the number of the latest step that brought it forward
        self.scored = self.n_prompt if submit.params.prompt_logprobs is None else 1 + submit.n_scored
        self.first_update = True
        self.admitted = Admitted() if submit.output else None
        self.in_memory: int | None = None  # cached tokens before pages were first read from the disk
        self.tables = tuple(Table(pool) for pool in pools)
        self._rolling = [table for table in self.tables if table.pool.window is not None]
        self.media = media
        rule = submit.params.repetition_detection
        self.repetition = None if rule is None else Repetition(rule, submit.output)
        self.pooled: tuple[float, ...] = ()
        self._page_size = pools[0].page_size
        self.salt = submit.cache_salt
        self.first, self.between = submit.first, submit.between  # its own targets
        self._seed = chain_seed(submit.cache_salt, adapter_name, submit.cache_owner)
        self.drafters, self.answers = drafters.of(submit, self._seed)
        self._names: list[bytes] = []

    @property
    def uncomputed(self) -> int:
        return self.length - self.computed

    @property
    def awaits_media(self) -> bool:
        """Return whether a position of an image or of audio is not computed."""
        return self.computed < self.media.end

    @property
    def n_output(self) -> int:
        return self.length - self.n_prompt

    def names(self, n_blocks: int) -> list[bytes]:
        size = self._page_size
        for block in range(len(self._names), n_blocks):
            parent = self._names[-1] if self._names else self._seed
            tokens = self.tokens[block * size : (block + 1) * size]
            self._names.append(page_name(parent, tokens, self.media_starts(block)))
        return self._names[:n_blocks]

    def content(self, block: int) -> bytes:
        """Return the bytes of which a full page's name is the hash, beside `parent`."""
        tokens = self.tokens[block * self._page_size : (block + 1) * self._page_size]
        return page_content(tokens, self.media_starts(block))

    def media_starts(self, block: int) -> Items[tuple[int, str]]:
        """Return the media that start in a block: places in the block, and digests."""
        first = block * self._page_size
        starts = ((span.start - first, span.digest) for span in self.media.spans)
        return [(place, digest) for place, digest in starts if 0 <= place < self._page_size]

    def parent(self, block: int) -> bytes:
        """Return the name of the page before this block: it stands for all tokens before."""
        if block > len(self._names):
            self.names(block)
        return self._names[block - 1] if block else self._seed

    @property
    def n_reusable(self) -> int:
        """Return how many pages it may take from the cache at most: the last known token is always computed."""
        return (len(self.tokens) - 1) // self._page_size

    @property
    def complete(self) -> bool:
        """Return whether a step in flight samples its last token."""
        return self.assumed and self.length >= self.max_length

    @property
    def may_reuse(self) -> bool:
        """Return whether it may start from computed pages: not if its answer needs every prompt position."""
        return self.scored == self.n_prompt and self.params.embed != "mean"

    @property
    def reports_progress(self) -> bool:
        """Return whether updates report the prompt's progress: on request, until the first token is sampled."""
        return self.params.return_progress and len(self.tokens) == self.n_prompt

    @property
    def embedding(self) -> tuple[float, ...]:
        """Return the pooled hidden states of the whole prompt [dim]; empty if the request needs no embedding."""
        n = self.n_prompt if self.params.embed == "mean" else 1
        return tuple(value / n for value in self.pooled)

    def own_tokens(self) -> None:
        """Copy the prompt. The new list only grows, so that a snapshot may hold it."""
        self.tokens = self.tokens.copy()

    def assume(self) -> None:
        """Continue as if the step in flight had sampled the next token."""
        self.assumed = True
        self.length = len(self.tokens) + 1

    def offers(self, most: int, *, decodes: bool) -> Iterator[tuple[Draft, list[float]]]:
        """Yield the drafts of up to `most` tokens that could follow, with the chances of their tokens.

        The runner drafts only for one that `decodes`: its last token alone is not computed.
        """
        for drafter, limit in self.drafters:
            if (decodes or not drafter.has_passes) and (found := drafter.draft(self.tokens, min(limit, most))):
                yield Draft(drafter, tuple(found)), drafter.chances

    def full_blocks(self, start: int, stop: int) -> range:
        """Return the blocks that positions `start..stop-1` complete, as far as their tokens are known."""
        return range(start // self._page_size, min(stop, len(self.tokens)) // self._page_size)

    def name_blocks(self, blocks: range) -> list[tuple[int, bytes]]:
        """Name the pages of these blocks; returns the names that no page had, each with the number of its pool."""
        names = self.names(blocks.stop) if blocks else []
        return [
            (index, names[block])
            for index, table in enumerate(self.tables)
            for block in range(max(blocks.start, table.first_block), blocks.stop)
            if table.pool.name(table.pages[block - table.first_block], names[block])
        ]

    def change(self, block: int, pool: int) -> PageChange:
        """Tell what is in the page of a block, which has just got its name."""
        size = self._page_size
        parent = self.names(block)[-1].hex() if block else ""
        tokens, digests = self.tokens[block * size : (block + 1) * size], (one for _, one in self.media_starts(block))
        name = self.names(block + 1)[-1].hex()
        return PageChange(pool, name, parent, (*tokens,), self.adapter, self.salt, (*digests,))

    def holds(self, pages: Items[Collection[int | None]]) -> bool:
        """Return whether it holds one of these pages, of which each pool has its own."""
        return any(page in some for some, table in zip(pages, self.tables, strict=True) if some for page in table.pages)

    def advance(self, start: int, stop: int) -> range:
        """Record that `start..stop-1` are computed: name full pages, release what later positions do not need.

        Later positions may be in flight. Returns the blocks that are now full.
        """
        full = self.full_blocks(start, stop)
        self.computed = max(self.computed, stop)
        self.name_blocks(full)
        for table in self._rolling:
            table.roll(stop)
        if self.media.spans:
            self.media.roll(stop)
        return full

    def keep(self) -> None:
        """Name the last page, which is not full, by what is computed of it. It ends: nobody will write to the page."""
        self.computed = self.landed
        block, n_tokens = divmod(self.landed, self._page_size)
        if n_tokens and not self.media_starts(block):
            name = page_name(self.parent(block), self.tokens[self.landed - n_tokens : self.landed])
            for table in self.tables:
                table.pool.name(table.pages[block - table.first_block], name)

    def take(self, start: int, stop: int, result: SliceOutput) -> tuple[Update | None, range]:
        """Take the result of a step that computed `start..stop-1`.

        Returns the update and the blocks that are now full. The last update has `finish`.
        """
        processed = min(stop, self.n_prompt) if self.reports_progress else None
        tokens, finish = self._append(result.tokens)
        self.landed = stop + len(tokens) - 1 if tokens else stop
        full = self.advance(start, self.landed)
        prompt_logprobs = self.score(start, result.prompt_logprobs) if result.prompt_logprobs else ()
        if result.pooled:
            self.pool(result.pooled)
        if stop >= self.n_prompt and not self.params.max_tokens:
            finish = "length"
        if not (tokens or finish or prompt_logprobs or processed):
            return None, full
        logprobs = result.logprobs[: len(tokens)]
        update = Update(self.id, tokens, logprobs, prompt_logprobs, finish, processed=processed)
        if self.first_update:
            self.first_update = False
            update = update._replace(admitted=self.admitted)
        return update._replace(embedding=self.embedding) if finish else update, full

    def _append(self, sampled: tuple[int, ...]) -> tuple[tuple[int, ...], str | None]:
        """Append sampled tokens up to the one that ends the output. Returns them, and the reason to end.

        All but the last are computed already.
        """
        if not sampled:
            return (), None
        before = len(self.tokens) - self.n_prompt
        for n, token in enumerate(sampled, start=1):
            reason = ending(self.params, token, before + n)
            repeats = self.repetition is not None and self.repetition.observe(token)
            if repeats and before + n >= self.params.min_tokens:
                reason = reason or "repetition"
            if reason is not None:
                break
        self.tokens += sampled[:n]
        self.assumed = False
        self.length = len(self.tokens)
        return sampled[:n], reason

    def score(self, start: int, logprobs: tuple[TokenLogprob, ...]) -> tuple[TokenLogprob, ...]:
        """Return the logprobs of the prompt after position `start` that were not reported yet."""
        news = logprobs[max(0, self.scored - start - 1) :]
        self.scored += len(news)
        return news

    def pool(self, values: tuple[float, ...]) -> None:
        """Add the sum of hidden states of the next part of the prompt [dim]."""
        self.pooled = tuple(map(add, self.pooled, values)) if self.pooled else values

    def withdraw(self) -> None:
        """Take the names from the pages of its tokens: no other sequence will reuse them."""
        for name in self.names(self.computed // self._page_size):
            for table in self.tables:
                table.pool.forget(name)

    def reset(self) -> None:
        """Release all pages and encoded media. The tokens stay, and will be computed again."""
        for table in self.tables:
            table.clear()
        self.media.clear()
        self.computed = 0
        self.pooled = ()


def ending(params: SamplingParams, token: int, n: int) -> str | None:
    """Return the reason to end an output with `token`, its n-th; None if the output goes on."""
    if token in params.stop_tokens:
        return "stop"
    return "length" if n >= params.max_tokens else None

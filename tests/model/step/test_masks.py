"""The tokens that grammars allow, against enumerations of their languages; most tokens are single bytes."""

import json
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from model.batch import Slice
from model.checkpoint.embedded import embedded_gguf
from model.grammar.archive import packer
from model.grammar.client import GrammarProcess
from model.kernels.cpu.records import NO_TOKEN
from model.machine.helper import First
from model.sampling_params import SamplingParams
from model.step import sampler
from model.step.logits import HIDDEN
from model.step.masks import LOST, Masks
from model.tokenizers.load import load_tokenizer
from tests.faults import FAULTS, descriptors, every_fault, offspring
from tests.model.grammar.vocabulary import END, ENDLESS, FIRST, PIECES, WIDTH, token
from tests.waiting import ended, eventually, strike

LANGUAGE = {"".join(letters) for n in range(1, 5) for letters in product("ab", repeat=n) if letters[0] != letters[-1]}
CHOICES = f"start: CHOICE\nCHOICE: {' | '.join(json.dumps(text) for text in sorted(LANGUAGE))}"


@pytest.fixture(scope="module")
def one() -> Iterator[Masks]:
    made = Masks(FIRST, WIDTH)
    yield made
    made.close()


@pytest.fixture
def masks(one: Masks) -> Masks:
    """The masks, without the sequences of other tests."""
    one.start([])
    return one


def piece(tokens: Sequence[int]) -> str:
    return b"".join(PIECES[token] for token in tokens).decode()


def view(output: Sequence[int], grammar: str = CHOICES, draft: Sequence[int] = (), number: int = 1) -> Slice:
    tokens = [5, 6, 7, *output, *draft]
    params = SamplingParams(max_tokens=50, grammar=grammar)
    return Slice(number, tokens, 3, len(tokens) - 1 - len(draft), len(tokens), (), params, n_draft=len(draft))


def allowed(masks: Masks, *slices: Slice) -> list[set[int]]:
    """Tokens allowed at every place of a step where a token is sampled."""
    samples = [item.samples for item in slices]
    masks.start(samples)
    rows = [row for views in samples for row in views]
    logits = torch.zeros(len(rows), WIDTH)
    masks.step.change(logits, rows)
    return [set(torch.nonzero(row > HIDDEN)[:, 0].tolist()) for row in logits]


def oracle(output: Sequence[int]) -> set[int]:
    text = piece(output)
    tokens = {n for n, part in enumerate(PIECES) if part and any(t.startswith(text + part.decode()) for t in LANGUAGE)}
    return tokens | ({END} if text in LANGUAGE else set())


def spellings(length: int) -> list[list[int]]:
    """Every way to begin a word of the language with that many tokens."""
    found: list[list[int]] = [[]]
    for _ in range(length):
        found = [[*begun, n] for begun in found for n in sorted(oracle(begun) - {END})]
    return found


@pytest.mark.parametrize("length", range(4))
def test_what_may_come_next_is_what_some_word_goes_on_with(masks: Masks, length: int) -> None:
    for number, output in enumerate(spellings(length)):
        assert allowed(masks, view(output, number=number)) == [oracle(output)], piece(output)


def test_a_sequence_goes_on_by_several_tokens_pauses_and_begins_anew(masks: Masks) -> None:
    a, b = token("a"), token("b")
    assert allowed(masks, view([])) == [oracle([])]
    assert allowed(masks, view([a, b])) == [oracle([a, b])]
    masks.start([])  # a step without it
    assert allowed(masks, view([a, b, b])) == [oracle([a, b, b])]
    assert allowed(masks, view([b])) == [oracle([b])]  # another one of the same number


def test_a_step_that_failed_before_sampling_leaves_nothing_behind(masks: Masks) -> None:
    """The masks of this step were requested and never read: the next step gets its own."""
    masks.start([view([]).samples, view([token("a")], number=2).samples])
    assert allowed(masks, view([token("b")], number=3)) == [oracle([token("b")])]


@pytest.mark.parametrize("draft", ["b", "bb", "bab", "bz", "zb", "b\x01a"])
def test_a_draft_is_followed_as_far_as_it_is_allowed(masks: Masks, draft: str) -> None:
    output, proposed = [token("a")], [token(char) for char in draft]
    everything = set(range(WIDTH))
    expected, fine = [oracle(output)], True
    for n, guess in enumerate(proposed):
        fine = fine and guess in oracle([*output, *proposed[:n]])
        expected.append(oracle([*output, *proposed[: n + 1]]) if fine else everything)
    assert allowed(masks, view(output, draft=proposed)) == expected
    after = [*output, min(oracle(output) - {END})]
    assert allowed(masks, view(after)) == [oracle(after)]  # nothing of the draft is left


def test_a_grammar_that_only_stops_allows_the_end_alone(masks: Masks) -> None:
    assert allowed(masks, view([token("a")], grammar='start: "a"')) == [{END}]


def test_a_token_that_the_grammar_does_not_allow_fails_its_own_sequence(masks: Masks) -> None:
    good, bad = view([token("a")], number=1), view([token("z")], number=2)
    assert allowed(masks, good, bad)[0] == oracle([token("a")])
    assert masks.failure(good.samples) is None
    assert "doesn't satisfy the grammar" in str(masks.failure(bad.samples))


def test_a_row_with_nothing_left_gives_no_token_and_is_no_failure_of_the_grammar(masks: Masks) -> None:
    """Who reads the tokens finds it out: the step that hides tokens waits for no GPU."""
    good, empty = view([token("a")]), view([token("a")], number=2)
    masks.start([good.samples, empty.samples])
    logits = torch.zeros(2, WIDTH)
    logits[1, sorted(oracle([token("a")]))] = HIDDEN
    sampled = sampler.sample(logits, [*good.samples, *empty.samples], (masks.step,)).read()
    assert sampled[0][0] in oracle([token("a")])
    assert sampled[1] == (NO_TOKEN, None)
    assert masks.all_well


def test_a_grammar_that_does_not_compile_is_a_failure(masks: Masks) -> None:
    masks.prepare("start: nonsense")
    item = view([], grammar="start: nonsense")
    assert allowed(masks, item) == [set(range(WIDTH))]
    assert "nonsense" in str(masks.failure(item.samples))


def test_a_bomb_fails_its_own_sequence_and_the_others_go_on(masks: Masks) -> None:
    a, b = token("a"), token("b")
    step = [view([a], number=1), view([a], number=2, grammar=ENDLESS), view([a], number=3)]
    assert allowed(masks, *step)[::2] == [oracle([a])] * 2
    assert "more than 0.5 s for one token" in str(masks.failure(step[1].samples))
    assert masks.failure(step[0].samples) is masks.failure(step[2].samples) is None
    assert allowed(masks, view([a, b], number=3)) == [oracle([a, b])]


SIGNALS = [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGPROF]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_process_that_is_lost_between_steps_is_replaced(masks: Masks, number: signal.Signals) -> None:
    a, before = token("a"), masks.restarts
    assert allowed(masks, view([a])) == [oracle([a])]
    strike(masks._started().pid, number)
    assert allowed(masks, view([a, a])) == [oracle([a, a])]
    assert masks.restarts == before + 1


class Doomed(GrammarProcess):
    """A process that a signal hits at the first request for masks, as often as `signals` says."""

    signals: ClassVar[list[signal.Signals]] = []

    def follow(self, step: list[Any]) -> None:
        if self.signals:
            strike(self.pid, signal.SIGSTOP)  # else it could answer before the signal hits
        super().follow(step)

    def masks(self) -> tuple[Any, bytes]:
        if self.signals:
            os.kill(self.pid, number := self.signals.pop())
            if number != signal.SIGSTOP:
                with suppress(ProcessLookupError):  # one that dies without a core dump does not wait for SIGCONT
                    os.kill(self.pid, signal.SIGCONT)
                eventually(lambda: ended(self.pid), "the signal has hit")
        return super().masks()


@pytest.fixture
def doomed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Masks]:
    monkeypatch.setattr("model.step.masks.GrammarProcess", Doomed)
    made = Masks(FIRST, WIDTH)
    yield made
    made.close()
    Doomed.signals.clear()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_process_that_is_lost_in_a_step_is_replaced_in_it(doomed: Masks, number: signal.Signals) -> None:
    Doomed.signals[:] = [number]
    outputs = spellings(1)
    assert allowed(doomed, *(view(output, number=n) for n, output in enumerate(outputs))) == [*map(oracle, outputs)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_processes_lost_twice_are_a_fault_in_one_sequence(doomed: Masks, number: signal.Signals) -> None:
    Doomed.signals[:] = [number] * 2
    a, b = view([token("a")], number=1), view([token("b")], number=2)
    assert allowed(doomed, a, b)[1] == oracle([token("b")])
    assert doomed.fault(a.samples) == LOST
    assert doomed.failure(a.samples) is doomed.failure(b.samples) is doomed.fault(b.samples) is None
    assert allowed(doomed, a) == [oracle([token("a")])]


def test_one_loss_of_the_server_takes_the_blame_from_the_grammar(doomed: Masks) -> None:
    Doomed.signals[:] = [signal.SIGKILL, signal.SIGPROF]
    item = view([token("a")])
    allowed(doomed, item)
    assert doomed.failure(item.samples) is None
    assert doomed.fault(item.samples) == LOST


def test_a_step_that_waits_for_the_process_to_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog does not count it. Of a grammar that another thread prepares no step knows."""
    seen = list[bool]()

    class Starting(GrammarProcess):
        def __init__(self, first: First, *, follows: bool) -> None:
            seen.append(made.waits)
            super().__init__(first, follows=follows)

    monkeypatch.setattr("model.step.masks.GrammarProcess", Starting)
    made = Masks(FIRST, WIDTH)
    try:
        assert allowed(made, view([])) == [oracle([])]
        made.close()
        made.prepare(CHOICES)
    finally:
        made.close()
    assert seen == [True, False]
    assert not made.waits


@pytest.mark.parametrize(("kind", "code"), dict(FAULTS).items())
def test_every_fault_ends_in_masks_or_a_fault(kind: str, code: int) -> None:
    before, children = descriptors(), offspring()
    item = view([token("a")])
    for fault in every_fault(kind, code):
        masks = Masks(FIRST, WIDTH)
        masks.prepare(CHOICES)
        served = allowed(masks, item) == [oracle([token("a")])]
        assert masks.failure(item.samples) is None
        assert served or (fault.happened and masks.fault(item.samples)), fault
        masks.close()
        assert (descriptors(), offspring()) == (before, children), fault


@pytest.mark.parametrize("is_gguf", [False, True])
def test_the_process_needs_no_files(is_gguf: bool, embedded_files: Path, tmp_path: Path) -> None:
    width, model = 49152, tmp_path / "model.gguf" if is_gguf else tmp_path
    if is_gguf:
        shutil.copy(embedded_gguf(), model)
    else:
        shutil.copytree(embedded_files, model, dirs_exist_ok=True)
    masks = Masks(First({"size": width}, packer(model)), width)
    yes = load_tokenizer(model).encode("yes", add_bos=False, parse_control=False)
    if is_gguf:
        os.truncate(model, 0)  # a mapped byte of it would end this process
    shutil.rmtree(tmp_path)
    for _ in range(2):
        item = view([], grammar='start: "yes"')
        masks.start([item.samples])
        logits = torch.zeros(1, width)
        masks.step.change(logits, item.samples)
        assert yes[0] in torch.nonzero(logits[0] > HIDDEN)[:, 0].tolist()
        masks._started().kill()
    masks.close()


def test_without_a_compiler_a_fault_ends_sequences_with_grammars() -> None:
    masks = Masks(First({"vocabulary": "[]"}), WIDTH)
    masks.prepare(CHOICES)
    allowed(masks, view([]))
    assert masks.failure(view([]).samples) is None
    assert "cannot be started" in str(masks.fault(view([]).samples))
    masks.close()

"""`python -m tests.e2e.drafts_by_hand MODEL ADAPTER SEED N`: N rounds of twelve answers, with and without drafts.

Each round serves them together, with few pages, and from the half of each answer that another engine computed. It
prints the number of answers that it compared, and the seed of a round in which one differs.
"""

import random
import sys
from dataclasses import replace

from model.loading import create
from tests.e2e.drafted import served, some_request, without_drafts


def main(model: str, adapter: str, seed: int, rounds: int) -> None:
    ways = [
        {"quantize": "none", "draft": "self"},
        *({"quantize": bits, "draft_model": model} for bits in ("int8", "int4")),
    ]
    common = {"model": model, "device": "cpu", "max_model_len": 256, "cache_memory": 128 * 2**20}
    runners = [create(lambda *_: None, adapters=((1, adapter),), **common, **way) for way in ways]
    n = drafted = accepted = preempted = 0
    for number in range(seed, seed + rounds):
        rng, runner = random.Random(number), runners[number % len(runners)]
        requests = [some_request(rng, place) for place in range(12)]
        if number % 2:  # long answers, so that pages run out
            requests = [replace(item, params=replace(item.params, max_tokens=60)) for item in requests]
        plain = without_drafts(runner, requests)
        few = tuple(replace(pool, n_pages=4 + number % 3) for pool in runner.info.pools)
        answers, scheduler = served(runner, requests, 1 + number % 8, pools=few)
        halves = [[token for token, _ in answer[: len(answer) // 2]] for answer in plain]
        again = [replace(item, output=half) for item, half in zip(requests, halves, strict=True)]
        rest = served(runner, again, 1 + number % 8)[0]
        whole = [answer[len(half) :] for answer, half in zip(plain, halves, strict=True)]
        if answers != plain or rest != whole:
            raise SystemExit(f"round {number}: an answer differs")
        stats = scheduler.stats()
        n, drafted = n + 2 * len(requests), drafted + stats.drafts("drafted")
        accepted, preempted = accepted + stats.drafts("accepted"), preempted + stats.preemptions
        print(
            f"\r{n} answers, none differs; {accepted} of {drafted} draft tokens, {preempted} preemptions",
            end="",
            flush=True,
        )
    print()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

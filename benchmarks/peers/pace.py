"""AMD's PACE on a checkpoint in Hugging Face format, in bfloat16. PACE's Python runs this file, see __main__.py.

Its documented settings: the cache SLAB_POOL, its default operators, and threads of OpenMP that wait actively.
"""

import time
from typing import Any

from benchmarks.workload import Generate, Timing, Workload, answer


def environment(threads: int) -> dict[str, str]:
    """The variables that PACE's own launcher sets, and no traffic."""
    return {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "active", "HF_HUB_OFFLINE": "1"}


class Arrivals:
    """The times at which PACE hands out tokens, in place of a streamer of text. The prompts come first."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, tokens: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def load(model: str, work: Workload) -> tuple[Generate, int]:
    import torch
    from pace.llm import LLMModel, SamplingConfig
    from pace.llm.attention import KVCacheType

    torch.set_num_threads(work.threads)
    network = LLMModel(model, dtype=torch.bfloat16, kv_cache_type=KVCacheType.SLAB_POOL, disable_tqdm=True)

    def generate(prompts: list[list[int]], n_tokens: int) -> Timing:
        arrivals = Arrivals()
        config = SamplingConfig(max_new_tokens=n_tokens, ignore_eos=True, do_sample=False)
        network.generate(torch.tensor(prompts), config, arrivals)
        began, first, last = arrivals.times[0], arrivals.times[1], arrivals.times[-1]
        return Timing(first - began, len(prompts) * (len(arrivals.times) - 2), last - first)

    return generate, network.get_tokenizer().vocab_size


if __name__ == "__main__":
    answer(load)

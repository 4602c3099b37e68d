"""vLLM's CPU build on a checkpoint of Hugging Face's or Mistral's format. vLLM's Python runs it, see __main__.py.

Its documented settings for a CPU: a KV cache of some GiB, one thread bound to each core, OpenMP's and the allocator's
libraries loaded before all others. Batches have the limits of its defaults. The checkpoint says its own weight scheme,
and needs no tokenizer: prompts and answers are ids.
"""

import time
from pathlib import Path
from typing import Any

from benchmarks.workload import Generate, Timing, Workload, answer

CACHE_GIB = 2
PRELOADED = ("libtcmalloc_minimal.so.4", "libiomp5.so")
"""Libraries that vLLM's documentation asks for, if they are in the `lib` folder of its environment."""


def environment(home: Path, threads: int) -> dict[str, str]:
    """The variables of a process that runs vLLM, which `home` contains. They prevent traffic, too."""
    libraries = [str(home / "lib" / name) for name in PRELOADED if (home / "lib" / name).exists()]
    return {
        "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "LD_PRELOAD": ":".join(libraries),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def load(model: str, work: Workload) -> tuple[Generate, int]:
    import vllm
    from vllm.sampling_params import RequestOutputKind

    llm = vllm.LLM(model, dtype="bfloat16", skip_tokenizer_init=True)
    engine: Any = llm.llm_engine
    numbers = iter(range(2**31))

    def generate(prompts: list[list[int]], n_tokens: int) -> Timing:
        params = vllm.SamplingParams(temperature=0.0, max_tokens=n_tokens, ignore_eos=True, detokenize=False)
        params.output_kind = RequestOutputKind.DELTA
        first, last, came = dict[str, float](), dict[str, float](), list[tuple[float, int]]()
        began = time.perf_counter()
        for prompt in prompts:
            engine.add_request(str(next(numbers)), {"prompt_token_ids": prompt}, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                if count := len(output.outputs[0].token_ids):
                    now = time.perf_counter()
                    first.setdefault(output.request_id, now)
                    last[output.request_id] = now
                    came.append((now, count))
        begin, end = max(first.values()), min(last.values())
        return Timing(begin - began, sum(count for at, count in came if begin < at <= end), end - begin)

    return generate, llm.model_config.get_vocab_size()


if __name__ == "__main__":
    answer(load)

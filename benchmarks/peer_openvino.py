"""OpenVINO GenAI's continuous batching on a GGUF file; run by the peers' Python: see peers.py."""

import time
from typing import Any

import numpy as np
import openvino
from openvino_genai import ContinuousBatchingPipeline, GenerationConfig, SchedulerConfig

from benchmarks.workload import Generate, Timing, Workload, answer

CACHE_GIB = 2
STEP_TOKENS = 512


def load(model: str, work: Workload) -> tuple[Generate, int]:
    scheduler = SchedulerConfig()
    scheduler.cache_size = CACHE_GIB
    scheduler.max_num_batched_tokens = STEP_TOKENS
    pipeline = ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": work.threads})

    def generate(prompts: list[list[int]], n_tokens: int) -> Timing:
        config = GenerationConfig(max_new_tokens=n_tokens, ignore_eos=True, do_sample=False)
        began = time.perf_counter()
        handles = [
            pipeline.add_request(number, openvino.Tensor(np.array([prompt], dtype=np.int64)), config)
            for number, prompt in enumerate(prompts)
        ]
        first, counts, tokens, seconds = 0.0, [0] * len(prompts), 0, 0.0
        while pipeline.has_non_finished_requests():
            all_decode = all(counts)
            started = time.perf_counter()
            pipeline.step()
            ended = time.perf_counter()
            new = [_read(handle) for handle in handles]
            if all_decode:
                tokens, seconds = tokens + sum(new), seconds + ended - started
            else:
                first = ended - began
            counts = [count + more for count, more in zip(counts, new, strict=True)]
        return Timing(first, tokens, seconds)

    return generate, len(pipeline.get_tokenizer().get_vocab())


def _read(handle: Any) -> int:
    """Tokens that one request got since the last look."""
    return sum(len(output.generated_ids) for output in handle.read().values()) if handle.can_read() else 0


if __name__ == "__main__":
    answer(load)

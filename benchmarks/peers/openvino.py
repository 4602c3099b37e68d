"""OpenVINO GenAI's continuous batching on a GGUF file. The peers' Python runs this file, see __main__.py."""

import time
from typing import Any

import numpy as np
import openvino
from openvino_genai import ContinuousBatchingPipeline, GenerationConfig, SchedulerConfig

from benchmarks.workload import Generate, Timing, Workload, answer, joining

CACHE_GIB = 2
STEP_TOKENS = 512


def load(model: str, work: Workload) -> tuple[Generate, int]:
    scheduler = SchedulerConfig()
    scheduler.cache_size = CACHE_GIB
    scheduler.max_num_batched_tokens = STEP_TOKENS
    pipeline = ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": work.threads})

    def generate(prompts: list[list[int]], n_tokens: int) -> Timing:
        wanted = n_tokens + joining(prompts, STEP_TOKENS)
        config = GenerationConfig(max_new_tokens=wanted, ignore_eos=True, do_sample=False)
        handles = [
            pipeline.add_request(number, openvino.Tensor(np.array([prompt], dtype=np.int64)), config)
            for number, prompt in enumerate(prompts)
        ]
        first, tokens, seconds, answering = 0.0, 0, 0.0, set[int]()
        while pipeline.has_non_finished_requests():
            started = time.perf_counter()
            pipeline.step()
            took = time.perf_counter() - started
            new = [_read(handle) for handle in handles]
            if len(answering) < len(prompts):
                first += took
            elif all(new):
                tokens, seconds = tokens + sum(new), seconds + took
            answering.update(number for number, count in enumerate(new) if count)
        return Timing(first, tokens, seconds)

    return generate, len(pipeline.get_tokenizer().get_vocab())


def _read(handle: Any) -> int:
    """Tokens that one request has received since the last call."""
    return sum(len(output.generated_ids) for output in handle.read().values()) if handle.can_read() else 0


if __name__ == "__main__":
    answer(load)

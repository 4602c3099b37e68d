"""transformers in eager bfloat16. The peers' Python runs this file, see __main__.py.

The network has the shape of the GGUF file and random weights. The speed does not depend on them, and reading a GGUF
file would need one more package.
"""

import time
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.workload import Generate, Timing, Workload, answer


def load(model: str, work: Workload) -> tuple[Generate, int]:
    torch.set_num_threads(work.threads)
    path = Path(model)
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    network = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()

    @torch.inference_mode()
    def generate(prompts: list[list[int]], n_tokens: int) -> Timing:
        began = time.perf_counter()
        output = network(torch.tensor(prompts), use_cache=True, logits_to_keep=1)
        ids = output.logits.argmax(dim=-1)  # [streams, 1]
        first = time.perf_counter()
        for _ in range(n_tokens - 1):
            output = network(ids, past_key_values=output.past_key_values, use_cache=True)
            ids = output.logits.argmax(dim=-1)
        return Timing(first - began, len(prompts) * (n_tokens - 1), time.perf_counter() - first)

    return generate, config.vocab_size


if __name__ == "__main__":
    answer(load)

"""The engine of a replica: its limits and its pages."""

from dataclasses import replace

from model.batch import PoolSpec, RunnerInfo, max_pages
from model.errors import OptionError


def planned(model: str, device: str, memory: str | None, info: RunnerInfo) -> RunnerInfo:
    """`info` with the pages and the longest sequence of a model's memory plan. Raises NoriaError if nothing fits."""
    from model.checkpoint.resolve import resolve
    from model.memory.plan import make_plan
    from model.memory.remedies import lack
    from model.options import RunnerOptions
    from service.commands.plan import parse_memory
    from service.generation.startup import runner_options
    from service.settings import Settings

    if memory is None:
        raise OptionError("--model needs --memory, the memory of the device, such as 80GiB")
    settings = Settings(
        model=model, device=device, max_sequences=info.max_sequences, max_step_tokens=info.max_step_tokens
    )
    directory = resolve(model, cache_dir=settings.cache_dir, revision=settings.revision, weights=False)
    options = RunnerOptions(**runner_options(settings, directory))
    plan = make_plan(directory, options, parse_memory(memory))
    if plan.served is None or (reason := lack(plan, options)):
        raise OptionError(f"nothing fits into --memory {memory}: {reason}")
    pools = tuple(PoolSpec(pool.window, pool.n_pages or 0) for pool in plan.pools)
    return replace(info, page_size=plan.page_size, pools=pools, max_model_len=plan.served)


def limited(
    info: RunnerInfo,
    pages: int | None,
    max_sequences: int | None,
    max_step_tokens: int | None,
    target_inter_token_ms: float | None,
) -> RunnerInfo:
    """`info` with the limits that are not None. Fewer pages make the longest sequence shorter, as they do in a server.

    Raises OptionError for limits with which no scheduler can work.
    """
    sequences, tokens = max_sequences or info.max_sequences, max_step_tokens or info.max_step_tokens
    if sequences > tokens:
        raise OptionError(f"--max-sequences must be at most --max-step-tokens ({tokens}), got {sequences}")
    pools = tuple(replace(pool, n_pages=pages or pool.n_pages) for pool in info.pools)
    length = min([info.max_model_len, *(pool.n_pages * info.page_size for pool in pools if pool.window is None)])
    for pool in pools:
        if pool.n_pages < (needed := max_pages(pool.window, length, info.page_size, tokens)):
            raise OptionError(f"a sequence of {length} tokens needs {needed} pages, and a pool has {pool.n_pages}")
    target = info.target_inter_token if target_inter_token_ms is None else target_inter_token_ms / 1000
    longest = replace(info, pools=pools, max_model_len=length, target_inter_token=target)
    return replace(longest, max_sequences=sequences, max_step_tokens=tokens)

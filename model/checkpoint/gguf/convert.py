"""Conversion of a GGUF file to a directory: configuration and tokenizer in Hugging Face's format, index of weights.

The weights stay in the file. No torch.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from model.checkpoint.files import Progress
from model.checkpoint.gguf.config import EMBEDDINGS, generation_config, hf_config
from model.checkpoint.gguf.index import Entry, Index
from model.checkpoint.gguf.parts import find_parts
from model.checkpoint.gguf.reader import is_readable, read_parts, readable_kinds
from model.checkpoint.gguf.tokenizer import write_tokenizer
from model.checkpoint.names import GGUF, native_name
from model.errors import ModelError, one_line, short

Sampling = Mapping[str, float]
"""Sampling parameters by their names in `generation_config.json`."""
NO_SAMPLING: Sampling = MappingProxyType({})
DIVISORS = "rope_freqs.weight"


def convert(source: Path, directory: Path, progress: Progress, sampling: Sampling = NO_SAMPLING) -> None:
    """Write what serving the model in `source` needs, except its weights, to `directory`, which exists.

    `source` is the first file of a split model. `sampling` are defaults for a file that has none of its own. Raises
    ModelError for a damaged file, for another architecture, and for a quantization without a decoder.
    """
    progress("reading", 0.0)
    paths = find_parts(source)
    file = read_parts(paths)
    weights = [tensor for tensor in file.tensors if tensor.name != DIVISORS]
    entries = [entry for tensor in weights for entry in _entries(tensor)]
    shapes = {entry.name: entry.shape for entry in entries}
    if EMBEDDINGS not in shapes:
        raise ModelError(f"{source.name} has no tensor 'token_embd.weight'; a model needs it")
    index = Index(paths, tuple(entries))
    try:
        configs = {"config.json": hf_config(file.metadata, shapes, _divisors(paths, file.tensors), index.dtype)}
        configs["generation_config.json"] = {**sampling, **generation_config(file.metadata)}
        for name, config in configs.items():
            (directory / name).write_text(json.dumps(config, indent=1), encoding="utf-8")
        write_tokenizer(file.metadata, directory)
    except KeyError as error:
        raise ModelError(f"{source.name} has no {error} in its metadata; a model of this kind needs it") from error
    except (ModelError, OSError):
        raise
    except Exception as error:  # a value of another type or size; tokenizers raises Exception itself
        raise ModelError(f"{source.name} has metadata that no model can have: {one_line(error)}") from error
    index.write(directory)


def _divisors(paths: Sequence[Path], tensors: Sequence[Entry]) -> Sequence[float]:
    """The values of `rope_freqs.weight`, if the model has it: a divisor of each pair's rotation frequency."""
    for tensor in tensors:
        if tensor.name == DIVISORS:
            if tensor.kind != "F32" or len(tensor.shape) > 1:
                raise ModelError(f"the GGUF file has {DIVISORS} in {tensor.kind}, expected a row in F32")
            values = np.fromfile(paths[tensor.file], "<f4", tensor.shape[0], offset=tensor.offset)
            return [float(value) for value in values]
    return ()


def _entries(tensor: Entry) -> Iterator[Entry]:
    """An entry for the tensor, or one for each expert in it. Raises ModelError for an unknown name or kind."""
    name = native_name(tensor.name, GGUF)
    if name is None:
        raise ModelError(f"the GGUF file has a tensor {short(tensor.name)}, which no supported model family has")
    if not is_readable(tensor.kind):
        reads = ", ".join(readable_kinds())
        raise ModelError(f"the GGUF file has {tensor.name!r} of kind {tensor.kind}; Noria reads {reads}")
    if "*" not in name:
        yield Entry(name, tensor.kind, tensor.shape, tensor.offset, tensor.n_bytes, tensor.file)
        return
    n_experts, *shape = tensor.shape
    size = tensor.n_bytes // n_experts
    for expert in range(n_experts):
        where = tensor.offset + expert * size
        yield Entry(name.replace("*", str(expert)), tensor.kind, tuple(shape), where, size, tensor.file)

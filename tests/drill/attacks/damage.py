"""Loads damaged copies of a small model: `python -m tests.drill.attacks.damage gguf|safetensors SECONDS`.

Hypothesis chooses what is damaged: bytes of the header that change, numbers that become huge, a file that is cut. Each
copy loads or is refused with a ModelError. Anything else ends this process with another exit code than 0.
"""

import resource
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from model.checkpoint.open import open_checkpoint
from model.checkpoint.resolve import resolve
from model.errors import ModelError

HEADER = 2048
"""Bytes at the start that are damaged: the header of a small file and some of its values."""
ONE_SECONDS = 20
MEMORY = 8 * 2**30
NUMBERS = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1]


class Over(KeyboardInterrupt):
    """The time is over. Hypothesis passes this kind on at once."""


changed = st.tuples(st.integers(0, HEADER), st.binary(min_size=1, max_size=8))
number = st.tuples(st.integers(0, HEADER), st.sampled_from(NUMBERS).map(lambda value: struct.pack("<Q", value)))
damages = st.lists(st.one_of(changed, number), max_size=4)
cuts = st.one_of(st.none(), st.integers(0, 3 * HEADER))


def damaged(original: bytes, places: list[tuple[int, bytes]], cut: int | None) -> bytes:
    data = bytearray(original)
    for start, part in places:
        end = min(start + len(part), len(data))
        data[start:end] = part[: max(0, end - start)]
    return bytes(data[:cut])


def load(kind: str, path: Path) -> None:
    """Read everything that a server reads of a model. Raises ModelError for a damaged one."""
    folder = resolve(str(path)) if kind == "gguf" else path.parent
    for name, matrix in open_checkpoint(folder).tensors():
        assert name, matrix


def model(kind: str, folder: Path) -> Path:
    """A small model of random weights; the path of the file with its weights."""
    from tests.model.checkpoint import gguf_files

    network = gguf_files.save("llama", folder / "model.gguf")
    if kind == "gguf":
        return folder / "model.gguf"
    (folder / "model.gguf").unlink()
    network.save_pretrained(folder)  # type: ignore[operator]
    return folder / "model.safetensors"


def main() -> None:
    kind, seconds = sys.argv[1], float(sys.argv[2])
    folder = Path(tempfile.mkdtemp())
    path = model(kind, folder)
    original = path.read_bytes()
    load(kind, path)  # the undamaged file loads
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    counts = {"loaded": 0, "refused": 0}
    end = time.monotonic() + seconds

    @settings(
        max_examples=10**6,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(damages, cuts)
    def attack(places: list[tuple[int, bytes]], cut: int | None) -> None:
        if time.monotonic() > end:
            raise Over
        data = damaged(original, places, cut)
        assume(data != original)
        path.write_bytes(data)
        signal.alarm(ONE_SECONDS)  # a hang ends this process
        try:
            load(kind, path)
            counts["loaded"] += 1
        except ModelError as error:
            counts["refused"] += 1
            if "\n" in str(error) or str(folder) in str(error):
                raise RuntimeError(f"a refusal of several lines or with a path: {error}") from error
        finally:
            signal.alarm(0)

    try:
        attack()
    except Over:
        print(f"{counts['loaded']} loaded, {counts['refused']} refused")


if __name__ == "__main__":
    main()

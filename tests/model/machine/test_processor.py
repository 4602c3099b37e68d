"""What is read of a processor, from files like Linux's."""

from pathlib import Path

from model.machine.processor import processor

X86 = "processor\t: 0\nmodel name\t: AMD EPYC\nmodel\t\t: 2\nMHz\t: 3000.1\nflags\t\t: avx2 fma\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"


def machine(root: Path, info: str, l2: str = "1024K") -> dict[str, str]:
    cache = root / "sys/devices/system/cpu/cpu0/cache/index2"
    cache.mkdir(parents=True, exist_ok=True)
    (root / "proc").mkdir(exist_ok=True)
    for path, text in ((cache / "level", "2\n"), (cache / "type", "Unified\n"), (cache / "size", f"{l2}\n")):
        path.write_text(text)
    (root / "proc/cpuinfo").write_text(info)
    return processor(root)


def test_names_and_caches_of_the_first_processor(tmp_path: Path) -> None:
    found = machine(tmp_path, X86 + "\n" + X86.replace("EPYC", "Other"))
    assert found["model name"] == "AMD EPYC"
    assert found["L2 Unified"] == "1024K"
    assert machine(tmp_path, ARM)["CPU part"] == "0xd40"


def test_it_changes_with_what_speed_depends_on(tmp_path: Path) -> None:
    known = machine(tmp_path, X86)
    for info in (X86.replace("EPYC", "Ryzen"), X86.replace(": 2", ": 3"), X86.replace("fma", "fma avx512f")):
        assert machine(tmp_path, info) != known
    assert machine(tmp_path, X86, l2="2048K") != known
    assert machine(tmp_path, X86.replace("3000.1", "1234.5")) == known


def test_a_system_that_tells_nothing(tmp_path: Path) -> None:
    assert processor(tmp_path).keys() == {"machine", "instructions"}

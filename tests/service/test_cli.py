"""The command line: the Settings that it makes, and how a failed start ends."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from model.checkpoint.embedded import EMBEDDED
from model.errors import OptionError
from service import cli
from service.generation.adapters import given_adapters
from service.settings import Settings
from tests.model.checkpoint.published import written
from tests.service.command_line import Done, noria
from tests.service.live import running

ROOT = Path(__file__).parents[2]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The Settings that `serve` would run with."""
    found: list[Settings] = []

    def run(settings: Settings, engine: object) -> int:
        settings.check()
        found.append(settings)
        return 0

    monkeypatch.setattr(cli, "run", run)
    return found


def invoke(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(cli.build(["serve"]), ["serve", *arguments], env=env)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_defaults(seen: list[Settings]) -> None:
    assert invoke()[0] == 0
    assert seen == [Settings()]


def test_flags_and_their_variables(seen: list[Settings], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("three\n\n four \n")
    given: dict[str, tuple[str, dict[str, Any]]] = {
        "--port": ("0", {"port": 0}),
        "--api-key": ("one two", {"api_keys": ("one", "two")}),
        "--api-key-file": (str(keys), {"api_key_file": keys}),
        "--cache-memory": ("1.5GiB", {"cache_memory": 3 * 2**29}),
        "--max-body": ("1MiB", {"max_body_bytes": 2**20}),
        "--served-model-name": ("a b", {"served_model_name": ("a", "b")}),
        "--drain-timeout": ("1.5", {"drain_timeout": 1.5}),
        "--log-format": ("json", {"log_format": "json"}),
        "--threads": ("2", {"threads": 2}),
    }
    expected = Settings(model="org/name", **{name: value for _, more in given.values() for name, value in more.items()})
    flags = [word for flag, (text, _) in given.items() for part in text.split() for word in (flag, part)]
    env = {f"NORIA_{flag[2:].upper().replace('-', '_')}": text for flag, (text, _) in given.items()}
    assert invoke("org/name", *flags, "--no-receipts")[0] == invoke(env=env | {"NORIA_MODEL": "org/name"})[0] == 0
    assert seen == [expected, expected]
    assert invoke("--port", "10", "--deterministic", env=env)[0] == 0
    assert (seen[-1].port, seen[-1].deterministic) == (10, True)


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The end of a process of its own, which starts an engine."""
    command = [sys.executable, "-m", "service", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--max-sequences", "20", "--max-step-tokens", "10"), ["--max-sequences 20", "--max-step-tokens 10"]),
        (("--ssl-certfile", "missing.pem"), ["--ssl-certfile", "no such file"]),
        (("--ssl-keyfile", "pyproject.toml"), ["--ssl-certfile"]),
        (("--ssl-certfile", "pyproject.toml"), ["--ssl-certfile", "cannot be used"]),
        (("--api-key-file", "missing"), ["--api-key-file"]),
        (("--api-key-file", "pyproject.toml"), ["--api-key-file pyproject.toml", "entries named keys"]),
        (("--api-key", ""), ["--api-key must not be empty"]),
        (("--gpu-memory-utilization", "0"), ["--gpu-memory-utilization must be above 0 and at most 1, got 0.0"]),
        (("--chat-template", "missing"), ["--chat-template", "no such file"]),
        (("--host", "256.0.0.1", "--port", "0"), ["256.0.0.1"]),
        (("--repetition-detection", "on"), ["--repetition-detection must be MAX,MIN,COUNT or off, got 'on'"]),
        (("--repetition-detection", "4,1,1"), ["got '4,1,1'", "min_count must be between 2 and 1000, got 1"]),
        (("--repetition-detection", "4,1,3,9"), ["must be MAX,MIN,COUNT or off, got '4,1,3,9'"]),
        (("--pipeline-parallel-size", "2", "--lora-dir", "."), ["--lora-dir", "2 ranks share"]),
        (("--pipeline-parallel-size", "2", "--lora", "a=."), ["--lora", "2 ranks share"]),
        (("--tensor-parallel-size", "2", "--prefix-store", "."), ["--prefix-store", "2 ranks share"]),
        (("--prefix-store-size", "20GiB"), ["--prefix-store-size needs --prefix-store DIR"]),
        (("--prefix-store", "/dev/null/x"), ["--prefix-store /dev/null/x: Not a directory; expected a directory"]),
        (("--prefix-store", "pyproject.toml"), ["--prefix-store pyproject.toml: File exists; expected a directory"]),
        (("--uds", "a.sock", "--port", "8000"), ["--uds a.sock and --port 8000 exclude each other"]),
        (("--root-path", "noria/"), ["--root-path must be a path such as /noria", "got 'noria/'"]),
        (("--forwarded-allow-ips", "10.0.0.0/33"), ["--forwarded-allow-ips must be addresses", "'10.0.0.0/33'"]),
    ],
)
def test_options_that_cannot_be_are_one_line(arguments: tuple[str, ...], words: list[str]) -> None:
    check_refusal(noria("serve", *arguments), *words)


@pytest.mark.parametrize("name", ["", "lock", "0" * 32])
def test_a_prefix_store_that_others_may_change_is_refused_at_the_start(tmp_path: Path, name: str) -> None:
    place = tmp_path / "pages" / name
    (tmp_path / "pages").mkdir(0o700)
    place.touch() if name == "lock" else place.mkdir(exist_ok=True)
    place.chmod(0o777)
    words = f"--prefix-store: mode 0777 of {place} lets other users write to it; chmod go-w it, or choose another place"
    check_refusal(noria("serve", "--prefix-store", tmp_path / "pages"), words)


def check_refusal(done: Done | subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("noria: ")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert all(word in done.stderr for word in words), done.stderr


@pytest.mark.parametrize("by", ["argument", "variable"])
def test_any_model_beside_a_file_of_models_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """Also the default one."""
    (tmp_path / "models.toml").write_text("")
    arguments = [EMBEDDED] if by == "argument" else []
    if by == "variable":
        monkeypatch.setenv("NORIA_MODEL", EMBEDDED)
    done = noria("serve", *arguments, "--models", str(tmp_path / "models.toml"))
    assert done.returncode == 1
    assert "models.toml names all models: leave out the argument MODEL (NORIA_MODEL)" in done.stderr


def test_a_start_that_fails_is_one_line() -> None:
    check_refusal(started("serve", "./no-such-model", "--port", "0"), "no-such-model")
    own = "--root-path /v1 begins like the server's own path /v1/"
    with pytest.raises(OptionError, match=own), running(root_path="/v1"):
        pass


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--port", "abc", "must be a whole number, at least 0 and at most 65535, got 'abc'"),
        ("--port", "70000", "at least 0 and at most 65535, got '70000'"),
        ("--max-sequences", "0", "at least 1, got '0'"),
        ("--drain-timeout", "soon", "must be a number, at least 0, got 'soon'"),
        ("--device", "tpu", "'tpu' is not one of"),
        ("--threads", "0", "at least 1, got '0'"),
        ("--quantize", "int3", "'int3' is not one of 'auto', 'none', 'fp8', 'int8', 'int4'"),
        ("--cache-memory", "x", "'x' is not a size; write 4GiB, 512MiB or a number of bytes"),
        ("--lenient", "perhaps", "--lenient (NORIA_LENIENT) must be true or false, got 'perhaps' ("),
    ],
)
def test_a_wrong_value_is_repeated_with_what_is_allowed(
    flag: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a flag and as its variable."""
    name = "NORIA" + flag.upper().replace("-", "_")[1:]
    ends = [] if flag == "--lenient" else [noria("serve", flag, value)]
    monkeypatch.setenv(name, value)
    for done in (*ends, noria("serve")):
        assert done.returncode == 2
        assert all(part in done.stderr for part in (flag, name, words)), done.stderr
        assert done.stderr.count("\n") == 1
        assert "Input should" not in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"uds": Path("a.sock"), "host": "::1"}, "--uds a.sock and --host ::1 exclude each other"),
        ({"uds": Path("a" * 108)}, "a socket's path may have at most 107 bytes, got 108"),
        ({"cors_origins": ("https://app.example/",)}, "got 'https://app.example/'"),
        ({"cors_origins": ("https://App.example",)}, "got 'https://App.example'"),
        ({"cors_origins": ("*", "https://a,https://b")}, "got 'https://a,https://b'"),
        ({"cors_origins": ("app.example",)}, "got 'app.example'"),
        ({"root_path": "/"}, "got '/'"),
        ({"root_path": "/a/../b"}, "got '/a/../b'"),
        ({"root_path": "/a b"}, "got '/a b'"),
        ({"forwarded_allow_ips": ("*",)}, "such as 10.0.0.0/8, got '*'"),
        ({"forwarded_allow_ips": ("10.0.0.1,",)}, "got ''"),
        ({"forwarded_allow_ips": ("10.0.0.1/8",)}, "got '10.0.0.1/8' (10.0.0.1/8 has host bits set)"),
    ],
)
def test_options_of_proxies_that_cannot_work(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=re.escape(words)):
        Settings(**options).check()


@pytest.mark.parametrize(
    "origin", ["*", "null", "http://localhost:3000", "http://[::1]:80", "chrome-extension://abcdef", "app://."]
)
def test_origins_as_browsers_send_them(origin: str) -> None:
    Settings(cors_origins=(origin,)).check()


def test_a_host_beside_a_unix_socket_is_that_of_the_probes() -> None:
    Settings(uds=Path("a.sock"), host="::1", health_port=8001).check()


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        check_refusal(noria("serve", "--port", str(port)), f"noria: cannot listen on 127.0.0.1:{port}: ")


def test_version_and_help() -> None:
    assert noria("--version").stdout.startswith("noria ")
    done = noria("--help").stdout
    assert all(command in done for command in ("serve", "plan", "chat", "bench"))


@pytest.fixture
def mistral(tmp_path: Path) -> Path:
    """A folder with the configuration of Mistral 7B v0.1 and nothing else."""
    params = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "head_dim": 128, "hidden_dim": 14336}
    params |= {"vocab_size": 32000, "norm_eps": 1e-5, "sliding_window": 4096}
    (tmp_path / "params.json").write_text(json.dumps(params))
    return tmp_path


def test_plan(mistral: Path) -> None:
    """A window of 4,096 needs ceil((4095 + 2048) / 32) + 1 = 193 pages of 4 MiB."""
    done = noria("plan", str(mistral), "--device", "cuda", "--memory", "24GiB")
    assert not done.returncode, done.stderr
    assert "13.49 GiB, 7,241,732,096 in bfloat16" in done.stdout
    assert "131,072 bytes of keys and values" in done.stdout
    assert "│ 32,768 │       772.00 MiB │                  9 │" in done.stdout


def test_plan_of_a_model_with_images(tmp_path: Path) -> None:
    """The encoder has 434,957,312 weights of 2 bytes; 256 MiB hold 26,214 vectors of 5,120; an image takes 36 MiB."""
    done = noria("plan", str(written("Pixtral 12B", tmp_path)), "--device", "cuda", "--memory", "80GiB")
    assert not done.returncode, done.stderr
    assert "images        829.62 MiB of the weights are the image encoder" in done.stdout
    assert "292.03 MiB for 26,214 tokens of embeddings and the encoding of one image" in done.stdout


def planned(*arguments: str, **env: str) -> tuple[dict[str, Any], str]:
    """The plan as JSON, and the error after it."""
    result = CliRunner().invoke(cli.build(["plan"]), ["plan", "--json", *arguments], env=env)
    assert isinstance(result.exception, OptionError | None), result.exception
    return json.loads(result.stdout), str(result.exception or "")


def test_plan_is_for_this_machine(tmp_path: Path) -> None:
    """A machine without a GPU, which nvidia-smi reports: its CPU. One with a GPU: that, with its memory."""
    made, error = planned(PATH=str(tmp_path))
    assert (made["device"], made["possible"], made["remedies"], error) == ("cpu", True, [], "")
    assert 0 < made["memory"] <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    unknown, error = planned("--device", "cuda", PATH=str(tmp_path))
    assert (unknown["memory"], unknown["possible"], error) == (None, True, "")
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 24576\n")
    tool.chmod(0o755)
    made, _ = planned(PATH=str(tmp_path), CUDA_VISIBLE_DEVICES="0")
    assert (made["device"], made["memory"]) == ("cuda", 24 * 2**30)
    assert planned(PATH=str(tmp_path), CUDA_VISIBLE_DEVICES="")[0]["device"] == "cpu"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--device", "cuda", "--memory", "12GiB"),
        ("--device", "cpu", "--memory", "5GiB"),
        ("--device", "cpu", "--memory", "9GiB", "--max-model-len", "8000"),
        ("--device", "cpu", "--memory", "10GiB", "--cache-memory", "5GiB"),
    ],
)
def test_a_plan_that_does_not_fit_says_what_would(mistral: Path, arguments: tuple[str, ...]) -> None:
    """Each remedy that it names makes the same plan possible."""
    made, error = planned(str(mistral), *arguments)
    assert not made["possible"]
    assert error.startswith("nothing fits: ")
    *flags, memory = made["remedies"]
    assert flags
    for remedy in flags:
        assert remedy in error
        assert planned(str(mistral), *arguments, *remedy.split())[1] == "", remedy
    assert planned(str(mistral), *arguments, "--memory", memory.removesuffix(" of memory"))[1] == ""


def test_a_plan_that_does_not_fit_ends_with_1(mistral: Path) -> None:
    done = noria("plan", str(mistral), "--device", "cuda", "--memory", "12GiB")
    assert done.returncode == 1
    assert "0 of 32,768 tokens fit" in done.stdout
    assert done.stderr.startswith("noria: nothing fits: the weights need 13.49 GiB, the memory is 12.00 GiB; enough ")
    assert len(done.stderr.splitlines()) == 1


def test_memory_needs_a_unit() -> None:
    done = noria("plan", "--memory", "12")
    assert (done.returncode, done.stdout) == (2, "")
    assert "12 without a unit is 12 bytes; write 12GiB or 12MiB" in done.stderr
    assert planned("--memory", str(24 * 2**30)) == planned("--memory", "24GiB")


def test_plan_takes_the_flags_of_serve(mistral: Path) -> None:
    flags = ("--memory", "24GiB", "--quantize", "int8", "--max-model-len", "5000", "--max-step-tokens", "1")
    made, _ = planned(str(mistral), *flags, "--device", "cpu")
    assert (made["scheme"], made["context"], made["fits"][-1]["tokens"]) == ("int8", 5000, 5000)
    assert made["fits"][-1]["n_bytes"] == 129 * 2**22
    assert made["cache"] == 2 * made["fits"][-1]["n_bytes"]  # twice one sequence: more would hardly help
    for wrong in (("--what",), ("--device", "tpu"), ("--port", "1")):
        assert CliRunner().invoke(cli.build(["plan"]), ["plan", *wrong]).exit_code == 2
    refused = noria("plan", str(mistral), "--max-sequences", "2", "--max-step-tokens", "1")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)


def run(code: str) -> None:
    """Run code in a fresh interpreter that starts in the repository."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_serve_imports_little_before_it_listens() -> None:
    run(
        "import sys, service.cli as cli; cli.build(['serve'])\n"
        "slow = {'fastapi', 'uvicorn', 'torch', 'httpx', 'prometheus_client', 'prompt_toolkit', 'rich'}\n"
        "assert not slow & set(sys.modules), 'too much'"
    )


def test_serve_imports_almost_nothing_before_the_engine_starts() -> None:
    run(
        "import sys\n"
        "from service.__main__ import main\n"
        "from service.engine.supervision import launch\n"
        "def started(module):\n"
        "    own = {name for name in sys.modules if name.startswith(('service', 'model'))}\n"
        "    assert not {'typer', 'asyncio', 'service.cli', 'service.settings'} & set(sys.modules), 'too much'\n"
        "    assert len(own) < 15, own\n"
        "    raise SystemExit(0)\n"
        "launch.launch = started\n"
        "sys.argv = ['noria', 'serve']\n"
        "main()\n"
        "raise SystemExit('no engine was started')"
    )


def test_other_commands_and_ranks_start_no_engine() -> None:
    run(
        "import gc, os, sys\n"
        "from service.__main__ import main\n"
        "from service.engine.supervision import launch\n"
        "launch.launch = lambda module: sys.exit('an engine was started')\n"
        "others = ['0 --version', '0 serve --help', '0 serve -h', '1 serve -h', '1 serve /nowhere']\n"
        "for rank, *arguments in map(str.split, others):\n"
        "    os.environ['RANK'] = rank\n"
        "    sys.argv = ['noria', *arguments]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as end:\n"
        "        assert end.code != 'an engine was started' and gc.isenabled(), arguments"
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--lora", "sql"), ["--lora sql", "NAME=PATH"]),
        (("--lora", "=x"), ["printable"]),
        (("--lora", "sql="), ["NAME=PATH"]),
        (("--lora", "sql=/nowhere/at/all"), ["--lora sql=/nowhere/at/all", "no such"]),
        (("--lora", f"{'a' * 257}=."), ["at most 256", "257"]),
        (("--lora", "a\tb=."), ["printable", r"'a\tb'"]),
        (("--lora", "sql=.", "--lora", "sql=."), ["'sql'", "another adapter"]),
        (("--lora", "own=.", "--served-model-name", "own"), ["'own'", "the model"]),
        (("--lora", "alias=.", "--served-model-name", "own", "--served-model-name", "alias"), ["'alias'", "the model"]),
        (("--lora", "org/name=.", "org/name"), ["'org/name'", "the model"]),
        (("--lora-dir", "/nowhere/at/all"), ["--lora-dir /nowhere/at/all", "no such directory"]),
    ],
    ids=str,
)
def test_a_wrong_adapter_is_refused_before_the_start(
    seen: list[Settings], flags: tuple[str, ...], words: list[str]
) -> None:
    with pytest.raises(OptionError) as caught:
        invoke(*flags)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert not seen


def test_adapters_are_numbered_in_their_order(seen: list[Settings], tmp_path: Path) -> None:
    """A path may hold an equals sign."""
    (tmp_path / "b=c").mkdir()
    assert invoke("--lora", f"a={tmp_path}", "--lora", f"b={tmp_path / 'b=c'}")[0] == 0
    given = [(adapter.number, adapter.name, adapter.path) for adapter in given_adapters(seen[0])]
    assert given == [(1, "a", tmp_path), (2, "b", tmp_path / "b=c")]

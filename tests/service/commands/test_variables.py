"""Variables NORIA_*: none that is misspelled is ignored in silence, and those of others break nothing."""

import os
from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner

from model.errors import OptionError
from model.options import flags
from service import cli
from service.commands.flags import PREFIX, variable
from service.commands.own_server import not_for_own_server
from service.commands.variables import OF_COMMANDS, PROTECTING, drop_links, unread
from service.settings import Settings

SERVE = [variable(field) for field, _ in flags(Settings)]
SERVICE = {  # what Kubernetes sets for a Service named noria with the port 8000, and for one named noria-health
    "NORIA_SERVICE_HOST": "10.0.0.1",
    "NORIA_SERVICE_PORT": "8000",
    "NORIA_SERVICE_PORT_HTTP": "8000",
    "NORIA_PORT": "tcp://10.0.0.1:8000",
    "NORIA_PORT_8000_TCP": "tcp://10.0.0.1:8000",
    "NORIA_PORT_8000_TCP_PROTO": "tcp",
    "NORIA_PORT_8000_TCP_PORT": "8000",
    "NORIA_PORT_8000_TCP_ADDR": "10.0.0.1",
    "NORIA_HEALTH_SERVICE_HOST": "10.0.0.2",
    "NORIA_HEALTH_SERVICE_PORT": "8001",
    "NORIA_HEALTH_PORT": "tcp://10.0.0.2:8001",
    "NORIA_API_KEY_SERVICE_HOST": "10.0.0.3",
    "NORIA_API_KEY_PORT": "tcp://10.0.0.3:80",
}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Settings]]:
    """The Settings with which a server would start, in an environment without other variables NORIA_*."""
    for name in [name for name in os.environ if name.startswith("NORIA_")]:
        monkeypatch.delenv(name)
    found: list[Settings] = []
    monkeypatch.setattr(cli, "run", lambda settings, engine: found.append(settings) or 0)
    return found


def serve(*arguments: str, **variables: str) -> str:
    """What `noria serve` writes. Raises what it raises."""
    result = CliRunner().invoke(cli.build(["serve", *arguments]), ["serve", *arguments], env=variables)
    if isinstance(result.exception, OptionError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("NORIA_API_KEYS", "NORIA_API_KEY"),
        ("NORIA_APIKEY", "NORIA_API_KEY"),
        ("NORIA_API_KEY_FILES", "NORIA_API_KEY_FILE"),
        ("NORIA_API_TOKEN", ""),
        ("NORIA_KEY", ""),
        ("NORIA_KEYFILE", "NORIA_SSL_KEYFILE"),
        ("noria_api_key", "NORIA_API_KEY"),
        ("NORIA_SSL_CERT_FILE", "NORIA_SSL_CERTFILE"),
        ("NORIA_SSL_KEY", "NORIA_SSL_KEYFILE"),
    ],
)
def test_a_misspelled_key_ends_the_start(served: list[Settings], name: str, near: str) -> None:
    with pytest.raises(OptionError) as caught:
        serve(**{name: "secret"})
    assert f"the variable {name} is unknown" in str(caught.value)
    assert f"did you mean {near}?" in str(caught.value) or not near
    assert "secret" not in str(caught.value)
    assert not served
    assert "--max-queue" in serve("--help", **{name: "secret"})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("NORIA_QUANTISE", "; did you mean NORIA_QUANTIZE?"),
        ("NORIA_MAX_QUEU", "; did you mean NORIA_MAX_QUEUE?"),
        ("NORIA_REGISTRY_TOKEN", ""),
        ("NORIA_MONKEY", ""),
    ],
)
def test_another_one_gets_a_line(served: list[Settings], name: str, hint: str) -> None:
    assert serve(**{name: "x"}) == f"noria: the variable {name} is unknown and has no effect{hint}\n"
    assert served == [Settings()]


def test_variables_of_a_kubernetes_service_break_nothing(served: list[Settings]) -> None:
    lines = serve(**SERVICE, NORIA_MAX_QUEUE="7").splitlines()
    assert served == [Settings(max_queue=7)]
    assert [line.partition(" has no effect")[0] for line in lines] == [
        "noria: NORIA_PORT=tcp://10.0.0.1:8000",
        "noria: NORIA_HEALTH_PORT=tcp://10.0.0.2:8001",
    ]
    assert all("enableServiceLinks: false" in line for line in lines)
    assert serve(NORIA_PORT="9") == ""
    assert served[-1].port == 9


def test_every_declared_variable_is_known_to_every_command() -> None:
    """`serve` does not import the other commands, whose variables it knows all the same."""
    group = typer.main.get_command(cli.build(["chat"]))
    commands = group.commands.values()  # type: ignore[attr-defined]
    every = {flag.envvar for command in commands for flag in command.params if flag.envvar}
    assert {"NORIA_PORT", "NORIA_MEMORY", "NORIA_BENCH_URL", "NORIA_CHAT_MODEL"} <= every
    environment = dict.fromkeys([*every, "NORIA_KERNELS", "NORIA_PARENT_PID"], "1")
    assert [*unread(environment, SERVE, OF_COMMANDS)] == [*unread(environment, every)] == []
    assert [*drop_links(environment, every)] == []
    assert {PREFIX + name for name in PROTECTING} <= every


def test_a_command_knows_its_own_variables() -> None:
    (line,) = unread({"NORIA_BENCH_URLL": "x"}, [*SERVE, "NORIA_BENCH_URL"])
    assert line.endswith("did you mean NORIA_BENCH_URL?")
    assert [*unread({"NORIA_BENCH_URLL": "x"}, SERVE, OF_COMMANDS)] == []


def test_a_server_of_our_own_gets_variables_of_the_model_only() -> None:
    names = [*SERVE, "NORIA_KERNELS", "NORIA_CHAT_URL", "NORIA_NEW_FLAG", "PATH", "HF_HOME"]
    withheld = {*not_for_own_server(names)}
    others = ["HOST", "PORT", "UDS", "HEALTH_PORT", "ROOT_PATH", "API_KEY", "SSL_KEYFILE", "LOG_LEVEL_FILE", "NEW_FLAG"]
    assert {f"NORIA_{name}" for name in others} <= withheld
    model = ["MODEL", "QUANTIZE", "CACHE_MEMORY", "THREADS", "CHAT_TEMPLATE", "MAX_BODY", "KERNELS", "STEP_TIMEOUT"]
    assert not {"PATH", "HF_HOME", *(f"NORIA_{name}" for name in model)} & withheld

"""Variables NORIA_* that nothing reads: a misspelled one is named, and those of Kubernetes are not taken for ours."""

import re
from collections.abc import Collection, Iterator, Mapping, MutableMapping

from model.errors import OptionError
from model.machine.child import PARENT
from model.machine.host import KERNELS
from service.commands.flags import PREFIX
from service.errors.wording import meant

PLAN_MEMORY, PLAN_JSON = "NORIA_MEMORY", "NORIA_JSON"
OTHERS = (KERNELS, PARENT, PLAN_MEMORY, PLAN_JSON)
"""Variables that are no flags of `serve`."""
OF_COMMANDS = ("NORIA_BATCH_", "NORIA_BENCH_", "NORIA_CHAT_", "NORIA_EXPLAIN_", "NORIA_PS_", "NORIA_VERIFY_")
"""The beginnings of other commands' variables. `serve` does not import these commands."""
PROTECTING = ("API_KEY", "API_KEY_FILE", "SSL_CERTFILE", "SSL_KEYFILE")
"""A server that does not get one of these variables is open, or does not encrypt."""
KEY = re.compile(r"API_?(KEY|TOKEN)|^NORIA_KEYS?(_?FILE)?$", re.IGNORECASE)
LINK = re.compile(r"NORIA_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
LINKED_PORT = re.compile(r"(tcp|udp|sctp)://\S+:\d+")
"""Variables that Kubernetes sets beside a Service named noria or noria-NAME, such as NORIA_PORT=tcp://10.0.0.1:8000."""


def drop_links(environment: MutableMapping[str, str], known: Collection[str]) -> Iterator[str]:
    """Remove addresses of Services, which are no ports of ours. Yields a line for each that has the name of a flag."""
    for name, value in [*environment.items()]:
        if name.startswith(PREFIX) and name.endswith("PORT") and LINKED_PORT.fullmatch(value):
            del environment[name]
            if name in known:
                yield (
                    f"{name}={value} has no effect: it is no port but the address of a Service, which Kubernetes sets. "
                    "Set enableServiceLinks: false in the pod"
                )


def unread(environment: Mapping[str, str], known: Collection[str], elsewhere: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield a line for each variable that nothing reads; `known` are those of the flags, others begin with `elsewhere`.

    Raises OptionError for one that is probably meant to protect the server.
    """
    known = {*known, *OTHERS}
    for name in environment:
        if not name.upper().startswith(PREFIX) or name in known or name.startswith(elsewhere) or LINK.fullmatch(name):
            continue
        near = meant(name[len(PREFIX) :], [other.removeprefix(PREFIX) for other in known])
        hint = f"; did you mean {PREFIX}{near}?" if near else ""
        if KEY.search(name) or near in PROTECTING:
            raise OptionError(f"the variable {name} is unknown, and without it the server may be open{hint}")
        yield f"the variable {name} is unknown and has no effect{hint}"

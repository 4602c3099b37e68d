"""How the server treats the requests of a path: who may send them, what is counted, how errors are written."""

from collections.abc import Iterable
from dataclasses import dataclass

from starlette.routing import compile_path

from service.http.dialects import OPENAI, Dialect


@dataclass(frozen=True, slots=True)
class Policy:
    """What a route declares of its requests.

    `open`: they need no key. `generates`: metrics count their outcomes and durations. `quiet`: they are logged at level
    debug.
    """

    dialect: Dialect = OPENAI
    open: bool = False
    generates: bool = False
    quiet: bool = False


class Policies:
    """The policy of every path. Raises ValueError for two policies of one path."""

    def __init__(self, policies: Iterable[tuple[str, Policy]]) -> None:
        self._declared: dict[str, Policy] = {}
        for path, policy in policies:
            if self._declared.setdefault(path, policy) != policy:
                raise ValueError(f"routes of {path} declare different policies")
        patterns = [path for path in self._declared if "{" in path]
        self._patterns = [(compile_path(path)[0], self._declared[path]) for path in patterns]

    def of(self, path: str) -> Policy:
        """What the path's route declares. A path without a route has only the dialect of the route that it extends."""
        if (declared := self._declared.get(path)) is not None:
            return declared
        for pattern, policy in self._patterns:
            if pattern.match(path):
                return policy
        extended = [known for known in self._declared if path.startswith(f"{known}/")]
        return Policy(self._declared[max(extended, key=len)].dialect) if extended else Policy()

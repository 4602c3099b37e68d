"""The treatment of requests by path: whether they need a key, what is counted and logged, how errors look."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from starlette.routing import compile_path

from service.errors.dialects import OPENAI, Dialect

Operation = Literal["chat", "text_completion", "embeddings"]
"""What a model does for a request, as OpenTelemetry names it (`gen_ai.operation.name`)."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How the server treats the requests of a route.

    `open`: they need no key. `operation`: what the model does, None if nothing; of the others, metrics count outcomes
    and durations. `quiet`: the log has them at level debug only, and traces do not. `dialect` writes their errors.
    `page`: browsers show the answer, and any site may have a link to it.
    """

    dialect: Dialect = OPENAI
    open: bool = False
    operation: Operation | None = None
    quiet: bool = False
    page: bool = False

    @property
    def generates(self) -> bool:
        return self.operation is not None


class Policies:
    """The routes of all paths, each with its policy. Raises ValueError when one path has two."""

    def __init__(self, policies: Iterable[tuple[str, Policy]]) -> None:
        self._declared: dict[str, Policy] = {}
        for path, policy in policies:
            if self._declared.setdefault(path, policy) != policy:
                raise ValueError(f"routes of {path} declare different policies")
        patterns = [path for path in self._declared if "{" in path]
        self._patterns = [(compile_path(path)[0], path) for path in patterns]

    def of(self, path: str) -> tuple[str | None, Policy]:
        """The route of a path, and its policy.

        An unknown path has no route. Its policy has the dialect of the route above it, and nothing else.
        """
        if (declared := self._declared.get(path)) is not None:
            return path, declared
        for pattern, route in self._patterns:
            if pattern.match(path):
                return route, self._declared[route]
        extended = [known for known in self._declared if path.startswith(f"{known}/")]
        return None, Policy(self._declared[max(extended, key=len)].dialect) if extended else Policy()

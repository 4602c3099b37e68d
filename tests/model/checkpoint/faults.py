"""What a user reads where a model cannot be loaded."""

from collections.abc import Callable

from model.errors import NoriaError


def fault(work: Callable[[], object]) -> str | None:
    """The message of the error that a user can cause, None if there is none. Any other error fails the test."""
    try:
        work()
    except NoriaError as error:
        message = str(error)
    else:
        return None
    assert "\n" not in message
    assert len(message) < 700
    return message

"""What can be wrong with what a user gave us; each error is one line: what, why, what to do.

NoriaError
├── ModelError       a model that cannot be loaded (missing, unknown format, damaged)
├── OptionError      a start-up option that cannot be honoured (memory, lengths, device)
└── ParameterError   a request's parameter outside its range; carries the field's name
"""

MAX_CHARS = 300
"""Of a message that another library wrote."""


class NoriaError(Exception):
    """Base of every error whose message is meant for a person."""


class ModelError(NoriaError):
    """The model cannot be loaded: what was found, what was expected."""


class OptionError(NoriaError):
    """A start-up option cannot be honoured: the option, its value, the limit."""


class ParameterError(NoriaError):
    """A request parameter is out of range: `param` names the field."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def one_line(error: Exception) -> str:
    """What an exception says, on one line and without the path of an OSError; else the name of its type."""
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    return " ".join(text.split())[:MAX_CHARS] or type(error).__name__

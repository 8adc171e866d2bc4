"""Every exception edgespec raises on purpose.

EdgespecError
├── ConfigError            a flag, variable or file says something that is not an option   (exit 2)
│   ├── ConstraintError        a grammar, schema or expression that cannot be followed
│   └── FieldError             a field of a request in OpenAI's notation is wrong
├── ModelError             the model cannot be found, read, or run                         (exit 3)
│   ├── ModelNotFoundError     no such file, catalogue name, or hub address
│   ├── ModelFormatError       not a GGUF, truncated, a part missing, wrong kind
│   ├── ModelMemoryError       needs more memory than is free
│   ├── DownloadError          network, disk, checksum
│   ├── ContextFullError       the prompt does not fit the context
│   └── EvalError              llama.cpp refused or aborted a batch
│       └── EvalCancelled          the abort flag was raised during the batch
├── BusyError              no place for an answer now; worth another try
├── DrafterError           a drafter broke its contract (contained: never ends a generation)
└── DeviceError            the machine refused something that cannot be done without      (exit 4)

Messages are one line and name what to do next.
"""

from __future__ import annotations


class EdgespecError(Exception):
    """Base of all errors raised on purpose; `exit_code` is what the command line ends with."""

    exit_code = 1


class ConfigError(EdgespecError):
    """A flag, an environment variable, or a configuration key is not valid."""

    exit_code = 2


class ConstraintError(ConfigError):
    """A grammar, JSON schema or regular expression is not valid, or cannot be followed."""


class FieldError(ConfigError):
    """A field of a request in OpenAI's notation is wrong; `param` is its path."""

    def __init__(self, message: str, param: str | None = None) -> None:
        """`message` is one line."""
        super().__init__(message)
        self.param = param


class BusyError(EdgespecError):
    """No place for an answer now; worth another try after `retry_s` seconds."""

    def __init__(self, message: str, retry_s: int = 1) -> None:
        """`message` is one line."""
        super().__init__(message)
        self.retry_s = retry_s


class ModelError(EdgespecError):
    """The model cannot be found, read, or run."""

    exit_code = 3


class ModelNotFoundError(ModelError):
    """No such file, catalogue name, or hub address."""


class ModelFormatError(ModelError):
    """The file is not a usable GGUF model."""


class ModelMemoryError(ModelError):
    """The model or its context needs more memory than is free."""


class DownloadError(ModelError):
    """A model could not be fetched: network, disk space, or checksum."""


class ContextFullError(ModelError):
    """The prompt is longer than the context."""


class EvalError(ModelError):
    """llama.cpp refused a batch."""


class EvalCancelled(EvalError):  # noqa: N818 - a cancelled batch is an outcome, not a fault
    """The abort flag was raised while a batch was being evaluated; its tokens are not cached."""


class DrafterError(EdgespecError):
    """A drafter broke its contract. The round contains it; it never ends a generation."""


class DeviceError(EdgespecError):
    """The machine refused something edgespec cannot do without."""

    exit_code = 4

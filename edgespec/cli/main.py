"""The command line's root: finds a command's module when it is called, and turns errors into one line and an exit code.

A command is a function (or, with commands of its own, a typer app) in a module of its own; its options live there.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

# typer has no public names for wrong usage; its pin in pyproject.toml (0.26 to 0.28) covers these.
from typer._click.exceptions import ClickException, NoArgsIsHelpError
from typer.core import TyperCommand, TyperGroup

from edgespec import __version__
from edgespec.errors import EdgespecError

COMMANDS = {
    "chat": ("edgespec.cli.chat", "chat", "Talk with a model."),
    "run": ("edgespec.cli.run", "run", "Answer one prompt: from -p, a file, or a pipe."),
    "serve": ("edgespec.cli.serve", "serve", "Serve a model on this machine with OpenAI's API."),
    "bench": ("edgespec.cli.bench", "bench", "Measure what drafting gains on this machine."),
    "simulate": ("edgespec.cli.simulate", "simulate", "Try drafting, heat and other programs on a simulated device."),
    "certify": ("edgespec.cli.certify", "certify", "Find out which ways of drafting keep the text exactly."),
    "tune": ("edgespec.cli.tune", "tune", "Find the fastest options for a model here, and keep them."),
    "models": ("edgespec.cli.models", "app", "List, fetch, show and remove models."),
    "doctor": ("edgespec.cli.doctor", "doctor", "Say what this device is, what runs where, and what could be better."),
    "kernels": ("edgespec.cli.kernels", "app", "Build, show and switch kernels for cheaper verify passes."),
    "drafter": ("edgespec.cli.drafter", "app", "List, choose and measure tiny models that draft."),
    "config": ("edgespec.cli.config_cmd", "app", "Show the options in force and where they come from."),
}
"""Name to module, attribute and the line in `edgespec --help`. The module is imported when the command is called."""

INTERNAL, USAGE, INTERRUPTED, CLOSED_PIPE = 1, 2, 130, 141

HELP = "Chat with a model on this device, faster: cheap guesses, checked by the model, which alone decides the text."

EPILOG = """\b
Examples:
  edgespec chat                        talk with the default model
  edgespec chat qwen2.5-1.5b           a model known by name
  edgespec run -p "Why is the sky blue?" --stats
  cat notes.txt | edgespec run --system "Summarise in three lines."
  edgespec run ./model.gguf -p Hello   any GGUF file
  edgespec models list                 names, sizes, memory needed
  edgespec bench --modes plain,auto    what drafting gains here

\b
Files (XDG): options in ~/.config/edgespec/config.toml, or EDGESPEC_* variables;
models in ~/.local/share/edgespec/models. Flags go before variables before the file.

\b
Exit codes: 0 done, 1 internal error, 2 wrong usage or configuration,
3 model not found, not readable or too large, 4 the device refused something,
130 interrupted, 141 the reader of the output went away.
"""


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they are called; listing them needs their names only."""

    def __init__(self, **attrs: Any) -> None:
        """Put stand-ins where typer looks for names: help, completion, suggestions."""
        super().__init__(**attrs)
        self._listing = False
        for name, (_, _, line) in COMMANDS.items():
            self.commands[name] = TyperCommand(name=name, help=line, rich_markup_mode=None)

    @contextlib.contextmanager
    def _stand_ins(self) -> Iterator[None]:
        self._listing = True
        try:
            yield
        finally:
            self._listing = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The real command, unless they are only being listed."""
        if self._listing or cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        return load_command(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands without importing them."""
        with self._stand_ins():
            super().format_commands(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete a command's name without importing any."""
        with self._stand_ins():
            return super().shell_complete(ctx, incomplete)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; keep a closed pipe from typer, which would end with code 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ClosedPipe from error


class _ClosedPipe(Exception):  # noqa: N818 - internal: it only carries the news past typer
    pass


def load_command(name: str) -> Any:
    """Import a command's module and build the command."""
    module_name, attribute, _ = COMMANDS[name]
    module = importlib.import_module(module_name)
    found = getattr(module, attribute)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, epilog=getattr(module, "EPILOG", None), help=inspect.getdoc(found))(found)
    return typer.main.get_command(single)


app = typer.Typer(
    cls=LazyGroup,
    help=HELP,
    epilog=EPILOG,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"edgespec {__version__}")
        raise typer.Exit


def _show_tracebacks(wanted: bool) -> None:
    if wanted:
        os.environ["EDGESPEC_DEBUG"] = "1"


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    __: Annotated[
        bool,
        typer.Option(
            "--debug", callback=_show_tracebacks, is_eager=True, help="Show tracebacks (also: EDGESPEC_DEBUG=1)."
        ),
    ] = False,
) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def run(args: Sequence[str] | None = None) -> int:
    """Run a command line (without the program's name); return its exit code. Errors become one line on stderr."""
    try:
        try:
            code = app(args if args is None else list(args), prog_name="edgespec", standalone_mode=False)
        finally:
            # Here a closed pipe can still be reported; at the interpreter's end it would be a traceback.
            if sys.stdout is not None:
                sys.stdout.flush()
    except (BrokenPipeError, _ClosedPipe):
        _drop_stdout()
        return CLOSED_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except NoArgsIsHelpError as error:
        typer.echo(error.message)
        return 0
    except ClickException as error:
        return _fail(_usage(error), USAGE, error)
    except EdgespecError as error:
        return _fail(str(error), error.exit_code, error)
    except typer.Abort as error:
        return _fail("aborted", INTERNAL, error)
    except SystemExit as error:
        return _exit_code(error.code)
    except OSError as error:  # of a file or stream that no command handles itself, as stdout on a full disk
        _drop_stdout()
        return _fail(f"{error.filename or 'output'}: {error.strerror or error}", INTERNAL, error)
    except Exception as error:  # the last line of defence: a bug is reported as one, in one line
        hint = "" if _debugging() else "; EDGESPEC_DEBUG=1 shows where"
        return _fail(f"internal error: {type(error).__name__}: {error}{hint}", INTERNAL, error)
    return _exit_code(code)


def main() -> NoReturn:
    """Entry point of the installed script."""
    # Closed by the caller (`>&-`): there is nobody to tell, but the work may still be wanted for its exit code.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 - lives as long as the process
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115 - as above
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            # A terminal of another encoding shows question marks instead of ending the program.
            reconfigure(errors="replace")
    sys.exit(run())


def _exit_code(code: object) -> int:
    if isinstance(code, int):
        return int(code)
    return 0 if code is None else INTERNAL


def _debugging() -> bool:
    return os.environ.get("EDGESPEC_DEBUG", "").lower() in {"1", "true", "yes", "on"}


def _usage(error: ClickException) -> str:
    text = error.format_message().rstrip(".")
    ctx = getattr(error, "ctx", None)
    # "No such option" reads better in the middle of a line; names and acronyms stay as they are.
    if text[1:2].islower():
        text = text[0].lower() + text[1:]
    command = ctx.command_path if ctx is not None else "edgespec"
    return f"{text}{'' if text.endswith('?') else ';'} see `{command} --help`"


def _fail(message: str, code: int, error: BaseException) -> int:
    if _debugging():
        import traceback

        traceback.print_exception(error)
    line = " ".join(message.split())
    with contextlib.suppress(OSError):  # stderr may be closed as well
        print(f"edgespec: {line}", file=sys.stderr)
    return code


def _drop_stdout() -> None:
    """Send what is still buffered nowhere: the interpreter flushes once more at its end."""
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)

"""The command line. One file a command, imported when it is asked for; errors are two lines.

A command module exports `command`, a click command. What it raises is turned into two lines on
stderr and an exit code here and nowhere else: 0 done, 1 a check failed, 2 bad input, 130 Ctrl-C.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches

import click

from qwisp import __version__
from qwisp.errors import QwispError

# A new command is its file and its line here; the line lets `qwisp --help` import no command.
SUMMARIES = {
    "plan": "Model + machine + trace -> session list, comparison, verdict, report.",
    "fit": "How much memory a model needs, and the largest context that fits.",
    "replay": "Replay a trace, or an engine's facts, under one layout.",
    "study": "Run or judge a Step-0 study: criteria first, verdict from receipts.",
    "generate": "Generate text with the lane engine.",
    "certify": "Is batched decode bit-identical to solo? Names the row, layer and width.",
    "calibrate": "Measure prefill and decode on this machine and fit the cost model.",
    "matrix": "Memory by device, model and context, against measured points.",
    "reconcile": "Predicted against allocated memory, by term.",
    "doctor": "What this machine can run, and what is missing.",
    "lab": "Open JupyterLab on the notebooks.",
}


class _LazyGroup(click.Group):
    """Finds a command by its name, which is that of its file."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in (known := self.list_commands(ctx)):
            near = get_close_matches(name, known, n=1)
            if near and not ctx.resilient_parsing:
                ctx.fail(f"No such command {name!r}. Did you mean {near[0]!r}?")
            return None
        return importlib.import_module(f"qwisp.cli.{name.replace('-', '_')}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, SUMMARIES[name]) for name in self.list_commands(ctx)])


@click.group(
    cls=_LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="qwisp")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Decide before you build: fit, share, trust, decide.

    Sizes are written 8GiB, 12g or 80%, contexts 64K; models by catalog name, config.json or
    directory.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; nothing a user types raises from here."""
    try:
        code = cli.main(args, prog_name="qwisp", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except QwispError as error:
        return _complain(error.what, error.todo, error.exit_code)
    except click.Abort:
        return _complain("stopped by Ctrl-C", "files are valid: run it again to continue", 130)
    except click.UsageError as error:
        return _complain(*_usage(error), 2)
    except click.ClickException as error:
        return _complain(error.format_message(), "see: qwisp --help", 2)
    except BrokenPipeError:
        # The reader (head, less) has left: nothing to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is None:
            return _bug(error)
        what = f"{error.filename}: {error.strerror}"
        return _complain(what, "check the path, its permissions and the free disk space", 2)
    except Exception as error:
        return _bug(error)


def _usage(error: click.UsageError) -> tuple[str, str]:
    path = error.ctx.command_path if error.ctx else "qwisp"
    message = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the whole help text
        message = f"{path} needs more words"
    return message, f"see: {path} --help"


def _bug(error: Exception) -> int:
    if os.environ.get("QWISP_DEBUG"):
        import traceback

        traceback.print_exc()
    what = f"{type(error).__name__}: {error}"
    todo = "this is a bug in qwisp: run again with QWISP_DEBUG=1 and report the traceback"
    return _complain(what, todo, 1)


def _complain(what: str, todo: str, code: int) -> int:
    """Print two lines, whatever line breaks the texts hold, and return `code`."""
    for line in (f"error: {what}", todo):
        click.echo(" ".join(line.split()), err=True)
    return code

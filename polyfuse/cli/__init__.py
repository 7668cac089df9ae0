"""The command `polyfuse`: `main` is its entry point, `app` the command for tests.

    app        the command with all its subcommands
    errors     what happens to errors: diagnostics, exit codes, reproducers
    files      programs from files, standard input and the standard library
    settings   options that several commands have
    screen     the two consoles, tables
    compiler   the names of the compiler that the commands use
    run ...    one module for each family of commands

Nothing of the compiler is imported before a command needs it, so that `--help` is quick.
"""

from __future__ import annotations

from polyfuse.cli.app import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the command with the arguments of the process."""
    app(prog_name="polyfuse")

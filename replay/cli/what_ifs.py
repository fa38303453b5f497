"""The table of what-ifs, for `--what-if list`."""

from __future__ import annotations

import click


def list_what_ifs(context: click.Context, parameter: click.Parameter, said: tuple[str, ...]) -> tuple[str, ...]:
    """Show the table and end the command where `list` was said; else what was said."""
    if "list" in said:
        _show()
        context.exit()
    return said


def _show() -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from replay.whatif.registry import known

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, show_lines=False)
    table.add_column("--what-if", overflow="fold")
    for name in ("does", "assumes", "source"):
        table.add_column(name)
    for one in known():
        table.add_row(one.form, one.does, one.assumes, one.source)
    Console(highlight=False).print(table)

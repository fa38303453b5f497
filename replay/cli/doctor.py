"""`tracebed doctor`: what this machine can do, and how to mend what it can't."""

from __future__ import annotations

import json

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
def command(as_json: bool) -> int:
    """Try what a replay needs on this machine; say what works, and the line that mends what doesn't.

    `virtual` and `host` are the grounds of `tracebed replay --on`. Exit status 0 where at least one of them works, else 3.

    Example: tracebed doctor
    """
    from dataclasses import asdict

    from emulator.doctor import a_ground_works, examine
    from replay.cli.main import DONE, MACHINE_CANNOT

    checks = examine()
    if as_json:
        click.echo(json.dumps({"checks": [asdict(check) for check in checks]}))
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table("what", "works", "found")
        for check in checks:
            table.add_row(check.name, "yes" if check.works else "no", check.detail)
        Console().print(table)
        for check in checks:
            if check.mend:
                click.echo(f"to mend {check.name}: {check.mend}")
    return DONE if a_ground_works(checks) else MACHINE_CANNOT

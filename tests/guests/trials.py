"""What the lab kernel can do for a bed, as `tracebed doctor` tries it."""

from __future__ import annotations

from emulator.trials import kernel
from tests.guests.pair import report

if __name__ == "__main__":
    report({trial.name: trial.why for trial in kernel()})

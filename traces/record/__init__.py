"""Recording: the launcher, the hook that it puts into a job's Pythons (`hook/`), and what joins the ranks' files.

A job that wants control, in an environment where Tracebed is installed, says so itself:

    from traces.record import recording, step

    with recording("job.trace"):
        for batch in batches:
            train(batch)
            step()  # not needed where an optimizer ends each step
"""

from __future__ import annotations

from traces.record.inside import recording, step

__all__ = ["recording", "step"]

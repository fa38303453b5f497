"""Receives from any source get the sender that is left."""

from __future__ import annotations

from traces.peers import resolved
from traces.program import Program, Recv, Send


def test_the_sender_is_the_one_whose_message_nobody_else_receives() -> None:
    programs = {
        0: Program(0, (Send(peer=2, count=4),)),
        1: Program(1, (Send(peer=2, count=4),)),
        2: Program(2, (Recv(peer=-1, count=4), Recv(peer=0, count=4))),
    }

    named, findings = resolved(programs)

    assert named[2].ops == (Recv(peer=1, count=4), Recv(peer=0, count=4))
    assert [(finding.code, finding.rank) for finding in findings] == [("assumed-peer", 2)]


def test_a_receive_that_nothing_fits_stays_as_it_is() -> None:
    programs = {0: Program(0, (Send(peer=1, count=4, tag=1),)), 1: Program(1, (Recv(peer=-1, count=4),))}

    named, findings = resolved(programs)

    assert named == programs
    assert findings == ()

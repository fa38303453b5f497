"""The manager that the ranks of an MPI library meet at: what it answers them."""

from __future__ import annotations

from replay.library.pmi import Meeting, Reply


def test_ranks_meet_and_find_each_others_keys() -> None:
    meeting = Meeting(2)
    (hello,) = meeting.hear(0, "cmd=init pmi_version=1 pmi_subversion=1")
    assert hello == Reply(0, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0")
    assert meeting.hear(1, "cmd=put kvsname=tracebed key=address value=[4]0A=1") == [Reply(1, "cmd=put_result rc=0")]
    assert meeting.hear(1, "cmd=barrier_in") == []
    assert meeting.hear(0, "cmd=barrier_in") == [Reply(place, "cmd=barrier_out rc=0") for place in (1, 0)]
    assert meeting.hear(0, "cmd=get kvsname=tracebed key=address") == [Reply(0, "cmd=get_result rc=0 value=[4]0A=1")]
    assert meeting.hear(0, "cmd=get kvsname=tracebed key=none") == [Reply(0, "cmd=get_result rc=-1")]
    assert meeting.hear(1, "cmd=barrier_in") == []  # the next one


def test_each_rank_is_on_a_machine_of_its_own() -> None:
    """So that MPI does not send through memory."""
    (reply,) = Meeting(5).hear(3, "cmd=get kvsname=tracebed key=PMI_process_mapping")
    assert reply == Reply(3, "cmd=get_result rc=0 value=(vector,(0,5,1))")

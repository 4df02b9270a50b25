"""The clock against times worked out by hand."""

from __future__ import annotations

from atommem.process import ActivityClock


def test_activity_clock_overlapping_intervals_count_once() -> None:
    """Two of one kind over 1..4 and 3..6, one more over 8..9; another kind over 2..5."""
    now = 0.0
    clock = ActivityClock(lambda: now)
    first, second, other = clock.busy("generate"), clock.busy("generate"), clock.busy("embed")
    for now, act in (  # noqa: B007  # the clock reads it
        (1.0, first.__enter__),
        (2.0, other.__enter__),
        (3.0, second.__enter__),
        (4.0, lambda: first.__exit__(None, None, None)),
        (5.0, lambda: other.__exit__(None, None, None)),
        (6.0, lambda: second.__exit__(None, None, None)),
    ):
        act()
    now = 8.0
    with clock.busy("generate"):
        now = 9.0
        # What goes on is split where it is read.
        assert clock.take() == {"generate": 6.0, "embed": 3.0}
        now = 11.0
    assert clock.take() == {"generate": 2.0}
    assert clock.take() == {}

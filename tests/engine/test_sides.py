"""Work is kept apart by owner, and no loop stands still while there is any."""

from tidegate.engine.rings import Ring, Sides


def test_each_loop_takes_from_its_own_side_first() -> None:
    sides: Sides[int] = Sides(2)
    for owner in (1, 2, 3, 4):
        sides.add(owner, owner)
    assert (list(sides.next(0)), list(sides.next(1))) == ([2, 4], [1, 3])
    assert len(sides) == 4


def test_a_loop_without_work_takes_anothers() -> None:
    sides: Sides[str] = Sides(3)
    sides.add(7, "only")
    assert all(sides.next(loop) == sides.next(1) for loop in range(3))
    assert sides.next(0).popleft() == "only"
    assert not any(sides.next(loop) for loop in range(3))


def test_what_is_taken_of_a_ring_is_of_one_side() -> None:
    ring = Ring(size=4, loops=2)
    assert [ring.reserve() for _ in range(5)] == [True] * 4 + [False]
    assert ring.pop(10, now_s=0.0, loop=1) == []

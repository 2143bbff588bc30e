"""LRU: the budget holds, and the least recently used item is evicted first."""

from hypothesis import given
from hypothesis import strategies as st

from copperfs.node.cache.lru import LruBudget


def shelf_with(budget_bytes: int, **sizes: int) -> LruBudget[str, str]:
    shelf: LruBudget[str, str] = LruBudget(budget_bytes)
    for key, size in sizes.items():
        assert shelf.admit(key, key.upper(), size) == []
    return shelf


def test_what_is_admitted_is_held() -> None:
    shelf = shelf_with(10, a=4, b=6)
    assert (shelf.get("a"), shelf.get("b"), shelf.get("c")) == ("A", "B", None)
    assert (len(shelf), shelf.held_bytes) == (2, 10)
    assert "a" in shelf
    assert "c" not in shelf


def test_the_oldest_goes_first() -> None:
    shelf = shelf_with(10, a=4, b=4)
    assert shelf.admit("c", "C", 4) == [("a", "A")]
    assert shelf.admit("d", "D", 10) == [("b", "B"), ("c", "C")]
    assert (shelf.evictions, shelf.evicted_bytes) == (3, 12)


def test_getting_and_touching_are_uses() -> None:
    shelf = shelf_with(10, a=3, b=3, c=3)
    shelf.get("a")
    shelf.touch("b")
    shelf.touch("unknown")
    assert [key for key, _, _ in shelf.items()] == ["c", "a", "b"]
    assert shelf.admit("d", "D", 6) == [("c", "C"), ("a", "A")]


def test_what_is_replaced_is_returned_and_no_eviction() -> None:
    shelf = shelf_with(10, a=4)
    assert shelf.admit("a", "new", 5) == [("a", "A")]
    assert (shelf.held_bytes, shelf.evictions) == (5, 0)


def test_the_youngest_stays_even_if_it_is_too_large() -> None:
    shelf = shelf_with(10, a=4)
    assert shelf.admit("huge", "HUGE", 100) == [("a", "A")]
    assert shelf.get("huge") == "HUGE"
    assert shelf.admit("b", "B", 1) == [("huge", "HUGE")]


def test_room_is_made_for_what_is_on_its_way() -> None:
    shelf = shelf_with(10, a=4, b=4)
    assert shelf.reserve(4) == [("a", "A")]
    assert shelf.reserve(2) == []
    assert shelf.admit("c", "C", 4) == [("b", "B")]


def test_there_is_no_room_when_all_is_reserved() -> None:
    shelf = shelf_with(10)
    assert shelf.reserve(6) == []
    assert shelf.reserve(5) is None
    assert shelf.reserved_bytes == 6
    shelf.unreserve(6)
    assert shelf.reserve(5) == []


def test_one_thing_is_always_let_on_its_way() -> None:
    shelf = shelf_with(10)
    assert shelf.reserve(11) == []
    assert shelf.reserve(0) is None


def test_what_is_set_aside_is_nobody_to_wait_for() -> None:
    shelf = shelf_with(10)
    shelf.set_aside(4)
    assert shelf.reserve(8) == []
    assert shelf.reserve(1) is None
    shelf.unreserve(8)
    assert shelf.admit("a", "A", 6) == []
    assert shelf.admit("b", "B", 1) == [("a", "A")]


def test_dropping_is_no_eviction() -> None:
    shelf = shelf_with(10, a=4, b=4)
    assert shelf.drop("a") == [("a", "A")]
    assert shelf.drop("a") == []
    assert shelf.drop_all() == [("b", "B")]
    assert (shelf.held_bytes, shelf.evictions, len(shelf)) == (0, 0, 0)


steps = st.one_of(
    st.tuples(st.just("admit"), st.integers(0, 5), st.integers(0, 60)),
    st.tuples(st.just("reserve"), st.just(0), st.integers(0, 60)),
    st.tuples(st.just("unreserve"), st.just(0), st.just(0)),
    st.tuples(st.just("drop"), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("get"), st.integers(0, 5), st.just(0)),
)


@given(st.lists(steps, max_size=60))
def test_nothing_is_lost_and_the_budget_holds(taken: list[tuple[str, int, int]]) -> None:
    shelf: LruBudget[int, int] = LruBudget(100)
    held: dict[int, int] = {}
    reserved: list[int] = []
    for number, (what, key, size) in enumerate(taken):
        gone: list[tuple[int, int]] = []
        match what:
            case "admit":
                gone = shelf.admit(key, number, size)
                held = {each: value for each, value in held.items() if (each, value) not in gone}
                held[key] = number
            case "reserve":
                if (made := shelf.reserve(size)) is not None:
                    gone = made
                    reserved.append(size)
            case "unreserve" if reserved:
                shelf.unreserve(reserved.pop())
            case "drop":
                gone = shelf.drop(key)
            case "get":
                assert shelf.get(key) == held.get(key)
        held = {each: value for each, value in held.items() if (each, value) not in gone}
        assert {each: value for each, value, _ in shelf.items()} == held
        assert shelf.reserved_bytes == sum(reserved)
        shelf.check_invariants()

"""The account of an attempt's waiting, held against a literal reading of its rule over a timeline of ticks."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.trajectory.waiting import Account, CallTime, Totals


@dataclass(kw_only=True)
class Literal:
    """The state at each tick, written down."""

    flight: list[set[int]] = field(default_factory=list)
    pending: list[set[int]] = field(default_factory=list)
    generated: list[set[int]] = field(default_factory=list)
    tools: list[int] = field(default_factory=list)

    def totals(self) -> Totals:
        waiting = undecided = generation = 0
        for flight, pending, generated, tools in zip(
            self.flight, self.pending, self.generated, self.tools, strict=True
        ):
            if generated:
                generation += 1
            elif flight and not tools:
                undecided += bool(pending)
                waiting += not pending
        return Totals(waiting, undecided, generation)


MOVES = st.lists(
    st.tuples(
        st.sampled_from(("call", "requested", "answered", "left", "over", "tool", "tool_ended", "look")),
        st.integers(0, 5),  # which of the possible calls
        st.integers(0, 4),  # ticks before it
        st.integers(0, 2**12 - 1),  # when it was generated in the undecided stretch, one bit per tick
    ),
    max_size=40,
)


@given(MOVES)
def test_the_account_is_a_literal_reading_of_its_rule_at_every_moment(
    moves: list[tuple[str, int, int, int]],
) -> None:
    account, literal, now, tools = Account(), Literal(), 0, 0
    calls: dict[int, CallTime] = {}
    flying: set[int] = set()
    pending: dict[int, int] = {}
    least = 0.0
    for move, which, ticks, bits in moves:
        for _ in range(ticks):
            literal.flight.append(set(flying))
            literal.pending.append(set(pending))
            literal.generated.append(set())
            literal.tools.append(tools)
        now += ticks
        match move:
            case "call":
                number = len(calls) + 1000 * len(literal.flight)
                calls[number] = account.call(now)
                flying.add(number)
            case "tool":
                account.tool_began(now)
                tools += 1
            case "tool_ended" if tools:
                account.tool_ended(now)
                tools -= 1
        able = sorted(
            {
                "requested": set(calls) - set(pending),
                "answered": set(pending),
                "left": flying,
                "over": set(calls),
            }.get(move, set())
        )
        if able:
            one = able[which % len(able)]
            if move == "requested":
                calls[one].requested(now)
                pending[one] = now
            elif move == "answered":
                since = pending.pop(one)
                made = [tick for tick in range(since, now) if bits >> (tick - since) & 1]
                for tick in range(since, now):
                    literal.pending[tick].discard(one)
                for tick in made:
                    literal.generated[tick].add(one)
                calls[one].answered(now, [(tick, tick + 1) for tick in made])
            elif move == "left":
                calls[one].left(now)
                flying.discard(one)
            else:
                for tick in range(pending.pop(one, now), now):
                    literal.pending[tick].discard(one)
                    literal.generated[tick].add(one)
                calls.pop(one).over(now)
                flying.discard(one)
        found = account.totals(now)
        assert found == literal.totals()
        assert found.waiting >= least, "what was waiting cannot become the agent's"
        least = found.waiting


def test_six_calls_at_a_server_of_one_slot_wait_only_while_none_of_them_is_generated() -> None:
    account = Account()
    calls = [account.call(0.0) for _ in range(6)]
    for call in calls:
        call.requested(0.0)
    for i, call in enumerate(calls):
        call.answered(i + 1.0, [(float(i), i + 1.0)])
        call.over(i + 1.0)
    assert account.totals(6.0) == Totals(0.0, 0.0, 6.0)


def test_a_call_in_parts_counts_each_part_as_what_it_is() -> None:
    account = Account()
    call = account.call(0.0)
    call.requested(2.0)
    call.answered(10.0, [(5.0, 10.0)])  # 3 s in the server's queue, then broken off by a weight sync
    call.requested(14.0)
    call.answered(15.0)  # the server was lost: without a result
    call.requested(16.0)
    call.answered(20.0, [(16.0, 20.0)])
    call.over(20.0)
    assert account.totals(30.0) == Totals(11.0, 0.0, 9.0)


def test_waiting_while_a_tool_runs_or_behind_a_call_that_left_is_not_counted() -> None:
    account = Account()
    held = account.call(0.0)
    account.tool_began(1.0)
    account.tool_began(2.0)
    account.tool_ended(3.0)
    account.tool_ended(6.0)
    held.left(8.0)
    assert account.totals(20.0).waiting == 1.0 + 2.0
    held.over(20.0)
    assert account.totals(20.0).waiting == 3.0


def test_nothing_is_idle_before_the_first_call_ended_nor_while_any_is_in_flight() -> None:
    account = Account()
    assert account.idle_s(5.0) == 0.0
    first, second = account.call(5.0), account.call(6.0)
    first.over(7.0)
    assert account.idle_s(9.0) == 0.0
    second.over(9.0)
    assert account.idle_s(12.0) == 3.0
    account.call(13.0)
    assert account.idle_s(20.0) == 4.0


def test_the_account_keeps_nothing_of_calls_that_are_over() -> None:
    account = Account()
    for i in range(1000):
        call = account.call(i)
        call.requested(i)
        call.answered(i + 1, [(i, i + 1)])
        call.over(i + 1)
    assert not account._flights and not account._generated and not account._open
    assert account.totals(1000).generation == 1000

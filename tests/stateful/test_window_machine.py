"""Any order of dispatch, finish, resolve, take, commit, publish and restart keeps the queue's promises."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orchestrator.contracts.states import BatchState, GroupState
from orchestrator.scheduling.admission import QueueSettings
from orchestrator.scheduling.replay import replay
from orchestrator.scheduling.simulate import SimulatedQueue


class WindowMachine(RuleBasedStateMachine):
    """Compares the simulator's rows with a plain list of positions, kept by hand."""

    @initialize(
        p=st.integers(1, 4),
        s=st.integers(0, 2),
        spare=st.integers(0, 3),
        percent=st.integers(1, 100),
        slots=st.integers(1, 12),
    )
    def start(self, p: int, s: int, spare: int, percent: int, slots: int) -> None:
        self.shape = QueueSettings(
            capacity=(s + 1) * p + spare,
            batch_groups=p,
            group_size=2,
            max_staleness=s,
            running_rollouts=2 * slots,
            window_fraction=percent / 100,
        )
        self.queue = SimulatedQueue(settings=self.shape)
        self.untaken: list[int] = []  # positions neither taken nor resolved
        self.ready: set[int] = set()
        self.passed: dict[int, int] = {}
        self.claimed: list[int] = []

    def running(self) -> list[int]:
        return [seq for seq in self.untaken if seq not in self.ready]

    @rule(at_most=st.integers(1, 20))
    def dispatch(self, at_most: int) -> None:
        new = self.queue.dispatch(at_most)
        next_seq = len(self.queue.groups) - len(new)
        assert new == list(range(next_seq, next_seq + len(new))), "seq is dense and never reused"
        self.untaken += new

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(self.running()))
        self.queue.finish(seq)
        self.ready.add(seq)

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def resolve(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(self.running()))
        self.queue.resolve(seq)
        self.untaken.remove(seq)

    @precondition(lambda self: len(self.running()) > 1)
    @rule()
    def finish_all_but_the_head(self) -> None:
        """The head hangs while everything behind it ends: the case that the window is for."""
        for seq in self.running()[1:]:
            self.finish_one(seq)

    def finish_one(self, seq: int) -> None:
        self.queue.finish(seq)
        self.ready.add(seq)

    @rule()
    def take(self) -> None:
        for seq in self.queue.take():
            assert seq in self.ready and seq < self.untaken[0] + self.shape.window, (
                "ready, and inside the window"
            )
            in_window = [
                s for s in self.untaken if s < self.untaken[0] + self.shape.window and s in self.ready
            ]
            assert seq == in_window[0], "oldest first"
            for older in self.untaken[: self.untaken.index(seq)]:
                self.passed[older] = self.passed.get(older, 0) + 1
            self.untaken.remove(seq)
            self.ready.remove(seq)
            self.claimed.append(seq)
        if self.untaken:
            reach = self.untaken[0] + self.shape.window
            assert not [seq for seq in self.ready if seq < reach], "nothing ready is left in the window"

    @rule()
    def commit(self) -> None:
        self.queue.commit()

    @rule()
    def publish(self) -> None:
        self.queue.publish()

    @rule()
    def restart(self) -> None:
        again = self.queue.restarted()
        assert again.dispatchable() == self.queue.dispatchable()
        assert again.restarted().take() == self.queue.restarted().take()
        self.queue = again

    @rule()
    def drain(self) -> None:
        """Everything running ends and everything closed trains: then there is room for more, for any window."""
        for seq in self.running():
            self.finish_one(seq)
        self.take()
        while self.queue.commit():
            self.queue.publish()
        self.queue.publish()
        assert not self.untaken
        assert self.queue.dispatchable() > 0

    @rule()
    def the_run_could_end_here(self) -> None:
        """On a copy: intake closes, everything running ends, and every dispatched group reaches one terminal state."""
        end = self.queue.restarted()
        end.close_intake()
        for seq in end.in_state(GroupState.DISPATCHED):
            end.finish(seq)
            end.take()
        end.take()
        while batch := end.commit():
            assert len(batch.groups) >= self.shape.short_batch
        terminal = end.in_state(GroupState.TRAINED, GroupState.FILTERED)
        assert terminal == list(range(len(end.groups)))
        assert sum(batch.state == BatchState.OPEN for batch in end.batches) == 0

    @rule()
    def history_replays(self) -> None:
        claims = replay(self.queue.history, self.queue.policy)
        assert all(claim.agrees for claim in claims)
        assert sorted(seq for claim in claims for seq in claim.derived) == sorted(self.claimed)

    @invariant()
    def nothing_passes_more_than_w_minus_1(self) -> None:
        assert max(self.passed.values(), default=0) <= self.shape.window - 1

    @invariant()
    def bounds_of_admission_hold(self) -> None:
        counts = self.queue.counts()
        assert 0 <= counts.outstanding <= self.shape.capacity
        assert counts.running_rollouts <= self.shape.running_rollouts
        ahead = counts.dispatched - counts.resolved
        assert ahead <= (self.shape.max_staleness + 1 + counts.committed_batches) * self.shape.batch_groups

    @invariant()
    def batches_are_full_and_share_no_group(self) -> None:
        members = [seq for batch in self.queue.batches for seq in batch.groups]
        assert members == self.claimed, "batches fill in the order of the takes, and no group is in two"
        sizes = [
            len(b.groups) for b in self.queue.batches if b.state in (BatchState.CLOSED, BatchState.COMMITTED)
        ]
        assert all(size == self.shape.batch_groups for size in sizes)
        assert sum(b.state == BatchState.OPEN for b in self.queue.batches) <= 1
        trained = {seq for b in self.queue.batches if b.state == BatchState.COMMITTED for seq in b.groups}
        assert trained == set(self.queue.in_state(GroupState.TRAINED))


WindowMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestWindowMachine = WindowMachine.TestCase

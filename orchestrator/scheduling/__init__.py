"""The queue's decisions as pure functions over rows: no I/O, no clock, no asyncio, no torch.

window          which ready groups may be taken now
queue_policies  the same decision by policy name: fifo, windowed, greedy, or a plug-in
admission       how many groups may be dispatched now, and from which domain; the checks at start
breaker         whether the platform fails so often that no new group is dispatched
batching        when the open batch closes
completion      the next state of a group whose members are all terminal
simulate        the tests' model: all of the above under a fake clock, with the rows in memory
replay          a recorded history turned back into the claims that the policy would have made

Numbers used throughout: N groups outstanding, W the window, P groups in a batch, G rollouts in a group, S the staleness that
admission allows, v committed batches. `seq` is a queue position: the dispatch order, dense from 0, never reused.
"""

"""Rewards of one group, as pure functions: no I/O, no clock, no torch.

process     signals about one step, from what was parsed of its action
speed       the bonus for being faster than a reference, paid once and only on success
composite   r_t = α·process + β·speed + performance, with every component kept
returns     returns-to-go, group baseline, advantage, and whether there is anything to learn
settings    the numbers

The path of a verdict: `composite.group_rewards` over the trainable members, `returns.zero_signal`, `returns.group_advantages`.
Every result is a frozen record that holds what it was computed from, so that a stored number can be explained by SQL.
"""

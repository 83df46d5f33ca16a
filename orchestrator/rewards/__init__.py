"""Rewards of one group, as pure functions: no I/O, no clock, no torch.

actions      steps as rewards see them: the policy's text and the tools' results
signals      named functions from a step and the steps before it to [−1, 1]
process      the weighted signals, step by step, bounded per rollout
speed        the bonus for being faster than a reference, paid once and in proportion to performance
composite    r_t = α·process + β·speed + performance, with every component kept
returns      returns-to-go, group baseline, advantage
noise        how much the agent's time varies between replays of one rollout
batch_scale  the spread of advantages in a batch, by which they may be divided
comparison   whether a group teaches anything, or its members differ only by noise
settings     the numbers

The path of a verdict: `composite.group_rewards` over the trainable members, `comparison.compared`, `returns.group_advantages`.
Every result is a frozen record that contains its inputs, so that SQL can explain a stored number.
"""

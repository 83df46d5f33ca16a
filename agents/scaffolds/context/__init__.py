"""Context management of white boxes: the replacement of a history that has become too long.

The configuration picks a policy per scaffold (`[rollout.context.NAME]`), and the framework applies it. The scaffold continues with its
own history, and its completions are requested with the policy's shortened one. The record is complete: the first
completion after a rewrite is stored with the policy's name as its branch reason, so that its exact state can be read back and trained on.

base.py               the input and the output of a policy
sliding_window.py     only the newest turns stay
periodic_summary.py   the policy summarizes its work, and continues from the summary
drop_replies.py       above a share of the context, earlier replies and tool returns are dropped

Other packages register theirs in the group `penstock.context_policies`, like the built-in ones.
"""

"""Context management of white boxes: what stands for a history that has grown too long.

A policy is picked per scaffold in the configuration (`[rollout.context.NAME]`) and applied by the framework: the scaffold goes on with the
history that it keeps, and its completions are asked with what the policy made of it. Nothing is hidden from the record: the first
completion after a rewrite is stored with the policy's name as its branch reason, so that its exact state can be read back and trained on.

base.py               what a policy is given, and what it answers
sliding_window.py     only the newest turns stay
periodic_summary.py   the policy sums up what it has done, and goes on from its own words
drop_replies.py       past a share of the context, earlier replies and tool returns go
"""

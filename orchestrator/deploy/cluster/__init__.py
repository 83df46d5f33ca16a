"""A run on more than one machine: one topology that a person writes, and the files that start it elsewhere.

topology   the file that people write: roles, counts, GPUs, hosts, secrets by reference
checks     contradictions, as sentences with the key and the arithmetic
placement  which process runs on which host, with its ports and GPUs
processes  the command line, environment and configuration of each role, for every render
render/    one target, one file
scale      the effects of other counts (edit: in the file; commands: the commands for each target)
size       the throughput of a topology for a workload (workload, measured from a run), by queueing and a rehearsal
policy     the rules for rendered Kubernetes objects
"""

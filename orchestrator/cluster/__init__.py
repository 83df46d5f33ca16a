"""A run on more than one machine: one topology that a person writes, and the files that start it elsewhere.

topology   what people write: roles, counts, GPUs, hosts, secrets by reference
checks     what cannot be, as sentences with the key and the arithmetic
placement  which process runs on which host, with its ports and GPUs
processes  the command line, environment and configuration of each role: what every render starts
render/    one target, one file
scale      what other counts change (edit: in the file; commands: how it is done on each target)
size       what a topology does of a workload (workload, measured from a run), by queueing and a rehearsal
policy     what rendered Kubernetes objects must hold
"""

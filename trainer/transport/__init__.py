"""Weights from process to process: a sender broadcasts a checkpoint's tensors to the ranks of one rollout server, in the form of SGLang's
`update_weights_from_distributed`. Tensors are sent unchanged, by gloo or NCCL; nothing is pickled.
"""

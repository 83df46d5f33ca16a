"""Weights from process to process: a sender broadcasts a checkpoint's tensors to the ranks of one rollout server, as SGLang's
`update_weights_from_distributed` takes them. Tensors travel as they are, by gloo or NCCL; nothing is pickled.
"""

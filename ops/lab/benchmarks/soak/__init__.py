"""`ops/bench soak`: a real run for some minutes, and what grows in it.

fit        a slope with its noise, and the decline of a rate, pure
processes  the processes of a run by role: memory, descriptors, threads, CPU time
places     what a run has on disk and in the kernel, by part
samples    one reading of all of it · targets: what is judged, against which target
run        the stack, the load and the sampling · __main__: options, table
"""

"""The process that evaluates clients' extractors, apart from the keys, the ledger and the network (docs/adr/README.md).

::

    process.py      at the curator: starts one worker, sends it work, ends it when it exceeds its time
    pool.py         at the curator: as many workers as steps run at the same time, and one for each client that uploads
    arena.py        memory that both processes see: records, features, gradients
    channel.py      short messages, and the files that travel with them
    error_chain.py  what is told of an unexpected error: types and frames, no text
    start.py        in the worker: the order of its start
    confinement.py  in the worker: takes network, files and memory away from itself, for good
    system_calls.py in the worker: the kernel's filter of what leads out of it
    loop.py         in the worker: loads extractors, evaluates records

A worker sees the records of one sample at a time, without their numbers in the data set, and answers with features and
gradients. Clipping, noise, the ledger and every decision stay with the curator.
"""

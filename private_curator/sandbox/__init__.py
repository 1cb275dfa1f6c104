"""The process that evaluates clients' extractors, apart from the keys, the ledger and the network (docs/adr/README.md).

::

    process.py      at the curator: starts one worker, sends it work, ends it when it exceeds its time
    pool.py         at the curator: as many workers as steps run at the same time, and one for uploads
    local.py        the same interface inside the curator's own process: for comparison and for tests
    arena.py        memory that both processes see: records, features, gradients
    channel.py      short messages, and the files that travel with them
    error_chain.py  what is told of an unexpected error: types and frames, no text
    confinement.py  in the worker: takes network, files, children and memory away from itself, for good
    loop.py         in the worker: loads extractors, evaluates records
    __main__.py     in the worker: the order of its start
    embedding.py    at the operator's command: a worker that evaluates an ONNX model instead (`records embed`)
    onnx_format.py  in that worker: what the file says of itself, and what of it is refused
    onnx_model.py   in that worker: features, one record at a time

A worker sees the records of one sample at a time, without their numbers in the data set, and answers with features and
gradients. Clipping, noise, the ledger and every decision stay with the curator.
"""

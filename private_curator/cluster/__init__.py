"""Shards of a sum over every record on several machines, by Dask's distributed scheduler (docs/adr/README.md, 10).

::

    engine.py     how Dask is set up here: mutual TLS, nothing on disk, no page, no profile; and the scheduler, one
                  process that gives shards to nodes and sees neither records nor keys
    task.py       what a node is told, and what it answers, as bytes
    node.py       on every machine with the records: computes shards in its own confined workers
    courier.py    beside the curator, a process of its own: the only one that speaks Dask
    shards.py     in the curator: sends shards through the courier, and believes no more than numbers of the right size
"""

"""``python -m private_curator.worker``: started by `process.WorkerProcess`, of no use by hand."""

from private_curator.worker.start import main

if __name__ == "__main__":
    main()

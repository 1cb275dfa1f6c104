"""``python -m dpswd.private_curator.sandbox``: started by `process.WorkerProcess`, of no use by hand."""

from dpswd.private_curator.sandbox.start import main

if __name__ == "__main__":
    main()

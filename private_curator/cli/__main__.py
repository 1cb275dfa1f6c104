"""``python -m dpswd.private_curator.cli``: the same as ``dpswd-curator``."""

from dpswd.private_curator.cli.main import main

if __name__ == "__main__":
    main(prog_name="dpswd-curator")

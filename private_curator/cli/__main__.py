"""``python -m private_curator.cli``: the same as ``dpswd-curator``."""

from private_curator.cli.main import main

if __name__ == "__main__":
    main(prog_name="dpswd-curator")

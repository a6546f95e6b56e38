"""``python -m tpumagic``: the command line."""

from tpumagic.cli import main

if __name__ == "__main__":
    main()

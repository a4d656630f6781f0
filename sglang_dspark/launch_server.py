"""Drop-in for `python -m sglang.launch_server`: the same flags, served with DSpark where a draft is given."""

from sglang_dspark.engine.cpu.bootstrap import install

install()

if __name__ == "__main__":
    import sys

    from sglang_dspark.cli import main

    sys.exit(main(["serve", *sys.argv[1:]]))

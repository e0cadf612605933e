"""`python -m vllm` is the command line."""

from vllm.entrypoints.cli.main import main

if __name__ == "__main__":
    main()

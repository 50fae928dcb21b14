"""``weir completion``: a script that makes a shell complete the command."""

import argparse

import shtab

SHELLS = ("bash", "zsh", "fish")


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for one shell."""
    return str(shtab.complete(parser, shell=shell))

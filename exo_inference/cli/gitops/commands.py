"""The commands that `root.py` lists; loaded when one of them is run or listed in help."""

from exo_inference.cli.gitops.apply import apply
from exo_inference.cli.gitops.diff import diff
from exo_inference.cli.gitops.export import export

__all__ = ["apply", "diff", "export"]

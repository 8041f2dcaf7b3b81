"""FrugalViT's one-bit runtime: packed vision transformers on a CPU, with numpy and nothing else."""

from frugalvit_runtime._native import FileError, read_picture
from frugalvit_runtime.model import Model

__version__ = "0.1.0"
__all__ = ["FileError", "Model", "read_picture"]

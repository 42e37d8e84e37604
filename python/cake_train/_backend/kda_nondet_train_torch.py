"""The torch operators of cake_kda_nondet_train, made when this module is imported."""

from . import kda_torch
from .kda_nondet_train import _package

operators = kda_torch.Operators(_package)

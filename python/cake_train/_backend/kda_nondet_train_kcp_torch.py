"""The torch operators of cake_kda_nondet_train_kcp, made when this module is imported."""

from . import kda_kcp_torch
from .kda_nondet_train_kcp import _package

operators = kda_kcp_torch.Operators(_package)

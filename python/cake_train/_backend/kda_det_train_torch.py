"""The torch operators of cake_kda_det_train, made when this module is imported."""

from . import kda_torch
from .kda_det_train import _package

operators = kda_torch.Operators(_package)

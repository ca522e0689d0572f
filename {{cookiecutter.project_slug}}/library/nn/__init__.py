"""Layers, residual networks, pretrained networks, optimizers, gradient accumulation."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.nn.layers import batch_norm, conv, dense, dropout
    from library.nn.optimization import Adam, EndHook, clip, in_parts, in_step, with_loss_scale
    from library.nn.resnet import resnet_features

__getattr__ = lazy(__name__, __file__)

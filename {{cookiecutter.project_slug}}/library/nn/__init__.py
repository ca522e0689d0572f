"""Layers, residual networks, pretrained networks, optimizers, gradient accumulation."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.nn.averages import AVERAGE, averages_scaffold, update_averages
    from library.nn.efficientnet import LITE0_FEATURES, lite0_features, lite0_file
    from library.nn.gradients import accumulate_gradients, clip_gradients
    from library.nn.grad_cam import global_pool, heat_maps
    from library.nn.layers import FEATURES, batch_norm, conv, dense, depthwise_conv, dropout
    from library.nn.layers import output_layer
    from library.nn.optimizers import SGD, Adam, AdamW, Optimizer, SyncReplicasShutdownHook
    from library.nn.optimizers import set_rate_factor, with_loss_scale
    from library.nn.pretrained import hub_features, hub_input
    from library.nn.resnet import resnet_features
else:
    __getattr__ = lazy(__name__, __file__)

"""Layers of neural networks over process grids, forward and backward, without autograd."""

from pdla.nn.blocks import like
from pdla.nn.context import MicroBatch
from pdla.nn.layer import Layer
from pdla.nn.layers.activations import Dropout, GeLU, ReLU
from pdla.nn.layers.attention import SelfAttention
from pdla.nn.layers.block import Block
from pdla.nn.layers.embedding import Embedding, Positions, TiedHead
from pdla.nn.layers.linear import Linear
from pdla.nn.layers.mean import MeanOverSequence
from pdla.nn.layers.mlp import MLP
from pdla.nn.layers.norms import LayerNorm, RMSNorm
from pdla.nn.layers.sequential import Sequential
from pdla.nn.layers.transformer import TransformerLayer
from pdla.nn.layers.vision.conv import Conv2d
from pdla.nn.layers.vision.group_norm import GroupNorm
from pdla.nn.layers.vision.unet import ResidualBlock, UNetBlock
from pdla.nn.layers.vision.upsample import Upsample
from pdla.nn.parameter import Parameter
from pdla.nn.scheme import Scheme
from pdla.nn.schemes import Cube3D, Megatron1D, Serial, Summa2D, Tensor3D, Tesseract
from pdla.nn.training.loss import CrossEntropy
from pdla.nn.training.mse import MeanSquaredError
from pdla.nn.training.optim import SGD, AdamW, clip
from pdla.nn.training.shampoo import Shampoo
from pdla.nn.weights import feature_vector

__all__ = [
    "MLP", "SGD", "AdamW", "Block", "Conv2d", "CrossEntropy", "Cube3D", "Dropout", "Embedding", "GeLU", "GroupNorm", "Layer",
    "LayerNorm", "Linear", "MeanOverSequence", "MeanSquaredError", "Megatron1D", "MicroBatch", "Parameter", "Positions", "RMSNorm",
    "ReLU", "ResidualBlock", "Scheme", "SelfAttention", "Sequential", "Serial", "Shampoo", "Summa2D", "Tensor3D", "Tesseract",
    "TiedHead", "TransformerLayer", "UNetBlock", "Upsample", "clip", "feature_vector", "like",
]

"""Layers of neural networks cut over process grids, forward and backward, without autograd: schemes are tables of layouts."""

from pdla.nn.activations import Dropout, GeLU, ReLU
from pdla.nn.attention import SelfAttention
from pdla.nn.blocks import like
from pdla.nn.context import MicroBatch
from pdla.nn.conv import Conv2d, ResidualBlock, UNetBlock, Upsample
from pdla.nn.embedding import Embedding, Positions, TiedHead
from pdla.nn.layer import Layer
from pdla.nn.linear import Linear
from pdla.nn.loss import CrossEntropy
from pdla.nn.norms import GroupNorm, LayerNorm, RMSNorm
from pdla.nn.optim import SGD, AdamW, clip
from pdla.nn.parameter import Parameter
from pdla.nn.scheme import Cube3D, Megatron1D, Scheme, Serial, Summa2D, Tensor3D, Tesseract
from pdla.nn.transformer import MLP, MeanOverSequence, Sequential, TransformerLayer
from pdla.nn.weights import feature_vector

__all__ = [
    "MLP", "SGD", "AdamW", "Conv2d", "CrossEntropy", "Cube3D", "Dropout", "Embedding", "GeLU", "GroupNorm", "Layer", "LayerNorm",
    "Linear", "MeanOverSequence", "Megatron1D", "MicroBatch", "Parameter", "Positions", "RMSNorm", "ReLU", "ResidualBlock",
    "Scheme", "SelfAttention", "Sequential", "Serial", "Summa2D", "Tensor3D", "Tesseract", "TiedHead", "TransformerLayer",
    "UNetBlock", "Upsample", "clip", "feature_vector", "like",
]

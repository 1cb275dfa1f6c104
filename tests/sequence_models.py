"""Small models of the kinds that teams have: a vision transformer, a text transformer, recurrent networks."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

T, D, WORDS = 6, 8, 20


class Vit(nn.Module):
    """Patches of 4 x 4 pixels, a class token, positions, two blocks."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, D, 4, stride=4)
        self.token = nn.Parameter(0.1 * torch.randn(1, 1, D))
        self.positions = nn.Parameter(0.1 * torch.randn(1, 5, D))
        block = nn.TransformerEncoderLayer(D, 2, 16, activation="gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, norm=nn.LayerNorm(D), enable_nested_tensor=False)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.size(0), -1, -1), x], dim=1) + self.positions
        return functional.normalize(self.blocks(x)[:, 0], dim=1)


class Text(nn.Module):
    """Words, attention written by hand and by torch's layer, a mean."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, D)
        self.positions = nn.Parameter(0.1 * torch.randn(T, D))
        self.qkv = nn.Linear(D, 3 * D)
        self.attention = nn.MultiheadAttention(D, 4, batch_first=True)
        self.norm = nn.LayerNorm(D)

    def forward(self, x):
        x = self.words(x.long()) + self.positions
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        x = x + torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(D), dim=-1) @ v
        seen, _ = self.attention(x, x, x, need_weights=False)
        x = self.norm(x + seen)
        return functional.scaled_dot_product_attention(x, x, x).mean(dim=1)


class Recurrent(nn.Module):
    """Two layers in both directions behind a fixed normalisation, and the last states."""

    def __init__(self, kind):
        super().__init__()
        self.cell = kind(3, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3]), persistent=False)
        self.register_buffer("std", torch.tensor([1.0, 2.0, 0.5]))

    def forward(self, x):
        out, state = self.cell((x - self.mean) / self.std)
        if isinstance(self.cell, nn.GRU):
            return torch.cat([out[:, -1], state[-1], state[0], out[:, 1:3].flatten(1)], dim=1)
        h, _ = state
        return torch.cat([out.mean(dim=1), h[-2]], dim=1)


class Block(nn.Module):
    """Attention as timm writes it: queries, keys and values as one view with five dimensions."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, n, c = x.shape
        parts = self.qkv(self.norm1(x)).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        seen = ((q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5).softmax(dim=-1)
        x = x + self.out((seen @ v).transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(self.norm2(x))


class VitTiny(nn.Module):
    """A ViT-tiny's width and heads, patches of 4 x 4 pixels, two blocks."""

    def __init__(self):
        super().__init__()
        self.patches, self.norm = nn.Conv2d(1, 192, 4, stride=4), nn.LayerNorm(192)
        self.token = nn.Parameter(0.1 * torch.randn(1, 1, 192))
        self.positions = nn.Parameter(0.1 * torch.randn(1, 50, 192))
        self.blocks = nn.Sequential(Block(192, 3), Block(192, 3))

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return self.norm(self.blocks(x))[:, 0]

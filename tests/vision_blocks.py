"""Small networks in the idioms of libraries of vision models: subclasses call functions with their own weights."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class OwnLayerNorm(nn.LayerNorm):
    """A subclass with a forward of its own, as timm's."""

    def forward(self, x):
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class LayerNorm2d(nn.LayerNorm):
    """Over the channels of images, as torchvision's and timm's."""

    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps).permute(0, 3, 1, 2)


class NormAct(nn.BatchNorm2d):
    """Batch norm and activation in one, as timm's."""

    def __init__(self, channels, act=nn.ReLU):
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), act()

    def forward(self, x):
        torch._assert(x.ndim == 4, "expected images")
        frozen = not self.training
        x = F.batch_norm(
            x,
            self.running_mean if frozen or self.track_running_stats else None,
            self.running_var if frozen or self.track_running_stats else None,
            self.weight,
            self.bias,
            not frozen,
            0.1,
            self.eps,
        )
        return self.act(self.drop(x))


class SameConv(nn.Conv2d):
    """Padded as TensorFlow does, by the sizes that arrive."""

    def forward(self, x):
        ends = []
        for size, k, s in zip(x.shape[-2:], self.kernel_size, self.stride, strict=True):
            more = max((math.ceil(size / s) - 1) * s + k - size, 0)
            ends = [more // 2, more - more // 2, *ends]
        return F.conv2d(F.pad(x, ends), self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class Attention(nn.Module):
    def __init__(self, d, heads, positions=0):
        super().__init__()
        self.heads, self.positions = heads, positions
        self.qkv, self.proj = nn.Linear(d, 3 * d, bias=not positions), nn.Linear(d, d)
        self.q_norm = nn.Identity()
        if positions:  # a bias by relative positions, and keys without one, as in BEiT
            self.q_bias, self.v_bias = nn.Parameter(torch.randn(d)), nn.Parameter(torch.randn(d))
            self.register_buffer("k_bias", torch.zeros(d), persistent=False)
            self.relative_position_bias_table = nn.Parameter(torch.randn(2 * positions - 1, heads))
            at = torch.arange(positions)
            self.register_buffer("relative_position_index", at[:, None] - at[None] + positions - 1)

    def bias(self):
        table = self.relative_position_bias_table[self.relative_position_index.view(-1)]
        return table.view(self.positions, self.positions, -1).permute(2, 0, 1).contiguous().unsqueeze(0)

    def forward(self, x):
        b, n, c = x.shape
        if self.positions:
            biases = torch.cat((self.q_bias, self.k_bias, self.v_bias))
            whole, mask = F.linear(input=x, weight=self.qkv.weight, bias=biases), self.bias()
        else:
            whole, mask = self.qkv(x), None
        q, k, v = whole.reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(self.q_norm(q), k, v, attn_mask=mask, dropout_p=0.0)
        return self.proj(x.transpose(1, 2).reshape(b, n, c))


class Block(nn.Module):
    def __init__(self, d, heads, positions=0):
        super().__init__()
        self.norm1, self.attn, self.norm2 = OwnLayerNorm(d), Attention(d, heads, positions), OwnLayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.gamma = nn.Parameter(torch.rand(d))

    def forward(self, x):
        x = x + self.attn(self.norm1(x)) * self.gamma
        return x + self.mlp(self.norm2(x)) * self.gamma


class Vit(nn.Module):
    """ViT, DeiT, DINOv2, CLIP: 3 x 16 x 16, patches of 4."""

    def __init__(self, positions=0):
        super().__init__()
        self.proj = nn.Conv2d(3, 16, 4, 4)
        self.cls_token, self.pos_embed = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 17, 16))
        self.blocks = nn.Sequential(Block(16, 4, positions), Block(16, 4, positions))
        self.norm = OwnLayerNorm(16)

    def forward(self, x):
        _, _, height, width = x.shape
        torch._assert(height == 16, "a size")
        if width != 16:
            raise ValueError("another size")
        x = self.proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1) + self.pos_embed
        x = self.norm(self.blocks(x))
        return torch.cat([x[:, 0], x[:, 1:].max(dim=1).values], dim=-1)


class SqueezeExcite(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(c, 2, 1), nn.Conv2d(2, c, 1)

    def forward(self, x):
        return x * F.hardsigmoid(self.expand(F.relu(self.reduce(x.mean((2, 3), keepdim=True)))))


def stochastic_depth(x, p, mode, training=True):
    """As torchvision's, which tracing leaves as one call."""
    return x if not training else x * 0.0


torch.fx.wrap("stochastic_depth")


class Inverted(nn.Module):
    """EfficientNet, MobileNetV3."""

    def __init__(self):
        super().__init__()
        self.stem, self.bn1 = SameConv(3, 8, 3, stride=2, bias=False), NormAct(8, nn.Hardswish)
        self.wide, self.bn2 = nn.Conv2d(8, 16, 1, bias=False), NormAct(16, nn.SiLU)
        self.deep, self.bn3 = SameConv(16, 16, 3, stride=2, groups=16, bias=False), NormAct(16, nn.SiLU)
        self.se, self.thin, self.bn4 = SqueezeExcite(16), nn.Conv2d(16, 8, 1), NormAct(8, nn.Identity)
        self.prelu = nn.PReLU(8)

    def forward(self, x):
        x = self.bn1(self.stem(x))
        x = self.bn4(self.thin(self.se(self.bn3(self.deep(self.bn2(self.wide(x)))))))
        return stochastic_depth(self.prelu(x), 0.2, "row", self.training).sum((2, 3))


class ConvNext(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm0 = nn.Conv2d(3, 8, 4, 4), LayerNorm2d(8)
        self.deep, self.norm = nn.Conv2d(8, 8, 3, padding=1, groups=8), OwnLayerNorm(8)
        self.up, self.down, self.gamma = nn.Linear(8, 16), nn.Linear(16, 8), nn.Parameter(torch.rand(8))

    def forward(self, x):
        x = self.norm0(self.stem(x))
        y = self.norm(self.deep(x).permute(0, 2, 3, 1))
        y = self.down(F.gelu(self.up(y))).mul(self.gamma).permute(0, 3, 1, 2)
        return (x + y).mean([-2, -1])


def partition(x, w):
    b, h, width, c = x.shape
    return x.view(b, h // w, w, width // w, w, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, w, w, c)


def put_back(windows, w, h, width):
    c = windows.shape[-1]
    x = windows.view(-1, h // w, width // w, w, w, c)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, h, width, c)


class WindowAttention(nn.Module):
    """As Swin's authors write it."""

    def __init__(self, d, heads, w):
        super().__init__()
        self.num_heads, self.scale, self.area = heads, (d // heads) ** -0.5, w * w
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.relative_position_bias_table = nn.Parameter(torch.randn((2 * w - 1) ** 2, heads))
        y, x = torch.meshgrid(torch.arange(w), torch.arange(w), indexing="ij")
        y, x = y.flatten(), x.flatten()
        index = (y[:, None] - y[None] + w - 1) * (2 * w - 1) + x[:, None] - x[None] + w - 1
        self.register_buffer("relative_position_index", index, persistent=False)

    def forward(self, x, mask=None):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * self.scale) @ k.transpose(-2, -1)
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(n, n, -1)
        scores = scores + bias.permute(2, 0, 1).unsqueeze(0)
        if mask is not None:
            count = mask.shape[0]
            scores = scores.view(-1, count, self.num_heads, n, n) + mask.unsqueeze(1).unsqueeze(0)
            scores = scores.view(-1, self.num_heads, n, n)
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))


class SwinBlock(nn.Module):
    def __init__(self, d, heads, side, w, shift):
        super().__init__()
        self.side, self.w, self.shift = side, w, shift
        self.norm, self.attn = OwnLayerNorm(d), WindowAttention(d, heads, w)
        mask = None
        if shift:
            part = torch.zeros(1, side, side, 1)
            cuts = (slice(0, -w), slice(-w, -shift), slice(-shift, None))
            for number, (rows, columns) in enumerate((a, b) for a in cuts for b in cuts):
                part[:, rows, columns] = number
            flat = partition(part, w).view(-1, w * w)
            mask = (flat[:, None] != flat[:, :, None]).float() * -100.0
        self.register_buffer("attn_mask", mask, persistent=False)

    def forward(self, x):
        _, h, width, c = x.shape
        y = self.norm(x)
        y = torch.roll(y, shifts=(-self.shift, -self.shift), dims=(1, 2)) if self.shift else y
        y = F.pad(y, (0, 0, 0, (self.w - width % self.w) % self.w, 0, (self.w - h % self.w) % self.w))
        windows = self.attn(partition(y, self.w).view(-1, self.w * self.w, c), mask=self.attn_mask)
        y = put_back(windows.view(-1, self.w, self.w, c), self.w, h, width)
        y = torch.roll(y, shifts=(self.shift, self.shift), dims=(1, 2)) if self.shift else y
        return x + y


class Swin(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Conv2d(3, 8, 2, 2)
        self.blocks = nn.Sequential(SwinBlock(8, 2, 8, 4, 0), SwinBlock(8, 2, 8, 4, 2))
        self.merge, self.last = nn.Linear(32, 12), SwinBlock(12, 3, 4, 4, 0)

    def forward(self, x):
        x = self.blocks(self.proj(x).permute(0, 2, 3, 1))
        b, h, w, c = x.shape
        x = x.reshape(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 4, 2, 5).flatten(3)
        return self.last(self.merge(x)).mean(dim=(1, 2))

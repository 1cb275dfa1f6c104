"""Small text and sequence models, written as teams write them: padding, masks, pooling over words."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

WORDS, D, T = 40, 16, 12


class PaddedEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, D, padding_idx=0), nn.Parameter(torch.randn(T, D))
        layer = nn.TransformerEncoderLayer(D, 4, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        nothing = x == 0
        y = self.encoder(self.words(x.long()) + self.places, src_key_padding_mask=nothing)
        there = (~nothing).unsqueeze(-1).to(y.dtype)
        return (y * there).sum(1) / there.sum(1).clamp(1.0, 1e6)


class CausalAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.attention = nn.Embedding(WORDS, D), nn.MultiheadAttention(D, 4, batch_first=True)
        self.register_buffer("later", torch.ones(T, T).triu(1).bool())

    def forward(self, x):
        y = self.words(x.long())
        seen, _ = self.attention(y, y, y, key_padding_mask=x == 0, need_weights=False, attn_mask=self.later)
        return (y + seen).max(dim=1).values


class FusedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.qkv = nn.Embedding(WORDS, D), nn.Linear(D, 3 * D)

    def forward(self, x):
        b, t = x.shape
        q, k, v = self.qkv(self.words(x.long())).view(b, t, 3, 4, D // 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=(x != 0)[:, None, None, :])
        return y.transpose(1, 2).reshape(b, t, D).amax(1)


class Bert(nn.Module):
    """Scores by hand, a mask that is added, and one that fills."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, D)
        self.query, self.key, self.value = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
        self.norm = nn.LayerNorm(D)

    def forward(self, x):
        y = self.words(x.long())
        added = (1.0 - (x != 0).float()[:, None, :]) * -10000.0
        scores = self.query(y) @ self.key(y).transpose(-1, -2) / math.sqrt(D) + added
        scores = scores.masked_fill((x == 0).unsqueeze(1), float("-inf"))
        return self.norm(y + F.softmax(scores, dim=-1) @ self.value(y))[:, 0]


class Rnn(nn.Module):
    def __init__(self, nonlinearity="tanh"):
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.rnn = nn.RNN(8, 6, 2, nonlinearity=nonlinearity, batch_first=True, bidirectional=True)
        self.act = nn.PReLU(12)

    def forward(self, x):
        outputs, last = self.rnn(self.words(x.long()))
        return torch.cat([outputs.mean(1), last[-1], self.act(outputs.max(1)[0])], dim=1)


class TextCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.convolutions = nn.Embedding(WORDS, 8), nn.ModuleList(nn.Conv1d(8, 6, k) for k in (2, 3, 4))

    def forward(self, x):
        y = self.words(x.long()).transpose(1, 2)
        return torch.cat([F.relu(layer(y)).max(dim=2).values for layer in self.convolutions], 1)


class Codes(nn.Module):
    """A table's columns of codes, each with a table of its own, beside numbers: as in entity embeddings."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(WORDS, 3 + i) for i in range(2))
        self.last = nn.Embedding(WORDS, 2)
        self.mixed, self.norm = nn.Linear(T + 6, 8), nn.LayerNorm(8)

    def forward(self, x):
        looked_up = [table(x[:, i].long()) for i, table in enumerate(self.tables)]
        looked_up.append(F.embedding(x[:, -1].to(torch.int64), self.last.weight))
        numbers = [x[:, 2].unsqueeze(1), x[:, 3, None], x[:, 4].view(-1, 1), x[:, 5].reshape(x.shape[0], 1), x[:, 6:-1]]
        return self.norm(F.relu(self.mixed(torch.cat([*looked_up, *numbers], dim=1))))

"""The models of `addnorm bench` in PyTorch.

`addnorm bench --peer "python benches/peers/pytorch.py"` starts this script and speaks to it in lines of JSON on
stdin and stdout: first what to set up, then how many times to run it. Options: `--compile` uses torch.compile.
"""

import argparse
import json
import math
import resource
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, width, heads, scaled_heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.head_scale = nn.Parameter(torch.ones(heads)) if scaled_heads else None

    def forward(self, x):
        batch, time_, width = x.shape
        q, k, v = self.qkv(x).view(batch, time_, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if self.head_scale is not None:
            y = y * self.head_scale.view(1, -1, 1, 1)
        return self.out(y.transpose(1, 2).reshape(batch, time_, width))


class FeedForward(nn.Module):
    def __init__(self, width, inner_norm):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.inner = nn.LayerNorm(4 * width) if inner_norm else None

    def forward(self, x):
        hidden = F.gelu(self.up(x))
        return self.down(hidden if self.inner is None else self.inner(hidden))


class Block(nn.Module):
    """One block of a scheme; `number` counts from 1."""

    def __init__(self, scheme, number, blocks, width, heads):
        super().__init__()
        self.scheme, self.number, self.blocks = scheme, number, blocks
        normformer = scheme == "normformer"
        self.attention = Attention(width, heads, normformer)
        self.ffn = FeedForward(width, normformer)
        norms = {"pre": 2, "post": 2, "deepnorm": 2, "peri": 4, "keel": 4, "siamese": 4, "normformer": 3}[scheme]
        if scheme == "keel" and number == 1:
            norms = 3
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(norms))
        self.scale = nn.Parameter(torch.ones(width)) if normformer else None

    def forward(self, x, y):
        n = self.norms
        if self.scheme == "pre":
            x = x + self.attention(n[0](x))
            x = x + self.ffn(n[1](x))
        elif self.scheme == "post":
            x = n[0](x + self.attention(x))
            x = n[1](x + self.ffn(x))
        elif self.scheme == "deepnorm":
            alpha = (2 * self.blocks) ** 0.25
            x = n[0](alpha * x + self.attention(x))
            x = n[1](alpha * x + self.ffn(x))
        elif self.scheme == "peri":
            x = x + n[1](self.attention(n[0](x)))
            x = x + n[3](self.ffn(n[2](x)))
        elif self.scheme == "keel":
            if self.number == 1:
                x = x + self.attention(n[0](x))
                x = n[2](x + self.ffn(n[1](x)))
            else:
                alpha = 2 * self.blocks
                x = n[1](alpha * x + self.attention(n[0](x)))
                x = n[3](alpha * x + self.ffn(n[2](x)))
        elif self.scheme == "siamese":
            factor = 1 / math.sqrt(self.number + 1)
            out = self.attention(x + n[0](y))
            x, y = n[1](x + out * factor), y + out
            out = self.ffn(x + n[2](y))
            x, y = n[3](x + out * factor), y + out
        elif self.scheme == "normformer":
            x = x + n[1](self.attention(n[0](x)))
            x = self.scale * x + self.ffn(n[2](x))
        return x, y


class Model(nn.Module):
    def __init__(self, scheme, width, blocks, heads, context, vocabulary):
        super().__init__()
        self.scheme = scheme
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(scheme, l + 1, blocks, width, heads) for l in range(blocks))
        self.norm = None if scheme in ("post", "deepnorm", "keel") else nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.embedding(tokens) + self.positions.weight
        y = x
        for block in self.blocks:
            x, y = block(x, y)
        if self.scheme == "siamese":
            x = x + self.norm(y)
        elif self.norm is not None:
            x = self.norm(x)
        logits = F.linear(x, self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Steps:
    """Training steps or evaluations of one model on one batch."""

    def __init__(self, setup, compile_):
        shape = setup["width"], setup["blocks"], setup["heads"], setup["context"], setup["vocabulary"]
        self.model = Model(setup["scheme"], *shape)
        self.run_model = torch.compile(self.model) if compile_ else self.model
        self.trains = setup["task"] == "train"
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True
        )
        count = setup["batch"] * setup["context"]
        batch = setup["batch"], setup["context"]
        numbers = torch.arange(count)
        self.tokens = (numbers * 7919 % setup["vocabulary"]).view(batch)
        self.targets = (numbers * 104729 % setup["vocabulary"]).view(batch)

    def parameters(self):
        return sum(parameter.numel() for parameter in self.model.parameters())

    def step(self):
        if not self.trains:
            with torch.inference_mode():
                return self.run_model(self.tokens, self.targets)
        loss = self.run_model(self.tokens, self.targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss


class Norm:
    """Forward and backward passes of one norm."""

    def __init__(self, setup, compile_):
        rows, width = setup["rows"], setup["width"]
        self.x = torch.sin(torch.arange(rows * width) * 0.7).view(rows, width).requires_grad_()
        self.upstream = torch.sin(torch.arange(rows * width) * 0.3).view(rows, width)
        gain = torch.ones(width, requires_grad=True)
        bias = torch.zeros(width, requires_grad=True)
        if setup["kind"] == "layernorm":
            self.leaves, self.norm = (gain, bias), lambda x: F.layer_norm(x, (width,), gain, bias, 1e-5)
        else:
            self.leaves, self.norm = (gain,), lambda x: F.rms_norm(x, (width,), gain, 1e-5)
        if compile_:
            self.norm = torch.compile(self.norm)

    def parameters(self):
        return sum(leaf.numel() for leaf in self.leaves)

    def step(self):
        for leaf in (self.x, *self.leaves):
            leaf.grad = None
        y = self.norm(self.x)
        y.backward(self.upstream)
        return y[0, 0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    work = None
    for line in sys.stdin:
        request = json.loads(line)
        if "setup" in request:
            setup = request["setup"]
            torch.manual_seed(1)
            torch.set_num_threads(setup["threads"])
            work = (Norm if setup["task"] == "norm" else Steps)(setup, arguments.compile)
            name = f"PyTorch {torch.__version__}, {'compiled' if arguments.compile else 'eager'}"
            answer = {"name": name, "parameters": work.parameters()}
        else:
            start = time.perf_counter()
            for _ in range(request["run"]):
                value = work.step()
            value = float(value.detach())
            value = value if math.isfinite(value) else None
            seconds = time.perf_counter() - start
            # Bytes on macOS, kilobytes elsewhere.
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
            answer = {"seconds": seconds, "value": value, "peak_bytes": peak}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
